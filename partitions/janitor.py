"""Applies retention and ttl from time to time, in one process of many: whoever holds the claim.

The others stand by, and one of them goes on when the holder dies. Two at once would do no harm, only
the same work twice: removing what nobody can see may be done by anybody at any time.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, Self

from filestream.clock import Clock
from filestream.coordination.base import PropertyStore
from filestream.errors import ConflictError, FilestreamError, InvalidRequestError, NotFoundError
from filestream.partitions.retention import Removal
from filestream.storage.base import Lock
from filestream.units import parse_duration_ms

__all__ = ["Janitor"]

logger = logging.getLogger(__name__)

_CLAIM: Final = "janitor/0"
_EVERY_MS_MIN: Final = 100


class Janitor:
    """Starts a thread, ``filestream-janitor``, on ``start``; ``close`` joins it.

    Args:
        store: where the claim is held.
        clean: applies retention once.
        every: how often.
        tell: is called with what was removed, and once with nothing when this process becomes the
            one that cleans.
    """

    def __init__(
        self,
        store: PropertyStore,
        clean: Callable[[], Sequence[Removal]],
        *,
        clock: Clock,
        every: str | float,
        tell: Callable[[Sequence[Removal]], None] | None = None,
    ) -> None:
        every_ms = parse_duration_ms(every)
        if every_ms < _EVERY_MS_MIN:
            raise InvalidRequestError(f"every must be at least 100 ms. every={every!r:.50}")
        self._store = store
        self._clean = clean
        self._clock = clock
        self._every_s = every_ms / 1000
        self._tell = tell
        self._lock: Lock | None = None
        self._wake = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_elected(self) -> bool:
        """Whether this process is the one that cleans."""
        return self._lock is not None and self._lock.is_held

    def start(self) -> Self:
        """Go to work on a thread."""
        self._thread = threading.Thread(target=self.run, name="filestream-janitor", daemon=True)
        self._thread.start()
        return self

    def run(self) -> None:
        """Work on this thread until ``close``, or until the stream is deleted."""
        try:
            while not self._is_closed and self._round():
                with self._wake:
                    if not self._is_closed:
                        self._clock.wait(self._wake, self._every_s)
        finally:
            # Whatever ended it, another process can go on.
            if self._lock is not None:
                self._lock.close()

    def _round(self) -> bool:
        """Work once; False when there is nothing left to look after."""
        try:
            self.work()
        except NotFoundError as error:
            logger.info("the stream is gone, so is its janitor: %s", error)
            return False
        except FilestreamError as error:
            logger.warning("retention could not be applied, trying again: %s", error)
        except Exception:
            logger.exception("whoever listens to the janitor failed")
        return True

    def work(self) -> None:
        """One round: try to be the one, and clean if so.

        Raises:
            NotFoundError: the stream was deleted.
            UnavailableError: the store failed.
        """
        is_new = not self.is_elected
        if is_new:
            try:
                self._lock = self._store.claim(_CLAIM)
            except ConflictError:
                return
        removed = self._clean()
        if is_new and self._tell is not None:
            self._tell(())
        if removed and self._tell is not None:
            self._tell(removed)

    def forget(self) -> None:
        """In a forked child: the thread and the claim are the parent's."""
        self._is_closed = True
        if self._lock is not None:
            self._lock.close()

    def close(self) -> None:
        """Stop, and let another process go on; may be called twice."""
        with self._wake:
            self._is_closed = True
            self._wake.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()
