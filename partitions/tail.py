"""A live read: what is there from a position on, and then whatever comes. For threads and tasks."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

from filestream.clock import Clock
from filestream.errors import FilestreamError
from filestream.partitions.columns import batches_of, check_columns
from filestream.partitions.event import Event
from filestream.partitions.follower import Follower
from filestream.partitions.merge import Source, merge_events, merge_pieces
from filestream.partitions.positions import PositionLike, parse_position
from filestream.partitions.snapshot import StreamView
from filestream.segment_reader import OnCorrupt
from filestream.units import parse_duration_ms

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Tail"]

# How many events a task takes from the reading thread at a time.
_STRIDE: Final = 1024


class Tail:
    """An endless iterator of events; ``async for`` works as well as ``for``.

    Goes on in the new generation when the stream is truncated. Not thread-safe.

    Args:
        view: of the stream.
        start: where to begin.
        timeout: end the iteration when nothing came for so long; None never ends.
    """

    def __init__(
        self,
        view: StreamView,
        start: PositionLike,
        *,
        timeout: str | float | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        self._clock: Clock = view.clock
        self._timeout_s = None if timeout is None else parse_duration_ms(timeout) / 1000
        position = parse_position(start, now_ms=view.clock.now_ms())
        self._follower = Follower(view, position, on_corrupt=on_corrupt)
        self._is_closed = False
        self._quiet_since_s = self._clock.monotonic_s()
        # What was read and not yet handed out; all faces take from here, so that leaving one and
        # going on with another loses nothing.
        self._sources: Iterator[list[Source]] = iter(())
        self._has_begun = False
        self._failure: FilestreamError | None = None
        self._looked_last = False
        self._events: deque[Event] = deque()
        self._news: Iterator[Event] = iter(())
        self._batches: deque[pa.RecordBatch] = deque()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while not self._events:
            if self._is_closed or (not self._read_events(1) and not self._wait()):
                raise StopIteration
        return self._events.popleft()

    def batches(
        self, columns: Sequence[str] | None = None, *, rows: int = 65_536
    ) -> "Iterator[pa.RecordBatch]":
        """The same as record batches of what has come, never empty ones.

        Use either these or the events of one tail, not both in turn.

        Raises:
            CorruptDataError: damage.
            NotFoundError: the stream was deleted.
        """
        wanted = check_columns(columns)
        while not self._is_closed:
            if self._batches or self._read_batches(wanted, rows):
                yield self._batches.popleft()
            elif not self._wait():
                return

    async def __aiter__(self) -> AsyncIterator[Event]:
        while not self._is_closed:
            if self._events:
                yield self._events.popleft()
            # Files are read on a thread, so that a slow disk does not stop the event loop.
            elif not await self._on_thread(lambda: self._read_events(_STRIDE)) and (
                not await self._wait_async()
            ):
                return

    async def batches_async(
        self, columns: Sequence[str] | None = None, *, rows: int = 65_536
    ) -> "AsyncIterator[pa.RecordBatch]":
        """``batches`` for tasks."""
        wanted = check_columns(columns)
        while not self._is_closed:
            if self._batches:
                yield self._batches.popleft()
            elif not await self._on_thread(lambda: self._read_batches(wanted, rows)) and (
                not await self._wait_async()
            ):
                return

    def _read_events(self, count: int) -> bool:
        """Take up to so many events that are there now; False when there are none."""
        with self._failing():
            return self._take_events(count)

    def _take_events(self, count: int) -> bool:
        for event in islice(self._news, count):
            self._events.append(event)
        while not self._events:
            sources = self._next_sources()
            if sources is None:
                return False
            self._news = merge_events(sources)
            for event in islice(self._news, count):
                self._events.append(event)
        self._quiet_since_s = self._clock.monotonic_s()
        self._looked_last = False
        return True

    def _read_batches(self, columns: Sequence[str], rows: int) -> bool:
        with self._failing():
            return self._take_batches(columns, rows)

    def _take_batches(self, columns: Sequence[str], rows: int) -> bool:
        while not self._batches:
            sources = self._next_sources()
            if sources is None:
                return False
            self._batches.extend(batches_of(merge_pieces(sources), columns, rows_max=rows))
        self._quiet_since_s = self._clock.monotonic_s()
        self._looked_last = False
        return True

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """After an error the tail stays failed: what it held in hand is lost with it, so to go on
        would skip events. Open another from the last offset.
        """
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except FilestreamError as error:
            self._failure = error
            raise

    def _next_sources(self) -> list[Source] | None:
        """The next partition with something to look at; None at the end of a round."""
        sources = next(self._sources, None)
        if sources is None and not self._has_begun:
            self._sources = self._follower.round()
            self._has_begun = True
            sources = next(self._sources, None)
        if sources is None:
            self._has_begun = False
        return sources

    async def _on_thread(self, read: Callable[[], bool]) -> bool:
        # Shielded: a cancelled task must not leave a thread that reads on behind its back.
        reading = asyncio.ensure_future(asyncio.to_thread(read))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            await asyncio.wait([reading])
            raise

    def _wait(self) -> bool:
        wait_s = self._wait_s()
        if wait_s is None:
            return self._may_look_once_more()
        self._follower.wait(wait_s)
        return True

    def _wait_s(self) -> float | None:
        """How long to wait for more; None when the time is up."""
        wait_s = self._follower.wait_s()
        if self._timeout_s is None:
            return wait_s
        left_s = self._quiet_since_s + self._timeout_s - self._clock.monotonic_s()
        return min(wait_s, left_s) if left_s > 0 else None

    def _may_look_once_more(self) -> bool:
        """The time is up; but it may have passed in the caller's hands, so look at everything."""
        if self._looked_last:
            return False
        self._looked_last = True
        self._follower.look_everywhere()
        return True

    async def _wait_async(self) -> bool:
        wait_s = self._wait_s()
        if wait_s is None:
            return self._may_look_once_more()
        descriptor = self._follower.fileno()
        if descriptor is None:
            await asyncio.sleep(wait_s)
            return True
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        loop.add_reader(descriptor, changed.set)
        try:
            async with asyncio.timeout(wait_s):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(descriptor)
        self._follower.take_changes()
        return True

    def close(self) -> None:
        """End the iteration; may be called twice."""
        self._is_closed = True
        self._follower.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()
