"""Which property store a stream uses: what its creation wrote down, never a guess."""

from filestream.coordination.base import PropertyStore
from filestream.coordination.embedded import EmbeddedPropertyStore
from filestream.errors import UnsupportedVersionError
from filestream.storage.base import Storage

__all__ = ["open_property_store"]


def open_property_store(coordination: str, storage: Storage, root: str) -> PropertyStore:
    """The store named by a stream's own description.

    Args:
        coordination: ``"embedded"``, the store beside the stream.
        storage: where the stream lives.
        root: key for the store's documents in that storage.

    Raises:
        UnsupportedVersionError: the stream uses a store that this version does not know.
    """
    if coordination == "embedded":
        return EmbeddedPropertyStore(storage, root)
    raise UnsupportedVersionError(
        f"the stream is coordinated by a store that this version does not know: upgrade. "
        f"coordination={coordination!r:.100} url={storage.url}"
    )
