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

    def send(self, fly: Callable[[], None]) -> None:
        """Have it done once, by a thread, or by this one when there can be no thread any more."""
        is_taken = threading.Lock()

        def once() -> None:
            # An executor that cannot start a thread has put the work in its queue all the same.
            if is_taken.acquire(blocking=False):
                fly()

        try:
            if self._threads is None:
                # No more than fly at once are ever sent, so none waits for a thread.
                self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix=self._name)
            self._threads.submit(once)
        except RuntimeError:
            once()

    def close(self) -> None:
        """Wait for what is under way, and end the threads; may be called twice."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()

    def forget_parent(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._threads = None
