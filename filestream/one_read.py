"""Reads a file that never changes with as few requests as can be: the first brings all of a small one.

Only what one reader asks of one file; what it has is forgotten with it.
"""

from typing import Final

from filestream.storage.base import Storage

__all__ = ["OneRead"]

_SIZE_BYTES: Final = 1 << 20


class OneRead:
    """What a ``SegmentReader`` asks of a storage, for a file that was put whole.

    Args:
        storage: where it is.
        key: of the file; other keys are passed through.
    """

    def __init__(self, storage: Storage, key: str) -> None:
        self._storage = storage
        self._key = key
        self._first: bytes | None = None
        self._size = -1

    @property
    def held_size(self) -> int:
        """Bytes that are kept."""
        return len(self._first or b"")

    def url_of(self, key: str) -> str:
        """See ``Storage``."""
        return self._storage.url_of(key)

    def read(self, key: str, position: int, size: int) -> bytes:
        """See ``Storage``."""
        if key != self._key:
            return self._storage.read(key, position, size)
        first = self._begin()
        if position + size <= len(first) or len(first) == self._size:
            return first[position : position + size]
        return self._storage.read(key, position, size)

    def size(self, key: str) -> int:
        """See ``Storage``."""
        if key != self._key:
            return self._storage.size(key)
        self._begin()
        if self._size < 0:
            self._size = self._storage.size(key)
        return self._size

    def exists(self, key: str) -> bool:
        """See ``Storage``."""
        return self._storage.exists(key)

    def _begin(self) -> bytes:
        if self._first is None:
            self._first = self._storage.read(self._key, 0, _SIZE_BYTES)
            if len(self._first) < _SIZE_BYTES:
                self._size = len(self._first)
        return self._first
