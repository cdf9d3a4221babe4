"""A live read: what is there from a position on, and then whatever comes. For threads and tasks."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

from filestream.clock import Clock
from filestream.partitions.columns import batches_of, check_columns
from filestream.partitions.event import Event
from filestream.partitions.follower import Follower
from filestream.partitions.merge import merge_events, merge_pieces
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
        self._events = self._endless_events()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def batches(
        self, columns: Sequence[str] | None = None, *, rows: int = 65_536
    ) -> "Iterator[pa.RecordBatch]":
        """The same as record batches of what has come, never empty ones.

        Raises:
            CorruptDataError: damage.
            NotFoundError: the stream was deleted.
        """
        wanted = check_columns(columns)
        quiet_since_s = self._clock.monotonic_s()
        while not self._is_closed:
            for sources in self._follower.round():
                for batch in batches_of(merge_pieces(sources), wanted, rows_max=rows):
                    quiet_since_s = self._clock.monotonic_s()
                    yield batch
            if not self._wait(quiet_since_s):
                return

    def _endless_events(self) -> Iterator[Event]:
        quiet_since_s = self._clock.monotonic_s()
        while not self._is_closed:
            for sources in self._follower.round():
                for event in merge_events(sources):
                    quiet_since_s = self._clock.monotonic_s()
                    yield event
            if not self._wait(quiet_since_s):
                return

    def _wait(self, quiet_since_s: float) -> bool:
        wait_s = self._wait_s(quiet_since_s)
        if wait_s is None:
            return False
        self._follower.wait(wait_s)
        return True

    def _wait_s(self, quiet_since_s: float) -> float | None:
        """How long to wait for more; None when the time is up."""
        wait_s = self._follower.wait_s()
        if self._timeout_s is None:
            return wait_s
        left_s = quiet_since_s + self._timeout_s - self._clock.monotonic_s()
        return min(wait_s, left_s) if left_s > 0 else None

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for events in self._strides():
            for event in events:
                yield event

    async def batches_async(
        self, columns: Sequence[str] | None = None, *, rows: int = 65_536
    ) -> "AsyncIterator[pa.RecordBatch]":
        """``batches`` for tasks."""
        wanted = check_columns(columns)
        quiet_since_s = self._clock.monotonic_s()
        while not self._is_closed:
            news = (
                batch
                for sources in self._follower.round()
                for batch in batches_of(merge_pieces(sources), wanted, rows_max=rows)
            )
            while (batch := await asyncio.to_thread(next, news, None)) is not None:
                quiet_since_s = self._clock.monotonic_s()
                yield batch
            if not await self._wait_async(quiet_since_s):
                return

    async def _strides(self) -> AsyncIterator[list[Event]]:
        quiet_since_s = self._clock.monotonic_s()
        while not self._is_closed:
            news = (event for sources in self._follower.round() for event in merge_events(sources))
            # Files are read on a thread, so that a slow disk does not stop the event loop.
            while events := await asyncio.to_thread(lambda n: list(islice(n, _STRIDE)), news):
                quiet_since_s = self._clock.monotonic_s()
                yield events
            if not await self._wait_async(quiet_since_s):
                return

    async def _wait_async(self, quiet_since_s: float) -> bool:
        wait_s = self._wait_s(quiet_since_s)
        if wait_s is None:
            return False
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
