"""Threads for commits that are under way; started when first needed, joined by ``close``."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

__all__ = ["Flights"]

_THREADS_MAX: Final = 64


class Flights:
    """Args:
    name: of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: ThreadPoolExecutor | None = None
        self._changed = threading.Condition()
        self._in_air = 0

    def send(self, fly: Callable[[], None]) -> None:
        """Have it done by a thread, or by this one when there can be no thread any more."""
        with self._changed:
            self._in_air += 1
        try:
            if self._threads is None:
                # No more than fly at once are ever sent, so none waits for a thread.
                self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix=self._name)
            self._threads.submit(self._fly, fly)
        except RuntimeError:
            self._fly(fly)

    def wait(self) -> None:
        """Return when nothing is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_air)

    def close(self) -> None:
        """Wait for what is under way, and end the threads; may be called twice."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()

    def forget_parent(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._threads = None
        self._changed = threading.Condition()
        self._in_air = 0

    def _fly(self, fly: Callable[[], None]) -> None:
        try:
            fly()
        finally:
            with self._changed:
                self._in_air -= 1
                self._changed.notify_all()
