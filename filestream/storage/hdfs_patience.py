"""Calls that may never return, given up after a time.

``hdfs-native`` waits for ever for the answer of a DataNode that died while it synced (seen with 0.14.7).
So its calls run on threads of this room, and a caller waits for them as long as he likes. A call that
was given up keeps its thread, a daemon, until it returns, if it ever does.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, NoReturn, TypeVar

__all__ = ["Patience"]

T = TypeVar("T")

_IDLE_MAX: Final = 32


def _done() -> NoReturn:
    raise AssertionError("a call is done once")


class _Call(Generic[T]):
    __slots__ = ("action", "error", "is_done", "result")

    def __init__(self, action: Callable[[], T]) -> None:
        self.action = action
        self.result: T | None = None
        self.error: BaseException | None = None
        # Held until it is done: waiting for a lock is the cheapest wait there is.
        self.is_done = threading.Lock()
        self.is_done.acquire()


class _Runner:
    """One thread, which does one call at a time."""

    def __init__(self, idle: "deque[_Runner]") -> None:
        self._idle = idle
        self._given: _Call[object] | None = None
        self._wake = threading.Lock()
        self._wake.acquire()
        threading.Thread(target=self._run, name="filestream-hdfs", daemon=True).start()

    def give(self, call: "_Call[object] | None") -> None:
        self._given = call
        self._wake.release()

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            call, self._given = self._given, None
            if call is None:
                return
            try:
                call.result = call.action()
            except BaseException as error:
                call.error = error
            # What it held is let go of before anybody hears that it is done: that may take the
            # library a while, and must not go on while the interpreter ends.
            call.action = _done
            call.is_done.release()
            del call
            if len(self._idle) >= _IDLE_MAX:
                return
            self._idle.append(self)


class Patience:
    """Args:
    limit_s: how long a call may take.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s

    def later(self, action: Callable[[], object]) -> threading.Lock:
        """Do it soon; the lock that is returned is free when it is done."""
        call = _Call(action)
        self._give(call)
        return call.is_done

    def call(self, action: Callable[[], T]) -> T:
        """Do it, and wait for it.

        Raises:
            TimeoutError: it takes too long; it may still have an effect.
        """
        call = _Call(action)
        self._give(call)
        if not call.is_done.acquire(timeout=self.limit_s):
            raise TimeoutError(f"timed out: no answer in {self.limit_s:.0f} s")
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]

    @staticmethod
    def _give(call: "_Call[T]") -> None:
        try:
            runner = _idle.pop()
        except IndexError:
            runner = _Runner(_idle)
        runner.give(call)  # type: ignore[arg-type]


# The threads of all clients of the process that have nothing to do; a forked child has none.
_idle: Final[deque[_Runner]] = deque()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)
