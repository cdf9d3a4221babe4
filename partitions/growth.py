"""Tells when a stream has grown by so many bytes: the trigger for work that is done in portions.

Looks at names and sizes only. What was appended before a truncation and not told yet still counts.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from filestream.errors import FencedError, InvalidRequestError, NotFoundError
from filestream.partitions.catalog import Catalog
from filestream.partitions.chain import ChainId, Place
from filestream.partitions.generations import Generation
from filestream.partitions.layout import Segment
from filestream.partitions.places import places_at
from filestream.partitions.positions import PositionLike, parse_position
from filestream.partitions.snapshot import StreamView, segments_of
from filestream.units import format_size, parse_duration_ms

__all__ = ["Growth", "GrowthWatch"]

_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
# Of the time, looking may take so much.
_LOOKING_SHARE: Final = 0.05


class Growth(NamedTuple):
    """A stream has grown by the threshold, or more.

    Attributes:
        timestamp_ms: when it was seen.
        grown_bytes: since the one before, or since the start.
        size_bytes: of the generation's event files now.
    """

    timestamp_ms: int
    grown_bytes: int
    size_bytes: int
    generation: int


class GrowthWatch(Iterator[Growth]):
    """An iterator; close it, or leave it alone: it holds nothing.

    Args:
        threshold_bytes: tell when the stream has grown by at least so much.
        since: what lies behind this position has grown already, counted from the block it is in.
        timeout: end when there was nothing to tell for so long; None never ends.
    """

    def __init__(
        self,
        view: StreamView,
        threshold_bytes: int,
        *,
        since: PositionLike = "end",
        timeout: str | float | None = None,
    ) -> None:
        if threshold_bytes < 1:
            raise InvalidRequestError(f"the threshold must be above 0. bytes={threshold_bytes}")
        self._view = view
        self._catalog = Catalog(view.storage)
        self._threshold_bytes = threshold_bytes
        self._timeout_s = None if timeout is None else parse_duration_ms(timeout) / 1000
        self._generation = view.generations.current()
        # Size of each file, as it was seen last, and which of them cannot grow any more.
        self._sizes: dict[Segment, int] = {}
        self._finished: set[Segment] = set()
        # What has grown and was not told yet.
        self._grown_bytes = 0
        position = parse_position(since, now_ms=view.clock.now_ms())
        number, places = places_at(view, position)
        if number == self._generation.number:
            self._sizes = self._sizes_before(places)

    def __next__(self) -> Growth:
        clock = self._view.clock
        began_s = clock.monotonic_s()
        pause_s = _PAUSE_S_MIN
        while True:
            looked_s = clock.monotonic_s()
            self._look()
            if self._grown_bytes >= self._threshold_bytes:
                grown, self._grown_bytes = self._grown_bytes, 0
                size = sum(self._sizes.values())
                return Growth(clock.now_ms(), grown, size, self._generation.number)
            now_s = clock.monotonic_s()
            if self._timeout_s is not None and now_s - began_s >= self._timeout_s:
                raise StopIteration
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)
            clock.sleep(max(pause_s, (now_s - looked_s) / _LOOKING_SHARE))

    def _look(self) -> None:
        """Add up what has grown since the last look; files that are gone take nothing back."""
        while True:
            generation = self._view.generations.current()
            if generation.number != self._generation.number:
                self._generation, self._sizes, self._finished = generation, {}, set()
            try:
                sizes = self._measure(generation)
            except (FencedError, NotFoundError):
                continue  # Truncated while we looked.
            self._grown_bytes += sum(
                max(0, size - self._sizes.get(segment, 0)) for segment, size in sizes.items()
            )
            self._sizes = sizes
            self._finished &= sizes.keys()
            return

    def _measure(self, generation: Generation) -> dict[Segment, int]:
        sizes: dict[Segment, int] = {}
        for directory in self._catalog.partitions(generation.number):
            segments = segments_of(self._view, generation, directory, "skip")
            last = {segment.writer_id: segment for segment in segments}
            for segment in segments:
                if segment in self._finished:
                    sizes[segment] = self._sizes[segment]
                    continue
                sizes[segment] = self._size(segment)
                if last[segment.writer_id] is not segment:
                    self._finished.add(segment)
        return sizes

    def _size(self, segment: Segment) -> int:
        try:
            return self._view.storage.size(segment.data_key)
        except NotFoundError:
            return 0  # Expired, or a creation that was undone.

    def _sizes_before(self, places: dict[ChainId, Place]) -> dict[Segment, int]:
        sizes: dict[Segment, int] = {}
        for directory in self._catalog.partitions(self._generation.number):
            for segment in segments_of(self._view, self._generation, directory, "skip"):
                place = places.get(ChainId(segment.partition, segment.writer_id), Place())
                if segment.sequence < place.sequence:
                    sizes[segment] = self._size(segment)
                elif segment.sequence == place.sequence:
                    sizes[segment] = place.position
        return sizes

    def close(self) -> None:
        """For ``with``; there is nothing to give back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GrowthWatch({self._view.storage.url!r}, {format_size(self._threshold_bytes)})"
