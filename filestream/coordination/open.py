"""Which property store a stream uses: what its creation wrote down, never a guess."""

import os

from filestream.coordination.base import PropertyStore
from filestream.coordination.embedded import EmbeddedPropertyStore
from filestream.errors import InvalidRequestError, UnsupportedVersionError
from filestream.storage.base import ReplacingStorage, Storage

__all__ = ["check_coordination", "open_property_store"]


def check_coordination(coordination: str) -> None:
    """Refuse what no stream can be created with.

    Raises:
        InvalidRequestError: no store of that name, no address, or one that carries a secret.
    """
    if coordination.startswith(("zk:", "zks:")):
        from filestream.coordination.zookeeper_session import ZooKeeperAddress

        ZooKeeperAddress.parse(coordination, {})
    elif coordination not in ("embedded", "conditional"):
        raise InvalidRequestError(
            "coordination is embedded, conditional, or zk://host:2181/path with ZooKeeper. "
            f"coordination={coordination!r:.100}"
        )


def open_property_store(
    coordination: str, storage: Storage, root: str, stream_id: str
) -> PropertyStore:
    """The store named by a stream's own description; nothing is connected yet.

    Args:
        coordination: ``"embedded"`` or ``"conditional"``, beside the stream, or
            ``"zk://host:2181/chroot"``. Secrets for ZooKeeper come from the environment:
            ``FILESTREAM_ZK_AUTH`` and others, see ``ZooKeeperAddress``.
        storage: where the stream lives.
        root: key for the documents of an embedded store in that storage.
        stream_id: names the stream in a store that many streams share.

    Raises:
        UnsupportedVersionError: the stream uses a store that this version does not know.
        InvalidRequestError: the address or the environment is no good.
    """
    if coordination == "embedded":
        return EmbeddedPropertyStore(storage, root)
    if coordination == "conditional":
        if not isinstance(storage, ReplacingStorage):
            raise InvalidRequestError(
                f"this storage cannot replace a file on condition: use embedded. url={storage.url}"
            )
        from filestream.coordination.conditional import ConditionalPropertyStore

        return ConditionalPropertyStore(storage, root)
    if coordination.startswith(("zk:", "zks:")):
        from filestream.coordination.zookeeper import ZooKeeperPropertyStore
        from filestream.coordination.zookeeper_session import ZooKeeperAddress, session_of

        # The one look at the environment below the doors: secrets have no other way to a Spark
        # task, which opens a stream by its URL alone.
        address = ZooKeeperAddress.parse(coordination, os.environ)
        return ZooKeeperPropertyStore(session_of(address), stream_id)
    raise UnsupportedVersionError(
        "the stream is coordinated by a store that this version does not know: upgrade. "
        f"coordination={coordination!r:.100} url={storage.url}"
    )
