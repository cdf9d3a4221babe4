"""One instance of a group: fetch, then commit or roll back.

What was fetched belongs to this instance until it commits, rolls back or dies. Before anything is
committed three questions are asked of one and the same document, in one compare-and-set: is this
instance still who it was, is the division still the one it read under, is what it was given still its
own. So a process that was stopped, replaced or cut off cannot commit what others have done since; a
lock alone could not say that.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Self, TypeVar

from filestream.clock import Clock
from filestream.consumers.batch import Batch
from filestream.consumers.hand_out import HandOut
from filestream.consumers.membership import AgainError, Membership
from filestream.errors import FencedError, FilestreamError, InvalidRequestError
from filestream.units import parse_duration_ms

__all__ = ["Consumer"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_EVENTS_MAX: Final = 1_000_000
_ROUND_S: Final = 1.0
# Where there is something to read that is others', a fetch may take so much longer.
_PATIENCE_S: Final = 1.0


class Consumer:
    """Not thread-safe; use it with ``with``, or close it. Made by ``Stream.consumer``."""

    def __init__(
        self,
        membership: Membership,
        hand_out: HandOut,
        *,
        clock: Clock,
        group: str,
        url: str,
    ) -> None:
        self._membership = membership
        self._hand_out = hand_out
        self._clock = clock
        self._url = url
        self._is_closed = False
        self._busy = threading.Lock()
        self._closing = threading.Event()
        # A fetch was cancelled while something was in hand: the next commit must not pass for good.
        self._was_cancelled = False
        self.group: Final = group

    @property
    def instance(self) -> int:
        """The number of this instance, from 0."""
        return self._membership.slot

    # -- the cycle of a batch ----------------------------------------------------------------

    def fetch(self, max_events: int = 1000, timeout: str | float = "1s") -> Batch:
        """The next events of this instance; empty when none came in time.

        May be called several times before ``commit``, which then covers all of it. After
        ``rollback``, or after a crash, the same events come again, first.

        Args:
            max_events: at most so many; fewer when their bodies take more than 64 MiB. A batch that
                comes again comes whole.
            timeout: how long to wait for the first of them (``"5s"``, or seconds; 0 looks once).

        Raises:
            FencedError: another process took over this instance, or the group was divided anew, and
                what is in hand can never be committed: roll back. The message says whether the next
                fetch goes on.
            CorruptDataError: damage in the stream or in the state of the group.
            NotFoundError: the stream or the group was removed.
            ConflictError: too much is in hand, or was given up: commit, or look at the dead letters.
            UnavailableError: the store of the group does not answer (which may take longer to find
                out than the timeout).
        """
        with self._alone():
            return self._fetch(max_events, timeout, threading.Event())

    def _fetch(self, max_events: int, timeout: str | float, stop: threading.Event) -> Batch:
        if type(max_events) is not int or not 1 <= max_events <= _EVENTS_MAX:
            raise InvalidRequestError(
                f"max_events must be 1 to {_EVENTS_MAX}. max_events={max_events!r:.50}"
            )
        until_s = self._clock.monotonic_s() + parse_duration_ms(timeout) / 1000
        is_last_look = False
        while not (stop.is_set() or self._closing.is_set()):
            try:
                batch = self._hand_out.take(max_events, until_s)
            except AgainError:
                if self._clock.monotonic_s() > until_s + _PATIENCE_S:
                    break
                continue
            if batch or is_last_look:
                return batch
            # The time may have passed in the caller's hands: before we say that there is nothing, we
            # look at everything.
            left_s = until_s - self._clock.monotonic_s()
            is_last_look = left_s <= 0
            self._hand_out.look(min(left_s, _ROUND_S))
        return Batch(())

    def commit(self) -> None:
        """What was fetched is processed; it never comes again, to nobody.

        Raises:
            FencedError: too late: it was given to another, or the stream was truncated. Nothing was
                committed: undo what you did with it. Rolled back already.
            UnavailableError: it may have been committed: roll back, and fetch to see. Do not commit
                again: if the first did count, the second says ``FencedError``.
        """
        with self._alone():
            was_cancelled, self._was_cancelled = self._was_cancelled, False
            if was_cancelled:
                self._hand_out.rollback()
                raise FencedError(
                    "a call was cancelled after these events were fetched, and all was rolled back: "
                    "undo what you did with them."
                )
            try:
                self._hand_out.commit()
            except FencedError:
                self._hand_out.rollback()
                raise

    def rollback(self) -> None:
        """What was fetched comes again with the next ``fetch``."""
        with self._alone():
            self._was_cancelled = False
            self._hand_out.rollback()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time: two would mix up what each has in hand."""
        if not self._busy.acquire(blocking=False):
            raise InvalidRequestError(
                "two threads use one consumer at a time: give each its own instance, or a lock"
            )
        try:
            if self._is_closed:
                raise InvalidRequestError(
                    "the consumer is closed: open another with stream.consumer()"
                )
            yield
        finally:
            self._busy.release()

    @contextmanager
    def transaction(self, max_events: int = 1000, timeout: str | float = "1s") -> Iterator[Batch]:
        """``fetch``, and at the end of the block ``commit``, or ``rollback`` after an exception."""
        batch = self.fetch(max_events, timeout)
        try:
            yield batch
            self.commit()
        except BaseException:
            self.rollback()
            raise

    def batches(
        self, max_events: int = 1000, timeout: str | float | None = None
    ) -> Iterator[Batch]:
        """Batches without end; each is committed when the loop comes back for the next.

        Leaving the loop, by ``break`` or by an exception, rolls the one in hand back.

        Args:
            max_events: of one batch.
            timeout: end when nothing came for so long; None never ends.
        """
        try:
            while batch := self._next_batch(max_events, timeout):
                yield batch
                self.commit()
        finally:
            if not self._is_closed:
                self.rollback()

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    # -- the same for tasks ------------------------------------------------------------------

    async def fetch_async(self, max_events: int = 1000, timeout: str | float = "1s") -> Batch:
        """``fetch`` for tasks: files and stores are waited for on a thread.

        When it is cancelled, it ends within a second, and everything in hand is rolled back.
        """
        stop = threading.Event()

        def fetch() -> Batch:
            with self._alone():
                return self._fetch(max_events, timeout, stop)

        had_some = self._was_cancelled or not self._hand_out.is_empty
        try:
            return await _on_thread(fetch, stop.set)
        except asyncio.CancelledError:
            # Nobody will see what it took.
            if not self._is_closed:
                self.rollback()
                self._was_cancelled = had_some
            raise

    async def commit_async(self) -> None:
        """``commit`` for tasks. When it is cancelled, it may have been committed all the same."""
        failures: list[BaseException] = []

        def commit() -> None:
            try:
                self.commit()
            except BaseException as error:
                failures.append(error)
                raise

        try:
            await _on_thread(commit)
        except asyncio.CancelledError:
            # The error was for somebody who is gone; the next commit must not pass as if all were well.
            self._was_cancelled = self._was_cancelled or bool(failures)
            raise

    async def rollback_async(self) -> None:
        """``rollback`` for tasks."""
        await _on_thread(self.rollback)

    @asynccontextmanager
    async def transaction_async(
        self, max_events: int = 1000, timeout: str | float = "1s"
    ) -> AsyncIterator[Batch]:
        """``transaction`` for tasks."""
        batch = await self.fetch_async(max_events, timeout)
        try:
            yield batch
            await self.commit_async()
        except BaseException:
            self.rollback()
            raise

    async def batches_async(
        self, max_events: int = 1000, timeout: str | float | None = None
    ) -> AsyncIterator[Batch]:
        """``batches`` for tasks."""
        try:
            while True:
                batch = await self.fetch_async(max_events, _ROUND_S if timeout is None else timeout)
                if batch:
                    yield batch
                    await self.commit_async()
                elif timeout is not None or self._is_closed:
                    return
        finally:
            if not self._is_closed:
                self.rollback()

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self.batches_async()

    def _next_batch(self, max_events: int, timeout: str | float | None) -> Batch:
        while True:
            batch = self.fetch(max_events, _ROUND_S if timeout is None else timeout)
            if batch or timeout is not None or self._is_closed:
                return batch

    # -- life --------------------------------------------------------------------------------

    def close(self) -> None:
        """Roll back, and leave the group; may be called twice."""
        self._closing.set()
        with self._busy:
            self._close()

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._hand_out.leave()
        except FilestreamError as error:
            # Others find out when our claim on the slot ends.
            logger.warning("left group %s without a word: %s", self.group, error)
        finally:
            self._hand_out.forget_reader()
            self._membership.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Consumer({self._url!r}, {self.group!r}, instance={self.instance})"


async def _on_thread(call: Callable[[], Result], stop: Callable[[], None] | None = None) -> Result:
    # Shielded: a cancelled task must not leave a thread that works on behind its back.
    working = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        while not working.done():
            # Cancelled once more, it waits all the same.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        if not working.cancelled():
            working.exception()  # Seen; whoever asked has gone.
        raise
