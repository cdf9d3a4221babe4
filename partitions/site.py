"""Whether a stream may be made at a place: its name, what lies above it, and what lies in it."""

from collections.abc import Mapping
from urllib.parse import unquote

from filestream.errors import InvalidRequestError
from filestream.partitions.layout import DESCRIPTION_KEY, check_stream_name, parse_generation
from filestream.settings import StreamProperties
from filestream.storage.base import Storage
from filestream.storage.open import open_storage
from filestream.storage.probe import PROBE_PREFIX

__all__ = ["check_level", "check_place", "refuse_foreign"]


def check_place(storage: Storage, options: Mapping[str, str] | None = None) -> None:
    """A stream has a name, and does not lie inside another.

    Raises:
        InvalidRequestError: here it would not, or would.
    """
    *above, name = storage.url.rstrip("/").split("/")
    if "%" in name:
        name = unquote(name)
    check_stream_name(name)
    # Not above "scheme://host-or-bucket".
    while len(above) > 3:
        parent = "/".join(above)
        if open_storage(parent, options).exists(DESCRIPTION_KEY):
            raise InvalidRequestError(
                f"this place lies inside another stream: choose one beside it. "
                f"url={storage.url} stream={parent}"
            )
        above.pop()


def refuse_foreign(storage: Storage) -> None:
    """A directory that holds other things is no place for a stream: truncation would mix them.

    Raises:
        InvalidRequestError: it does.
    """
    entries = list(storage.list(""))
    has_remains = any(entry.name == "_stream" and entry.is_directory for entry in entries)
    for entry in entries:
        if entry.name.startswith(PROBE_PREFIX):
            continue  # Somebody died while he tried the store.
        is_generation = entry.is_directory and parse_generation(entry.name) is not None
        if not (has_remains and (is_generation or entry.name == "_stream")):
            raise InvalidRequestError(
                f"the directory is not empty and no stream: choose another. "
                f"url={storage.url} found={entry.name!r:.100}"
            )


def check_level(storage: Storage, properties: StreamProperties) -> None:
    """The storage has the level of acknowledgement.

    Raises:
        InvalidRequestError: it has not.
    """
    if properties.acknowledgement not in storage.levels:
        raise InvalidRequestError(
            f"acknowledgement is {' or '.join(storage.levels)} on this storage. "
            f"acknowledgement={properties.acknowledgement!r} url={storage.url}"
        )
