"""How far a stream can be read now, and how much of it one micro-batch takes. Knows no Spark.

Lives as long as the query does and remembers what can no longer change: the ends of sealed
segments, and how far an open one had been walked. So each look costs a listing and a step for
each open file.

A limit takes the oldest partitions first, so that event time moves forward and no watermark is
overtaken, and divides what is left among the writers of one partition in proportion to what each
has, so that none starves. It stops at block boundaries and always takes one block at least.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from filestream.consumers.spark.offsets import StreamOffset
from filestream.consumers.spark.plan import Split, cut, segment_ranges
from filestream.errors import FencedError, NotFoundError
from filestream.partitions.catalog import Catalog
from filestream.partitions.chain import ChainId, Place
from filestream.partitions.filters import Interval
from filestream.partitions.layout import Partition, Segment
from filestream.partitions.snapshot import StreamView, segments_of
from filestream.segment_map import SegmentEnd, boundaries, boundary_at, segment_end
from filestream.segment_reader import OnCorrupt

__all__ = ["Frontier", "Limit"]

_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Limit:
    """How much one micro-batch may take; 0 is no limit."""

    size_bytes: int = 0
    events: int = 0
    segments: int = 0

    @property
    def is_none(self) -> bool:
        """Whether there is no limit at all."""
        return not (self.size_bytes or self.events or self.segments)


class _Step(NamedTuple):
    """One block of a chain, or a whole partition: where it leads and what it takes."""

    places: Mapping[ChainId, Place]
    size_bytes: int
    events: int
    segments: int


class _Rest:
    """What a limit still allows."""

    def __init__(self, limit: Limit) -> None:
        self._size_bytes = limit.size_bytes or _NO_LIMIT
        self._events = limit.events or _NO_LIMIT
        self._segments = limit.segments or _NO_LIMIT

    def allows(self, step: _Step) -> bool:
        return (
            step.size_bytes <= self._size_bytes
            and step.events <= self._events
            and step.segments <= self._segments
        )

    def take(self, step: _Step) -> None:
        self._size_bytes -= step.size_bytes
        self._events -= step.events
        self._segments -= step.segments


class Frontier:
    """Args:
    view: of the stream.
    until_ms: only events before it are wanted.
    on_corrupt: ``"skip"`` goes on without segments that are missing.
    """

    def __init__(
        self, view: StreamView, until_ms: int = 1 << 62, on_corrupt: OnCorrupt = "raise"
    ) -> None:
        self._view = view
        self._until_ms = until_ms
        self._on_corrupt: OnCorrupt = on_corrupt
        self._catalog = Catalog(view.storage)
        # Ends of segments by key: sealed ones for ever, open ones as a place to go on from.
        self._ends: dict[str, SegmentEnd] = {}

    def generation(self) -> int:
        """The current generation."""
        return self._view.generations.current().number

    def now(self, start: StreamOffset) -> StreamOffset:
        """How far everything can be read now, from ``start`` on."""
        chains = self._chains(start)
        places: dict[ChainId, Place] = {}
        records = start.records
        for chain_id, segments in chains.items():
            before = start.places.get(chain_id, Place())
            places[chain_id], events = self._end_of(segments, before)
            records += events
        # A chain that expired stays where it was read to, or it would be read again if it came back.
        kept = {c: p for c, p in start.places.items() if c not in places and self._is_alive(c)}
        return replace(start, places={**kept, **places}, records=records)

    def until(self, start: StreamOffset, places: Mapping[ChainId, Place]) -> StreamOffset:
        """``start`` moved to other places, with the events between counted."""
        moved = {c: p for c, p in places.items() if p != start.places.get(c, Place())}
        if not moved:
            return start
        chains = self._chains(start)
        records = start.records
        for chain_id, place in moved.items():
            before = start.places.get(chain_id, Place())
            segments = chains.get(chain_id, [])
            for split in segment_ranges(self._view, segments, before, place, self._ends):
                records += self._events_in(split)
        return replace(start, places={**start.places, **moved}, records=records)

    def lost(self, start: StreamOffset) -> list[ChainId]:
        """Chains of which something unread is gone although the generation is the same."""
        here = self._chains(start)
        return sorted(
            c for c, p in start.places.items() if p.position and c not in here and self._is_alive(c)
        )

    def limited(self, start: StreamOffset, end: StreamOffset, limit: Limit) -> StreamOffset:
        """As much of ``start..end`` as the limit allows."""
        if limit.is_none:
            return end
        chains = self._chains(start)
        by_partition: dict[Partition, dict[ChainId, list[Split]]] = {}
        for chain_id in sorted(end.places):
            before, until = start.places.get(chain_id, Place()), end.places[chain_id]
            if before != until:
                segments = chains.get(chain_id, [])
                ranges = list(segment_ranges(self._view, segments, before, until, self._ends))
                by_partition.setdefault(chain_id.partition, {})[chain_id] = ranges
        rest = _Rest(limit)
        places, records = dict(start.places), start.records
        for chain_ranges in by_partition.values():
            whole = self._whole(chain_ranges, end)
            for step in [whole] if rest.allows(whole) else self._fair_steps(chain_ranges, end):
                # One block at least, or a query with a small limit would never move.
                if not rest.allows(step) and places != start.places:
                    return replace(start, places=places, records=records)
                rest.take(step)
                places.update(step.places)
                records += step.events
        return replace(start, places=places, records=records)

    def _whole(self, ranges: Mapping[ChainId, list[Split]], end: StreamOffset) -> _Step:
        splits = [split for chain in ranges.values() for split in chain]
        return _Step(
            {chain_id: end.places[chain_id] for chain_id in ranges},
            sum(split.size_bytes for split in splits),
            sum(self._events_in(split) for split in splits),
            len(splits),
        )

    def _fair_steps(
        self, ranges: Mapping[ChainId, list[Split]], end: StreamOffset
    ) -> Iterator[_Step]:
        """Blocks of several chains, always of the one of which the smallest part was taken."""
        heap: list[tuple[float, ChainId, int, Iterator[_Step]]] = []
        for chain_id, splits in ranges.items():
            size = max(1, sum(split.size_bytes for split in splits))
            heap.append((0.0, chain_id, size, self._steps(chain_id, splits, end)))
        heapq.heapify(heap)
        while heap:
            part, chain_id, size, steps = heap[0]
            step = next(steps, None)
            if step is None:
                heapq.heappop(heap)
                continue
            heapq.heapreplace(heap, (part + step.size_bytes / size, chain_id, size, steps))
            yield step

    def _steps(self, chain_id: ChainId, splits: list[Split], end: StreamOffset) -> Iterator[_Step]:
        """The blocks of one chain; the last step leads to the chain's end."""
        storage = self._view.storage
        for split in splits:
            key = split.segment.data_key
            last = boundary_at(storage, key, split.start)
            is_first = True
            reached = split.start
            for boundary in boundaries(storage, key, last, split.stop):
                if boundary is None or boundary.position == last.position:
                    continue
                if split.start == 0 and last.position == 0:
                    last = boundary  # Behind the header: no block lies before it.
                    continue
                place = Place(split.segment.sequence, boundary.position)
                if boundary.position == split.stop and split is splits[-1]:
                    place = end.places[chain_id]
                size, events = boundary.position - last.position, boundary.events - last.events
                yield _Step({chain_id: place}, size, events, int(is_first))
                last, is_first, reached = boundary, False, boundary.position
            if reached < split.stop:
                # Heads that cannot be walked are damaged: one step, and the reader says what it is.
                place = Place(split.segment.sequence, split.stop)
                if split is splits[-1]:
                    place = end.places[chain_id]
                yield _Step({chain_id: place}, split.stop - reached, 0, int(is_first))
        if not splits:
            yield _Step({chain_id: end.places[chain_id]}, 0, 0, 0)

    def splits(self, start: StreamOffset, end: StreamOffset, size_bytes_max: int) -> list[Split]:
        """What lies between two offsets of one generation, in the order of time.

        Depends on its arguments and on bytes that never change, so it can be asked again.

        Raises:
            FencedError: the generation was truncated and its files are gone.
        """
        if not end.places:
            return []
        chains = self._chains(end)
        found: list[Split] = []
        for chain_id in sorted(end.places):
            before = start.places.get(chain_id, Place())
            until = end.places[chain_id]
            if before == until or self._interval(end).is_disjoint(
                chain_id.partition.start_ms, chain_id.partition.end_ms
            ):
                continue
            if chain_id not in chains:
                self._explain_gone(end.generation)
                continue
            ranges = segment_ranges(self._view, chains[chain_id], before, until, self._ends)
            for split in ranges:
                timed = replace(split, interval=self._interval(end))
                found += cut(self._view.storage, timed, size_bytes_max)
        return found

    def _explain_gone(self, generation: int) -> None:
        current = self.generation()
        if current != generation:
            raise FencedError(
                "the stream was truncated while it was read. "
                f"generation={generation} current={current} url={self._view.storage.url}"
            )

    def _is_alive(self, chain_id: ChainId) -> bool:
        partition = chain_id.partition
        return not self._view.alive.is_disjoint(partition.start_ms, partition.end_ms)

    def _interval(self, offset: StreamOffset) -> Interval:
        return Interval(offset.from_ms, self._until_ms).both(self._view.alive)

    def _chains(self, offset: StreamOffset) -> dict[ChainId, list[Segment]]:
        current = self._view.generations.current()
        chains: dict[ChainId, list[Segment]] = {}
        wanted = self._interval(offset)
        for directory in self._catalog.partitions(offset.generation):
            partition = directory.partition
            if wanted.is_disjoint(partition.start_ms, partition.end_ms):
                continue
            for segment in segments_of(self._view, current, directory, self._on_corrupt):
                chains.setdefault(ChainId(partition, segment.writer_id), []).append(segment)
        return chains

    def _end_of(self, segments: list[Segment], before: Place) -> tuple[Place, int]:
        """Where a chain ends, and how many events lie between there and ``before``."""
        events = 0
        place = before
        for number, segment in enumerate(segments):
            if segment.sequence < before.sequence:
                continue
            end = self._look(segment)
            if end is None:
                continue
            read = 0
            if segment.sequence == before.sequence and before.position:
                read = self._events_before(segment, before.position)
            events += max(0, end.boundary.events - read)
            # A later sequence is the evidence that nothing is added to this one any more.
            if end.is_sealed or number < len(segments) - 1:
                place = Place(segment.sequence + 1)
            elif end.boundary.position:
                place = Place(segment.sequence, end.boundary.position)
        return place, events

    def _look(self, segment: Segment) -> SegmentEnd | None:
        key = segment.data_key
        known = self._ends.get(key)
        if known is not None and known.is_sealed:
            return known
        try:
            end = segment_end(
                self._view.storage,
                key,
                known.boundary if known else None,
                on_corrupt=self._on_corrupt,
            )
        except NotFoundError:
            return None  # Truncated or expired between listing and looking.
        self._ends[key] = end
        return end

    def _events_before(self, segment: Segment, position: int) -> int:
        end = self._ends.get(segment.data_key)
        if end is not None and end.boundary.position == position:
            return end.boundary.events
        return boundary_at(self._view.storage, segment.data_key, position).events

    def _events_in(self, split: Split) -> int:
        before = self._events_before(split.segment, split.start) if split.start else 0
        return max(0, self._events_before(split.segment, split.stop) - before)
