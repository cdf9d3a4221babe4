"""Many threads bring work, one of them does it for all. Knows nothing of files.

The seed algorithm: put the work in a queue; whoever finds nobody leading becomes the leader, takes
the whole queue, performs it in one go (one write, one sync), and marks all of it done. Losers
are parked on a lock of their own; they do not spin (a spinning loser takes the interpreter lock
from the winner) and do not block on a shared flag (Python's locks are unfair, so batches
would stay at one). Before the leader wakes the threads it has served, it wakes one waiter of the
next batch as the new leader, so that the disk is never idle while there is work.

Work that nobody waits for (``post``) is led by a background thread that its owner lends.

Where the work is slow and may overlap, ``perform`` only begins it: it answers True, the next leader
takes over at once, and ``complete`` is called by whoever has finished the batch.

Rule: whatever happens to the leader, also an interrupt at any point, every piece of work that was
taken gets an outcome, and leadership is handed on or given up. Nobody hangs.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from filestream.clock import Clock, SystemClock
from filestream.errors import FilestreamError, UnavailableError

__all__ = ["Drain", "Work"]


class Work:
    """One piece of work and its outcome; subclasses say what is to be done.

    Attributes:
        size: what it counts against the limit of a batch, in bytes.
        is_urgent: the batch that holds it is not put off.
        error: why it failed; None while it has not.
    """

    __slots__ = ("error", "future", "is_begun", "is_done", "is_urgent", "parked", "size")

    def __init__(self, size: int = 0, *, is_urgent: bool = False) -> None:
        self.size = size
        self.is_urgent = is_urgent
        self.error: Exception | None = None
        # Under way: ``complete`` will say how it ended.
        self.is_begun = False
        self.is_done = False
        # The thread that waits is blocked on it; None when nobody waits.
        self.parked: threading.Lock | None = None
        self.future: asyncio.Future[Work] | None = None


class _Background:
    """Stands for the background thread as leader."""


_BACKGROUND: Final = _Background()


class Drain:
    """A queue with leader hand-off.

    Args:
        perform: does the work of a batch; called by one thread at a time. It sets ``error`` on
            pieces that failed; what it raises fails all of them. When it answers True the work is
            only begun, and ``complete`` will be called, or was called already.
        batch_size_max: bytes after which a batch is closed; it holds one piece of work at least.
        wake_background: called when work waits that only the background thread can lead.
        pause_s: how long the next batch should be put off to grow; None never puts off.
        clock: to wait by.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[Work]], bool],
        *,
        batch_size_max: int,
        wake_background: Callable[[], None],
        pause_s: Callable[[], float] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._perform = perform
        self._batch_size_max = batch_size_max
        self._wake_background = wake_background
        self._pause_s = pause_s
        self._clock = clock or SystemClock()
        # Guards all below. Held for a few instructions only, never over a call of perform:
        # it costs nothing beside a sync, and a lock-free queue loses wake-ups too easily.
        self._mutex = threading.Lock()
        self._grown = threading.Condition(self._mutex)
        self._queue: deque[Work] = deque()
        self._queued_size = 0
        self._leader: Work | _Background | None = None
        self._batch: list[Work] = []
        # Done, and not yet told so: kept here so that an interrupt cannot lose it.
        self._served: deque[Work] = deque()
        self._closed: FilestreamError | None = None

    def run(self, work: Work) -> None:
        """Have the work done, by this thread or another; returns when it is.

        Raises:
            FilestreamError: what ``perform`` said of it, or the reason of ``close``.
        """
        try:
            with self._mutex:
                self._check_open()
                leads = self._leader is None
                if leads:
                    self._leader = work
                else:
                    work.parked = threading.Lock()
                    work.parked.acquire()
                self._queue.append(work)
                self._queued_size += work.size
                if self._pause_s is not None and self._is_ripe(work):
                    self._grown.notify()
            if work.parked is not None:
                work.parked.acquire()
                leads = not work.is_done
            if leads:
                self._lead(work)
        except BaseException:
            self._abandon(work)
            raise
        if work.error is not None:
            raise work.error

    def post(self, work: Work) -> None:
        """Leave work to be done soon; nobody waits for it here.

        Raises:
            FilestreamError: the reason of ``close``.
        """
        with self._mutex:
            self._check_open()
            self._queue.append(work)
            self._queued_size += work.size
            if self._pause_s is not None and self._is_ripe(work):
                self._grown.notify()
            is_needed = self._leader is None
            if is_needed:
                self._leader = _BACKGROUND
        if is_needed:
            self._wake_background()

    def extend_last(self, extend: Callable[[Work], int]) -> bool:
        """Let ``extend`` add to the newest work that was not taken yet.

        Args:
            extend: returns by how many bytes the work grew; negative when it cannot grow.

        Returns:
            False when there is no such work; post a new one.
        """
        with self._mutex:
            self._check_open()
            if not self._queue:
                return False
            grown = extend(self._queue[-1])
            self._queued_size += max(grown, 0)
            if self._pause_s is not None and self._is_ripe(self._queue[-1]):
                self._grown.notify()
            return grown >= 0

    @property
    def queued_size(self) -> int:
        """Bytes of work that wait."""
        return self._queued_size

    @property
    def needs_background(self) -> bool:
        """Whether the background thread was made the leader."""
        return self._leader is _BACKGROUND

    def lead_in_background(self) -> None:
        """Perform batches until none is left or a waiting thread takes over."""
        while self._leader is _BACKGROUND:
            self._lead_once()

    def close(self, reason: FilestreamError) -> None:
        """Refuse new work; what is queued is still done by its waiters."""
        with self._mutex:
            if self._closed is None:
                self._closed = reason

    def forget_parent(self, reason: FilestreamError) -> None:
        """After a fork, in the child: the locks and the work are the parent's; start empty."""
        self._mutex = threading.Lock()
        self._grown = threading.Condition(self._mutex)
        self._queue.clear()
        self._queued_size = 0
        self._leader = None
        self._batch = []
        self._closed = reason

    def _check_open(self) -> None:
        if self._closed is not None:
            kind = type(self._closed)
            raise kind(str(self._closed))

    def _lead(self, work: Work) -> None:
        """Lead until the own work is done; a full queue before it may take several batches."""
        while not work.is_done:
            if work.is_begun:
                assert work.parked is not None
                work.parked.acquire()
            else:
                self._lead_once()

    def _is_ripe(self, work: Work) -> bool:
        """Whether the queue need not be put off any more, now that this has come."""
        return work.is_urgent or self._queued_size >= self._batch_size_max

    def _put_off(self, pause_s: Callable[[], float]) -> None:
        """Let the queue grow while it pays; the mutex is not held."""
        with self._grown:
            while not any(map(self._is_ripe, self._queue)):
                left_s = pause_s()
                if left_s <= 0:
                    return
                self._clock.wait(self._grown, left_s)

    def _lead_once(self) -> None:
        if self._pause_s is not None:
            self._put_off(self._pause_s)
        with self._mutex:
            batch = self._batch
            size = 0
            while self._queue and (not batch or size + self._queue[0].size <= self._batch_size_max):
                # In the batch before it leaves the queue: an interrupt in between loses nothing.
                batch.append(self._queue[0])
                size += self._queue.popleft().size
            self._queued_size -= size
        is_begun = False
        try:
            if batch:
                is_begun = self._perform(batch)
        except Exception as error:
            _fail(batch, error)
        except BaseException as error:
            _fail(batch, error)
            self._finish_batch()
            raise
        if is_begun:
            self._leave_batch()
        else:
            self._finish_batch()

    def complete(self, batch: Sequence[Work]) -> None:
        """A batch that was begun is done; called by any thread, once."""
        with self._mutex:
            self._served += batch
            for work in batch:
                work.is_done = True
        self._wake_served()

    def _leave_batch(self) -> None:
        """The batch is under way: hand over, and wait like everybody else."""
        with self._mutex:
            for work in self._batch:
                if work is self._leader and not work.is_done and work.parked is None:
                    work.parked = threading.Lock()
                    work.parked.acquire()
                work.is_begun = True
            self._batch = []
            self._hand_over()

    def _finish_batch(self) -> None:
        """Hand over, then tell those who were served; may be called again after an interrupt."""
        with self._mutex:
            for work in self._batch:
                work.is_done = True
            self._served += self._batch
            self._batch = []
            self._hand_over()
        self._wake_served()

    def _hand_over(self) -> None:
        """Choose who leads next, and wake it; the mutex is held."""
        current = self._leader
        if isinstance(current, Work) and not current.is_done and current in self._queue:
            return  # Its own work did not fit this batch: it goes on leading.
        self._leader = None
        for work in self._queue:
            if work.parked is not None:
                self._leader = work
                _release(work.parked)
                return
        if self._queue:
            self._leader = _BACKGROUND
            self._wake_background()

    def _wake_served(self) -> None:
        served = self._served
        if any(work.future is not None for work in list(served)):
            self._wake_tasks()
        while True:
            # Told first and forgotten then: after an interrupt it is told twice, not never. And
            # forgotten by name: the next leader may be doing the same, and what it has told must
            # not make this thread forget somebody else.
            try:
                work = served[0]
            except IndexError:
                return
            # Bare try: a context manager costs as much as the release itself.
            try:
                if work.parked is not None:
                    work.parked.release()
            except RuntimeError:
                pass  # Told already.
            try:  # noqa: SIM105
                served.remove(work)
            except ValueError:
                pass  # Forgotten already.

    def _wake_tasks(self) -> None:
        """One wake-up of each event loop for the whole batch."""
        loops: dict[asyncio.AbstractEventLoop, list[Work]] = {}
        for work in list(self._served):
            if work.future is not None:
                loops.setdefault(work.future.get_loop(), []).append(work)
        for loop, works in loops.items():
            # A loop that was closed in the meantime has nobody left to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, works)

    def _abandon(self, work: Work) -> None:
        """The thread of ``work`` was interrupted or failed: leave no trace that could block."""
        with self._mutex:
            if work in self._queue:
                self._queue.remove(work)
                self._queued_size -= work.size
            leads = self._leader is work
            if leads:
                _fail(self._batch, UnavailableError("the thread that wrote was interrupted."))
                work.is_done = True
        if leads:
            self._finish_batch()
        else:
            self._wake_served()

    def fail_background(self, error: FilestreamError) -> None:
        """There is no background thread: what only it could have led has failed."""
        with self._mutex:
            if self._leader is not _BACKGROUND:
                return
            stranded = [work for work in self._queue if work.parked is None]
            for work in stranded:
                self._queue.remove(work)
                self._queued_size -= work.size
            self._batch += stranded
            _fail(stranded, error)
        self._finish_batch()


def _release(parked: threading.Lock) -> None:
    """Wake whoever is parked there; told twice is fine."""
    with contextlib.suppress(RuntimeError):
        parked.release()


def _resolve(works: Sequence[Work]) -> None:
    """In the event loop: hand each task its outcome."""
    for work in works:
        assert work.future is not None
        if work.future.done():
            continue  # Cancelled, or told already.
        if work.error is not None:
            work.future.set_exception(work.error)
        else:
            work.future.set_result(work)


def _fail(batch: Sequence[Work], error: BaseException) -> None:
    for work in batch:
        if work.error is None and not work.is_done:
            # An own exception for each thread: a traceback must not be shared.
            if isinstance(error, FilestreamError):
                failure: Exception = type(error)(str(error))
            else:
                failure = UnavailableError(f"the writing thread failed: {error!r}")
            failure.__cause__ = error
            work.error = failure
