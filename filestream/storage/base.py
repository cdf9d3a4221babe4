"""What a place for bytes promises; every backend keeps it, ``filestream.testing`` proves it.

A storage holds files under POSIX keys (``a/b/c``) relative to its root. The contract is small on
purpose: exclusive create, append while the creator lives, sync, whole-file put-if-absent, range
read, list, delete. No rename, no truncation and no append to a file that exists: no two stores
agree on them.

Stores differ in three things, and say so: whether files grow (``Storage.can_append``), whether a
name can be held until its process dies (``LockingStorage``), and whether a file can be replaced on
condition that nobody else did (``ReplacingStorage``).

Rule: backends import this file and never each other; only ``open.py`` knows them all. Errors of
the operating system are translated in the backend that met them.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType, TracebackType
from typing import Final, Self

from filestream.errors import FencedError, InvalidRequestError

__all__ = [
    "JOURNAL_SURVIVES",
    "Appender",
    "Entry",
    "ForkGuard",
    "Lock",
    "LockingStorage",
    "ReplacingStorage",
    "Storage",
    "Waker",
    "check_key",
]

# Of the level "journal", which is the same wherever files are put whole.
JOURNAL_SURVIVES: Final = (
    "a power cut of the writer's machine, but not the loss of its disk before the events are in the "
    "store: an append returns after the sync of a local journal"
)
_KEY_SIZE_MAX: Final = 4096
_NAME_SIZE_MAX: Final = 255


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One name below a prefix."""

    name: str
    is_directory: bool


@lru_cache(maxsize=4096)
def check_key(key: str) -> str:
    """The key itself, when it names something below the root and nothing else.

    Raises:
        InvalidRequestError: the key is absolute, climbs out, or holds what no file name may hold.
    """
    if len(key) > _KEY_SIZE_MAX or "\0" in key or "\\" in key:
        raise InvalidRequestError(f"key is no relative path. key={key!r:.200}")
    for name in key.split("/"):
        if name in ("", ".", "..") or len(name) > _NAME_SIZE_MAX:
            raise InvalidRequestError(f"key is no relative path. key={key!r:.200}")
    return key


class _Closing:
    """``with`` closes; closing twice is fine."""

    def close(self) -> None:
        """Give up what is held; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ForkGuard:
    """For clients whose threads do not live through a fork, and hang for ever in the child.

    Args:
        what: the client is one of.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_used = False
        self._is_lost = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def use(self) -> None:
        """To be called before each use.

        Raises:
            FencedError: in a child of a process that had used it.
        """
        if self._is_lost:
            raise FencedError(
                f"this process was forked from one that had used {self._what}, whose client does "
                "not live through a fork: start processes by 'spawn' or 'forkserver', or open "
                "streams after the fork only"
            )
        self._is_used = True

    def _after_fork(self) -> None:
        self._is_lost = self._is_used


class Appender(_Closing, ABC):
    """The only way to add bytes to one file, held by the process that created it."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Add bytes; readers of other processes may see them from now on.

        Raises:
            UnavailableError: some of the bytes, or none, were written. Give the file up.
        """

    @abstractmethod
    def sync(self) -> None:
        """Return once every byte written so far survives a power cut.

        Raises:
            UnavailableError: the state is unknown. Never sync this file again: the next call
                may succeed although the bytes are gone. Give the file up.
        """

    def write_and_sync(self, data: bytes) -> None:
        """``write`` and ``sync`` in one step, where the system can fuse them.

        Raises:
            UnavailableError: as ``write`` and ``sync``.
        """
        self.write(data)
        self.sync()


class Lock(_Closing, ABC):
    """A name held by this process until ``close`` or its death; others get ``ConflictError``."""

    @property
    @abstractmethod
    def is_held(self) -> bool:
        """Whether it still is: not closed, and not lost with a session that holds it for us."""


class Waker(_Closing, ABC):
    """Tells that something below the watched directories changed; a hint, never a proof."""

    @abstractmethod
    def watch(self, key: str) -> bool:
        """Also watch this directory; False when it cannot be watched (any more)."""

    @abstractmethod
    def wait(self, timeout_s: float) -> Mapping[str, bool]:
        """Block until something changed, or the time ran out (nothing is returned).

        Returns:
            For each watched directory in which something changed, whether names changed in it.
        """

    @abstractmethod
    def fileno(self) -> int:
        """A file descriptor that is readable when something changed, for event loops."""


