r"""The property store on ZooKeeper.

    <chroot>/<stream id>/<name>            a document: its value, then a line of ``marks``
    <chroot>/<stream id>/_claims/<name>    ephemeral: held by a living session
    <chroot>/<stream id>/_leases/<name>/   see ``zookeeper_lease``

A document's version is that of its node plus one. A compare-and-set whose answer was lost is resolved
by reading the node back and looking for the own mark, instead of by guessing.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

from filestream.coordination.base import Document, PropertyStore, Watch
from filestream.coordination.marks import Marks, new_mark, split_marks, with_marks
from filestream.coordination.zookeeper_lease import Leases
from filestream.coordination.zookeeper_session import UNKNOWN, ZooKeeperSession
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    FilestreamError,
    InvalidRequestError,
    UnavailableError,
)
from filestream.storage.base import Lock, check_key

__all__ = ["ZooKeeperPropertyStore"]

logger = logging.getLogger(__name__)

# ZooKeeper's own limit for a node is 1 MiB less some bytes.
_VALUE_SIZE_MAX: Final = 1_000_000
_DELETE_TRIES: Final = 10


class ZooKeeperPropertyStore(PropertyStore):
    """Documents of one stream.

    Args:
        session: of this process.
        root: of this stream, below the chroot.
    """

    def __init__(self, session: ZooKeeperSession, root: str) -> None:
        self._session = session
        self._root = f"{session.address.root}/{check_key(root)}"
        self._leases = _leases_of(session)

    @property
    def lease_s(self) -> float:
        """See ``PropertyStore``."""
        return self._leases.lease_s

    def get(self, name: str) -> Document:
        """See ``PropertyStore``."""
        return self._read(name)[0]

    def compare_and_set(self, name: str, value: bytes, *, version: int) -> Document:
        """See ``PropertyStore``."""
        if len(value) > _VALUE_SIZE_MAX:
            raise InvalidRequestError(f"document is too large. name={name} size={len(value)}")
        path = self._path(name)
        own = new_mark()
        # Without those before: to read them first would cost two more round trips each time, to know
        # more in the rare case that an answer was lost.
        data = with_marks(value, own, ())

        def ask(client: KazooClient) -> Any:
            if version:
                return client.set_async(path, data, version=version - 1)
            return client.create_async(path, data, makepath=True)

        try:
            answer = self._session.call_once(f"set {name}", ask)
        except (BadVersionError, NodeExistsError, NoNodeError) as error:
            raise ConflictError(
                f"the document has changed. name={name} version={version}"
            ) from error
        if answer is UNKNOWN:
            self._resolve(name, own, version)
        return Document(value, version + 1)

    def _resolve(self, name: str, own: str, version: int) -> None:
        """The answer was lost: what does the node say?"""
        document, marks = self._read(name)
        if own in marks:
            return
        # Another came after us, or instead of us; or the change is still on its way through a
        # connection that broke.
        raise UnavailableError(
            f"the answer of ZooKeeper was lost: the change may have happened. name={name} "
            f"version={version} now={document.version}"
        )

    def _read(self, name: str) -> tuple[Document, Marks]:
        path = self._path(name)
        # What this process heard of elsewhere must not be older in what it reads here.
        self._session.call("sync", lambda c: c.sync_async(path))
        try:
            data, stat = self._session.call(f"read {name}", lambda c: c.get_async(path))
        except NoNodeError:
            return Document(b"", 0), ()
        if not data:
            return Document(b"", 0), ()  # A node on the way to others.
        value, marks = split_marks(data)
        if not marks:
            raise CorruptDataError("a document was set by another program.", url=path)
        return Document(value, stat.version + 1), marks

    def is_current(self, name: str, version: int) -> bool:
        """See ``PropertyStore``."""
        return self._leases.version(self._path(name)) == version

    def settle(self, name: str, version: int) -> None:
        """See ``PropertyStore``."""
        self._leases.settle(self._path(name), version)

    def list(self, prefix: str) -> Sequence[str]:
        """See ``PropertyStore``."""
        names = self._children(self._path(prefix) if prefix else self._root)
        return sorted(
            f"{prefix}/{name}" if prefix else name for name in names if not name.startswith("_")
        )

    def delete(self, name: str) -> None:
        """See ``PropertyStore``."""
        self._delete_tree(self._path(name))

    def watch(self, name: str, tell: Callable[[Document], None]) -> Watch:
        """See ``PropertyStore``."""
        return _ZooKeeperWatch(self, self._session, name, self._path(name), tell)

    def claim(self, name: str) -> Lock:
        """See ``PropertyStore``."""
        path = f"{self._root}/_claims/{check_key(name)}"
        owner = f"{socket.gethostname()} {os.getpid()} {new_mark()}".encode()
        epochs: list[int] = []

        def ask(client: KazooClient) -> Any:
            # Of the session in which it is asked: one that dies while we wait holds nothing for us.
            epochs.append(self._session.epoch)
            return client.create_async(path, owner, ephemeral=True, makepath=True)

        conflict = ConflictError(f"another living process holds this name. name={name}")
        # One thread at a time, or two would both find a claim that is not entered yet.
        with self._session.claiming:
            held = self._session.held.get(path)
            if held is not None and held.is_held:
                raise conflict
            try:
                if self._session.call_once(f"claim {name}", ask) is UNKNOWN:
                    raise NodeExistsError
            except NodeExistsError as error:
                if not self._is_left_over(path):
                    raise conflict from error
            except NoNodeError as error:
                raise UnavailableError(
                    f"ZooKeeper lost the claim; try again. name={name}"
                ) from error
            claim = _ZooKeeperClaim(self._session, path, epochs[-1])
            self._session.held[path] = claim
            return claim

    def _is_left_over(self, path: str) -> bool:
        """Whether a claim is of our own session, which nobody here holds: its answer was lost."""
        try:
            _, stat = self._session.call("look at a claim", lambda c: c.get_async(path))
        except NoNodeError:
            return False
        return bool(stat.ephemeralOwner == self._session.id)

    def holders(self, prefix: str) -> Sequence[str]:
        """See ``PropertyStore``."""
        names = self._children(f"{self._root}/_claims/{check_key(prefix)}")
        return sorted(f"{prefix}/{name}" for name in names)

    def delete_all(self) -> None:
        """See ``PropertyStore``."""
        self._delete_tree(self._root)

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_key(name)}"

    def _children(self, path: str) -> Sequence[str]:
        try:
            self._session.call("sync", lambda c: c.sync_async(path))
            found = self._session.call("list", lambda c: c.get_children_async(path))
        except NoNodeError:
            return ()
        return tuple(found)

    def _delete_tree(self, path: str) -> None:
        for _ in range(_DELETE_TRIES):
            for name in self._children(path):
                self._delete_tree(f"{path}/{name}")
            try:
                self._session.call("delete", lambda c: c.delete_async(path))
            except NoNodeError:
                return
            except NotEmptyError:
                continue  # Somebody was at work here; once more.
            return
        raise UnavailableError(f"others keep writing what is to be deleted. path={path}")


def _leases_of(session: ZooKeeperSession) -> Leases:
    """The leases of a session, which all stores of this process share."""

    def version_of(path: str, changed: Callable[[object], None]) -> int:
        # Without it a server that lags behind could renew the lease of an old version.
        session.call("sync", lambda c: c.sync_async(path))
        stat = session.call("look at a document", lambda c: c.exists_async(path, changed))
        return 0 if stat is None or not stat.data_length else int(stat.version) + 1

    return session.shared(lambda: Leases(session, version_of))


class _ZooKeeperClaim(Lock):
    def __init__(self, session: ZooKeeperSession, path: str, epoch: int) -> None:
        self._session = session
        self._path = path
        self._epoch = epoch
        self._is_closed = False

    @property
    def is_held(self) -> bool:
        return not self._is_closed and self._session.is_ours(self._epoch)

    def close(self) -> None:
        # Deleted first, and only then free for another thread of this process.
        with self._session.claiming:
            if self._is_closed:
                return
            self._is_closed = True
            if self._session.is_ours(self._epoch):
                self._delete()
            if self._session.held.get(self._path) is self:
                del self._session.held[self._path]

    def _delete(self) -> None:
        def ask(client: KazooClient) -> Any:
            # Asked again once there is a connection: in another session the node is another's.
            if not self._session.is_ours(self._epoch):
                raise NoNodeError
            return client.delete_async(self._path)

        try:
            self._session.call_once("give a claim back", ask)
        except NoNodeError:
            pass
        except FilestreamError as error:
            logger.warning("a claim ends with the session only: %s %s", self._path, error)


class _ZooKeeperWatch(Watch):
    """Starts a thread, ``filestream-watch-<name>``, which ``close`` joins.

    A watch of ZooKeeper fires once, and may be lost with its session; so this one reads the document
    again whenever the watch fires, the connection changes, and every few seconds besides.
    """

    _LOOK_S: Final = 5.0

    def __init__(
        self,
        store: ZooKeeperPropertyStore,
        session: ZooKeeperSession,
        name: str,
        path: str,
        tell: Callable[[Document], None],
    ) -> None:
        self._store = store
        self._session = session
        self._name = name
        self._path = path
        self._tell = tell
        self._is_closed = False
        self._look = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"filestream-watch-{name}", daemon=True
        )
        session.on_change(self._look.set)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._session.off_change(self._look.set)
        self._look.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        told: Document | None = None
        while not (self._is_closed or self._session.is_closed):
            self._look.clear()
            try:
                # The watch first, then the value: a change in between is seen by both.
                self._session.call("watch", lambda c: c.exists_async(self._path, self._fired))
                document = self._store.get(self._name)
                if document != told and not self._is_closed:
                    told = document
                    self._tell(document)
            except (FilestreamError, KazooException) as error:
                logger.warning("cannot look at %s, trying again: %s", self._name, error)
            except Exception:
                logger.exception("whoever watches %s failed", self._name)
            self._look.wait(self._LOOK_S)

    def _fired(self, event: object) -> None:
        del event
        self._look.set()
