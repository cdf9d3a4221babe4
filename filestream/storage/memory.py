"""Files in the memory of this process: for tests, and for ``memory://`` URLs."""

import threading
from collections.abc import Sequence
from types import MappingProxyType

from filestream.errors import ConflictError, NotFoundError
from filestream.storage.base import Appender, Entry, Lock, LockingStorage, check_key

__all__ = ["MemoryStorage"]


class _Shelf:
    """What all views of one memory storage share; ``mutex`` guards the rest."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.files: dict[str, bytearray] = {}
        self.locked: set[str] = set()


class MemoryStorage(LockingStorage):
    """A dictionary that keeps the promises of ``Storage``; gone with the process."""

    is_durable = False
    levels = MappingProxyType(
        dict.fromkeys(("disk", "os", "memory"), "nothing: the storage is gone with its process")
    )

    def __init__(self, url: str = "memory://") -> None:
        self.url = url
        self._shelf = _Shelf()
        self._prefix = ""

    def below(self, prefix: str) -> "MemoryStorage":
        """The same files, seen from a directory among them."""
        if not prefix:
            return self
        view = MemoryStorage(f"{self.url}/{check_key(prefix)}")
        view._shelf, view._prefix = self._shelf, f"{self._prefix}{prefix}/"
        return view

    def _place(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _start(self, prefix: str) -> str:
        return f"{self._place(prefix)}/" if prefix else self._prefix

    def create(self, key: str, *, durable_name: bool = True) -> Appender:
        """See ``Storage``."""
        del durable_name
        return _MemoryAppender(self._add(key, b""), self._shelf.mutex)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See ``Storage``."""
        self._add(key, data)

    def _add(self, key: str, data: bytes) -> bytearray:
        place = self._place(key)
        with self._shelf.mutex:
            if place in self._shelf.files:
                raise ConflictError(f"the file exists already. url={self.url_of(key)}")
            file = self._shelf.files[place] = bytearray(data)
            return file

    def _file(self, key: str) -> bytearray:
        file = self._shelf.files.get(self._place(key))
        if file is None:
            raise NotFoundError(f"there is no such file. url={self.url_of(key)}")
        return file

    def read(self, key: str, position: int, size: int) -> bytes:
        """See ``Storage``."""
        with self._shelf.mutex:
            return bytes(self._file(key)[position : position + size])

    def size(self, key: str) -> int:
        """See ``Storage``."""
        with self._shelf.mutex:
            return len(self._file(key))

    def exists(self, key: str) -> bool:
        """See ``Storage``."""
        return self._place(key) in self._shelf.files

    def list(self, prefix: str) -> Sequence[Entry]:
        """See ``Storage``."""
        start = self._start(prefix)
        with self._shelf.mutex:
            below = [key[len(start) :] for key in self._shelf.files if key.startswith(start)]
        return sorted({Entry(rest.split("/")[0], "/" in rest) for rest in below})

    def delete(self, key: str) -> None:
        """See ``Storage``."""
        with self._shelf.mutex:
            self._shelf.files.pop(self._place(key), None)

    def delete_tree(self, prefix: str) -> None:
        """See ``Storage``."""
        start = self._start(prefix)
        with self._shelf.mutex:
            for key in [key for key in self._shelf.files if key.startswith(start)]:
                del self._shelf.files[key]

    def lock(self, key: str) -> Lock:
        """See ``LockingStorage``."""
        place = self._place(key)
        with self._shelf.mutex:
            if place in self._shelf.locked:
                raise ConflictError(f"another holder has this name. url={self.url_of(key)}")
            self._shelf.locked.add(place)
            # As on a disk, a name that was ever locked can be listed.
            self._shelf.files.setdefault(place, bytearray())
        return _MemoryLock(self._shelf, place)

    def is_locked(self, key: str) -> bool:
        """See ``LockingStorage``."""
        return self._place(key) in self._shelf.locked

    def files(self) -> dict[str, bytes]:
        """A copy of everything, for tests that damage files."""
        with self._shelf.mutex:
            return {key: bytes(data) for key, data in self._shelf.files.items()}

    def replace(self, key: str, data: bytes) -> None:
        """Damage or mend a file behind everybody's back; no part of the contract."""
        with self._shelf.mutex:
            self._shelf.files[self._place(key)] = bytearray(data)


class _MemoryAppender(Appender):
    def __init__(self, file: bytearray, mutex: threading.Lock) -> None:
        self._file = file
        self._mutex = mutex

    def write(self, data: bytes) -> None:
        with self._mutex:
            self._file += data

    def sync(self) -> None:
        """Nothing to do: memory is all there is."""


class _MemoryLock(Lock):
    def __init__(self, shelf: _Shelf, place: str) -> None:
        self._shelf = shelf
        self._place: str | None = place

    @property
    def is_held(self) -> bool:
        return self._place is not None

    def close(self) -> None:
        if self._place is not None:
            place, self._place = self._place, None
            with self._shelf.mutex:
                self._shelf.locked.discard(place)