class Storage(_Closing, ABC):
    """A root for files. Safe to use from many threads; small enough to pickle.

    Attributes:
        url: the root, such as ``file:///data/clicks``; for people and errors.
        is_durable: whether ``sync`` and ``put_if_absent`` survive a power cut of the machine.
        can_append: whether files grow under their creator. Where they do not, there is no
            ``create``; a file is put whole, and never changes as long as it is there.
        reads_open_files: whether others can read a file before it is closed.
        fences: whether ``fence`` stops a creator that is taken for dead and is not.
        levels: what an event may be acknowledged after, the usual one first, and what it survives
            then; for people.
    """

    url: str
    is_durable: bool
    can_append: bool = True
    reads_open_files: bool = True
    fences: bool = False
    levels: Mapping[str, str] = MappingProxyType(
        {
            "disk": "a power cut: an append returns after the sync",
            "os": "the death of the writing process, not of the machine",
            "memory": "nothing: an append returns before the event is written",
        }
    )

    def url_of(self, key: str) -> str:
        """The URL of a key, for people and errors."""
        return f"{self.url}/{key}" if key else self.url

    @abstractmethod
    def create(self, key: str, *, durable_name: bool = True) -> Appender:
        """Create a file exclusively, with the directories above it.

        Args:
            key: of the new file.
            durable_name: the name itself survives a power cut when this returns.

        Raises:
            ConflictError: the file exists.
            UnavailableError: the store failed.
            InvalidRequestError: files do not grow here, see ``can_append``.
        """

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> None:
        """Publish a whole file; it is visible with all its bytes or not at all, and durable.

        A file with the very same bytes may count as this one: an answer that was lost is resolved
        so. Whoever must know that it was he puts something random into it.

        Raises:
            ConflictError: the file exists with other bytes; it was not touched.
            UnavailableError: the store failed; the file may exist now.
        """

    @abstractmethod
    def read(self, key: str, position: int, size: int) -> bytes:
        """At most ``size`` bytes from ``position``; fewer only where the file ends now.

        Raises:
            NotFoundError: there is no such file.
            UnavailableError: the store failed.
        """

    @abstractmethod
    def size(self, key: str) -> int:
        """Size of a file in bytes, as far as the store knows it now.

        Raises:
            NotFoundError: there is no such file.
        """

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Whether a file (not a directory) has this key."""

    @abstractmethod
    def list(self, prefix: str) -> Sequence[Entry]:
        """Names directly below a directory, in no order; none when there is no directory."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a file; fine when there is none."""

    @abstractmethod
    def delete_tree(self, prefix: str) -> None:
        """Remove a directory with all below it; fine when there is none. Not atomic."""

    def remove_if_empty(self, prefix: str) -> None:
        """Remove a directory that holds nothing; for stores that know empty directories."""

    def fence(self, key: str) -> None:
        """Return once nobody can add to this file any more; its creator gets errors from now on.

        Does nothing where a name that is locked proves as much, or where files do not grow; and
        nothing when there is no such file.

        Raises:
            UnavailableError: it could not be made sure.
        """
        del key

    def waker(self) -> Waker | None:
        """A waker, or None where changes can only be polled for."""
        return None


class LockingStorage(Storage):
    """A storage in which a name can be held, and is free when its holder's process is dead."""

    @abstractmethod
    def lock(self, key: str) -> Lock:
        """Hold a name exclusively among all processes of this storage.

        Raises:
            ConflictError: another holder lives.
        """

    @abstractmethod
    def is_locked(self, key: str) -> bool:
        """Whether somebody, also this process, holds a name; nobody is disturbed by the question."""


class ReplacingStorage(Storage):
    """A storage whose files can be replaced if they are still the ones that were read.

    A tag names the bytes that a key had at a moment; it is the store's, and compared only.
    """

    @abstractmethod
    def get(self, key: str) -> tuple[bytes, str]:
        """A whole file, and the tag of these bytes.

        Raises:
            NotFoundError: there is no such file.
            UnavailableError: the store failed.
        """

    @abstractmethod
    def replace(self, key: str, data: bytes, tag: str) -> None:
        """Replace a file that still has this tag.

        Raises:
            ConflictError: it has another, or is gone; it was not touched.
            UnavailableError: the store failed; the file may be replaced.
        """

    @abstractmethod
    def is_unchanged(self, key: str, tag: str) -> bool:
        """Whether the file still has this tag; cheaper than ``get``."""
