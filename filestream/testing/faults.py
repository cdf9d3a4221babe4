"""Storages that fail on demand: any call may raise, and the power may go at any moment.

``FaultyStorage`` keeps, beside what readers see, what a power cut would leave: of each file the
bytes that were synced, of the names those that were made durable. So a test can stop after every
single call and look at what is left.
"""

from collections.abc import Callable, Sequence

from filestream.errors import UnavailableError
from filestream.storage.base import Appender, Entry, Lock, LockingStorage
from filestream.storage.memory import MemoryStorage

__all__ = ["FaultyStorage", "PowerCut"]


class PowerCut(BaseException):
    """The machine is gone: nothing may catch it and go on."""


class FaultyStorage(LockingStorage):
    """Files in memory, with faults.

    Attributes:
        calls: storage calls that change something, so far.
        before_call: called with the number and name of each such call before it happens; raise
            ``UnavailableError`` there to make it fail, ``PowerCut`` to end it all.
        short_writes: bytes of the next write that are written before it fails.
    """

    is_durable = True

    def __init__(self, inner: MemoryStorage | None = None) -> None:
        self.url = "memory://faulty"
        self.inner = inner or MemoryStorage("memory://faulty")
        self.calls = 0
        self.before_call: Callable[[int, str], None] = lambda _number, _name: None
        self.short_writes: int | None = None
        # Synced size of each file whose name is durable.
        self._durable: dict[str, int] = {key: len(data) for key, data in self.inner.files().items()}
        self.syncs = 0

    def after_power_cut(self, *, torn: bool = False) -> MemoryStorage:
        """What is left: synced bytes, and with ``torn`` half of those that were not synced."""
        left = MemoryStorage("memory://left")
        for key, data in self.inner.files().items():
            if key in self._durable:
                size = self._durable[key]
                if torn:
                    size += (len(data) - size) // 2
                left.put_if_absent(key, data[:size])
        return left

    def call(self, name: str) -> None:
        """Count a call, and let the test decide about it."""
        self.calls += 1
        self.before_call(self.calls, name)

    def durable(self, key: str, size: int) -> None:
        """These bytes of a file survive a power cut."""
        self._durable[key] = size

    def create(self, key: str, *, durable_name: bool = True) -> Appender:
        """See ``Storage``."""
        self.call("create")
        appender = self.inner.create(key)
        if durable_name:
            self.durable(key, 0)
        return _FaultyAppender(self, key, appender)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See ``Storage``."""
        self.call("put")
        self.inner.put_if_absent(key, data)
        self.durable(key, len(data))

    def read(self, key: str, position: int, size: int) -> bytes:
        """See ``Storage``."""
        return self.inner.read(key, position, size)

    def size(self, key: str) -> int:
        """See ``Storage``."""
        return self.inner.size(key)

    def exists(self, key: str) -> bool:
        """See ``Storage``."""
        return self.inner.exists(key)

    def list(self, prefix: str) -> Sequence[Entry]:
        """See ``Storage``."""
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        """See ``Storage``."""
        self.call("delete")
        self.inner.delete(key)
        self._durable.pop(key, None)

    def delete_tree(self, prefix: str) -> None:
        """See ``Storage``."""
        self.call("delete_tree")
        self.inner.delete_tree(prefix)

    def lock(self, key: str) -> Lock:
        """See ``Storage``."""
        return self.inner.lock(key)

    def is_locked(self, key: str) -> bool:
        """See ``Storage``."""
        return self.inner.is_locked(key)


class _FaultyAppender(Appender):
    def __init__(self, storage: FaultyStorage, key: str, inner: Appender) -> None:
        self._storage = storage
        self._key = key
        self._inner = inner
        self._has_failed = False

    def write(self, data: bytes) -> None:
        self._check()
        self._storage.call("write")
        short, self._storage.short_writes = self._storage.short_writes, None
        if short is not None:
            self._inner.write(data[:short])
            self._has_failed = True
            raise UnavailableError("the disk is full, by order of the test")
        self._inner.write(data)

    def sync(self) -> None:
        self._check()
        try:
            self._storage.call("sync")
        except UnavailableError:
            self._has_failed = True
            raise
        self._storage.syncs += 1
        self._storage.durable(self._key, self._storage.inner.size(self._key))

    def _check(self) -> None:
        assert not self._has_failed, "a file was written or synced again after it had failed"
