"""The thread of a writer: leads for work that nobody waits for, and rolls segments without traffic."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from filestream.clock import Clock
from filestream.errors import FilestreamError
from filestream.partitions.drain import Drain
from filestream.partitions.lane import Lane

__all__ = ["Background"]

logger = logging.getLogger(__name__)


class Background:
    """Started when first needed, joined by ``stop``.

    Args:
        name: of the thread.
        look: does what is due without traffic.

    Attributes:
        has_no_thread: none can be started.
    """

    def __init__(
        self, name: str, drain: Drain, lane: Lane, clock: Clock, look: Callable[[], None]
    ) -> None:
        self._name: Final = name
        self._drain = drain
        self._lane = lane
        self._clock = clock
        self._look = look
        # Guards all below and carries the thread's wake-ups.
        self._wake = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._is_over = False
        self.has_no_thread = False

    @property
    def is_there(self) -> bool:
        """Whether it was started, and is not known to have died."""
        return self._thread is not None

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """There is something to do; starts the thread if need be."""
        with self._wake:
            if not self.is_alive:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    logger.warning("no thread can be started, so segments roll late: %s", error)
                    self.has_no_thread = True
                    return
                self.has_no_thread = False
                self._thread = thread
            self._wake.notify_all()

    def stop(self) -> None:
        """End it, and return when it is over."""
        with self._wake:
            self._is_over = True
            self._wake.notify_all()
        thread = self._thread
        if thread is not None:
            thread.join()

    def forget_parent(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._wake = threading.Condition()
        self._thread = None
        self._is_over = True

    def _run(self) -> None:
        try:
            while self._lead_or_look():
                pass
        finally:
            # Whatever ended this thread: work that waits for it gets another one.
            with self._wake:
                self._thread = None
                if self._drain.needs_background:
                    self.wake()

    def _lead_or_look(self) -> bool:
        with self._wake:
            if not self._drain.needs_background:
                if self._is_over:
                    return False
                self._clock.wait(self._wake, self._lane.next_look_s())
        self._drain.lead_in_background()
        try:
            if self._lane.is_look_due():
                self._look()
        except FilestreamError as error:
            logger.warning("writer could not look after its segment: %s", error)
        return True
