"""What is there now: the chains of the current generation, and where a position lies in each.

A snapshot is a listing plus the sizes of the files that may still grow; bounded reads end where the
snapshot ends, so they end even while writers go on. A position that names an event cuts all
chains at its place in the merged order: (timestamp, writer, sequence, position, index).
"""

import itertools
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from filestream.clock import Clock
from filestream.errors import (
    CorruptDataError,
    FencedError,
    FilestreamError,
    InvalidRequestError,
    NotFoundError,
)
from filestream.partitions.catalog import Catalog, PartitionDirectory
from filestream.partitions.chain import ChainId, Place
from filestream.partitions.filters import ALWAYS, Interval, Piece, select
from filestream.partitions.generations import Generation, Generations
from filestream.partitions.layout import Offset, Partition, Segment
from filestream.partitions.merge import Source, events_of
from filestream.partitions.packed_storage import PackedStorage
from filestream.partitions.positions import At, End, Last, Position, Start
from filestream.partitions.read_ahead import Look, first_looks
from filestream.partitions.settled import survey_settled
from filestream.segment_map import segment_end
from filestream.segment_reader import OnCorrupt, SegmentReader
from filestream.storage.base import Storage

__all__ = [
    "Bounds",
    "Cut",
    "FromPlaces",
    "Snapshot",
    "StreamView",
    "segments_of",
    "sources_behind",
    "sources_between",
    "take_snapshot",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamView:
    """Everything that reading a stream takes; no files are open in it."""

    storage: PackedStorage
    generations: Generations
    clock: Clock
    ttl_ms: int = 0
    store_key: str = ""

    @property
    def alive(self) -> Interval:
        """The interval of time that the stream's ttl leaves."""
        return Interval(self.clock.now_ms() - self.ttl_ms) if self.ttl_ms else ALWAYS

    def explain_missing(
        self, generation: Generation, error: NotFoundError, partition: Partition | None = None
    ) -> FilestreamError | None:
        """What it means that a file is gone: the error to raise, or None when it had expired.

        Damage is never taken for deletion: unless the stream says so itself, a missing file is
        corruption.
        """
        # Asked anew, not believed: somebody may have truncated, and removed the file, just now.
        now = self.generations.current()  # Raises when the stream was deleted.
        if now.version != generation.version:
            return FencedError(
                "the stream was truncated while it was read: read it again. "
                f"generation={generation.number} current={now.number} url={self.storage.url}"
            )
        if partition is not None and self.alive.is_disjoint(partition.start_ms, partition.end_ms):
            return None
        return CorruptDataError(f"a file is missing although nothing was truncated: {error}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Segments of one generation, and the size of those that may grow.

    Attributes:
        chains: segments by chain, ascending.
        limits: size in bytes of the last segment of each chain when the snapshot was taken.
    """

    view: StreamView
    generation: Generation
    chains: dict[ChainId, list[Segment]] = field(default_factory=dict)
    limits: dict[Segment, int] = field(default_factory=dict)

    def partitions(self) -> list[Partition]:
        """Partitions with segments, in the order of time."""
        return sorted({chain.partition for chain in self.chains})

    def end_of(self, chain_id: ChainId, on_corrupt: OnCorrupt) -> Place:
        """The place behind everything of a chain that the snapshot holds."""
        last = self.chains[chain_id][-1]
        end = segment_end(
            self.view.storage, last.data_key, stop=self.limits[last], on_corrupt=on_corrupt
        )
        if end.is_sealed:
            return Place(last.sequence + 1)
        return Place(last.sequence, end.boundary.position)

    def by_partition(self) -> dict[Partition, list[Segment]]:
        """Segments of each partition, in the order of time, then of writer and sequence."""
        found: dict[Partition, list[Segment]] = {}
        for chain in sorted(self.chains):
            found.setdefault(chain.partition, []).extend(self.chains[chain])
        return found


def segments_of(
    view: StreamView,
    generation: Generation,
    directory: PartitionDirectory,
    on_corrupt: OnCorrupt = "raise",
) -> list[Segment]:
    """Segments of a partition; none is missing, or it is said.

    Raises:
        CorruptDataError: an event file is missing, or two claim one place.
        FencedError: because the stream was truncated meanwhile.
    """
    survey = survey_settled(view.storage, directory)
    if not survey.problems and not survey.missing:
        return survey.segments
    reason = (survey.problems or [f"an event file is missing: {survey.missing[0]}"])[0]
    failure = view.explain_missing(generation, NotFoundError(reason), directory.partition)
    if failure is not None and (on_corrupt == "raise" or isinstance(failure, FencedError)):
        raise failure
    logger.warning("going on without what is missing: %s %s", reason, view.storage.url)
    seen: dict[tuple[str, int], Segment] = {}
    for segment in survey.segments:
        seen.setdefault((segment.writer_id, segment.sequence), segment)
    return sorted(seen.values())


def take_snapshot(
    view: StreamView, interval: Interval = ALWAYS, on_corrupt: OnCorrupt = "raise"
) -> Snapshot:
    """Look at what is there now.

    Args:
        interval: partitions outside are left out.
    """
    generation = view.generations.current()
    catalog = Catalog(view.storage)
    snapshot = Snapshot(view, generation)
    for directory in catalog.partitions(generation.number):
        partition = directory.partition
        if interval.is_disjoint(partition.start_ms, partition.end_ms):
            continue
        for segment in segments_of(view, generation, directory, on_corrupt):
            chain = ChainId(partition, segment.writer_id)
            snapshot.chains.setdefault(chain, []).append(segment)
    for chain, segments in snapshot.chains.items():
        segments.sort(key=lambda segment: segment.sequence)
        try:
            snapshot.limits[segments[-1]] = view.storage.size(segments[-1].data_key)
        except NotFoundError as error:
            # A creation that failed before its first byte is undone; then no index names it.
            listed = [d for d in catalog.partitions(generation.number) if d.partition == chain[0]]
            is_undone = all(not catalog.survey(d).missing for d in listed)
            failure = view.explain_missing(generation, error, chain.partition)
            if failure is not None and (isinstance(failure, FencedError) or not is_undone):
                raise failure from error
            snapshot.limits[segments[-1]] = 0
    return snapshot


class Cut(NamedTuple):
    """What of one segment is wanted: from a place, to a place, in an interval of time.

    Attributes:
        until: block position and index of the first event not wanted; None for no such bound.
    """

    start_position: int
    start_index: int
    until: tuple[int, int] | None
    interval: Interval


class Bounds:
    """Both ends of a read, as a cut of each segment.

    Args:
        snapshot: what is there.
        start: included.
        end: excluded.

    Attributes:
        start, end: as given, with "the last n" resolved to the event where they begin.
        start_ms: time of the event that ``start`` names, if it names one.

    Raises:
        FencedError: an offset of a generation that was truncated.
        NotFoundError: an offset of a segment that is not there.
        InvalidRequestError: an offset that is no block's start.
        CorruptDataError: the block that an offset names is damaged.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        start: Position,
        end: Position,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        self._alive = snapshot.view.alive
        self.start = _resolved(snapshot, start, on_corrupt)
        self.end = _resolved(snapshot, end, on_corrupt)
        self.start_ms = _time_of(snapshot, self.start)
        self._end_ms = _time_of(snapshot, self.end)
        self.is_empty = isinstance(self.start, End) or isinstance(self.end, Start)

    def cut(self, segment: Segment) -> Cut | None:
        """What of a segment lies between the ends; None when nothing does."""
        if self.is_empty:
            return None
        from_ms, until_ms = self._alive
        position, index, until = 0, 0, None
        order = (segment.partition, segment.writer_id, segment.sequence)
        if isinstance(self.start, At):
            from_ms = max(from_ms, self.start.timestamp_ms)
        elif isinstance(self.start, Offset):
            named = (self.start.partition, self.start.writer_id, self.start.sequence)
            if order == named:
                position, index = self.start.position, self.start.index
            else:
                from_ms = max(from_ms, self.start_ms + (order[1:] < named[1:]))
        if isinstance(self.end, At):
            until_ms = self.end.timestamp_ms
        elif isinstance(self.end, Offset):
            named = (self.end.partition, self.end.writer_id, self.end.sequence)
            if order == named:
                until = (self.end.position, self.end.index)
            else:
                until_ms = self._end_ms + (order[1:] < named[1:])
        interval = Interval(from_ms, until_ms)
        if interval.is_disjoint(segment.partition.start_ms, segment.partition.end_ms):
            return None
        return Cut(position, index, until, interval)


class FromPlaces:
    """The bounds of what a group has not read: each chain from a place of its own on.

    Args:
        places: chains that are not in it begin at their beginning.
    """

    def __init__(self, view: StreamView, places: Mapping[ChainId, Place]) -> None:
        self._view = view
        self._places = places

    def cut(self, segment: Segment) -> Cut | None:
        """What of a segment lies behind the places; None when nothing does."""
        place = self._places.get(ChainId(segment.partition, segment.writer_id), Place())
        interval = self._view.alive
        if segment.sequence < place.sequence:
            return None
        if interval.is_disjoint(segment.partition.start_ms, segment.partition.end_ms):
            return None
        if segment.sequence > place.sequence:
            return Cut(0, 0, None, interval)
        return Cut(place.position, place.index, None, interval)


def sources_behind(
    snapshot: Snapshot, bounds: FromPlaces, segments: Sequence[Segment], on_corrupt: OnCorrupt
) -> list[Source]:
    """For each chain that has something behind its place, its pieces in the order of its files.

    Not one source for each file: a place says that all before it in the chain was read, which a late
    event, in a later file, would belie if it came in the order of time.
    """
    chains: dict[str, list[tuple[Segment, Cut]]] = {}
    for segment in segments:
        if (cut := bounds.cut(segment)) is not None:
            chains.setdefault(segment.writer_id, []).append((segment, cut))
    heads = [wanted[0] for wanted in chains.values()]
    found = []
    for (writer_id, wanted), look in zip(
        chains.items(), _looks(snapshot, heads, on_corrupt), strict=True
    ):
        pieces = itertools.chain.from_iterable(
            _pieces_of(snapshot, segment, cut, on_corrupt) for segment, cut in wanted
        )
        found.append(Source(look.first_ms, (writer_id, 0), pieces))
    return found


def sources_between(
    snapshot: Snapshot, bounds: Bounds, segments: Sequence[Segment], on_corrupt: OnCorrupt
) -> list[Source]:
    """For each segment that has something in the bounds, its pieces."""
    wanted = [(segment, cut) for segment in segments if (cut := bounds.cut(segment)) is not None]
    found = []
    for (segment, cut), look in zip(wanted, _looks(snapshot, wanted, on_corrupt), strict=True):
        order = (segment.writer_id, segment.sequence)
        pieces = _pieces_of(snapshot, segment, cut, on_corrupt, look.reader)
        found.append(Source(look.first_ms, order, pieces))
    return found


def _looks(
    snapshot: Snapshot, wanted: Sequence[tuple[Segment, Cut]], on_corrupt: OnCorrupt
) -> Iterator[Look]:
    return first_looks(
        snapshot.view.storage,
        [segment for segment, _ in wanted],
        lambda number: _reader(snapshot, *wanted[number], on_corrupt),
    )


def _reader(snapshot: Snapshot, segment: Segment, cut: Cut, on_corrupt: OnCorrupt) -> SegmentReader:
    return SegmentReader(
        snapshot.view.storage,
        segment.data_key,
        position=cut.start_position,
        limit=snapshot.limits.get(segment),
        on_corrupt=on_corrupt,
    )


def _pieces_of(
    snapshot: Snapshot,
    segment: Segment,
    cut: Cut,
    on_corrupt: OnCorrupt,
    reader: SegmentReader | None = None,
) -> Iterator[Piece]:
    view = snapshot.view
    reader = reader or _reader(snapshot, segment, cut, on_corrupt)
    try:
        if not cut.start_position and cut.interval.from_ms > segment.partition.start_ms:
            footer = reader.footer()
            if footer is not None and footer.last_timestamp_ms < cut.interval.from_ms:
                return
            reader.seek_time(cut.interval.from_ms)
        while blocks := reader.read_blocks(finished=True):
            for block in blocks:
                first = cut.start_index if block.position == cut.start_position else 0
                if cut.until is not None and (block.position, first) >= cut.until:
                    return
                is_last = cut.until is not None and block.position == cut.until[0]
                stop = cut.until[1] if is_last and cut.until is not None else -1
                yield from select(Piece(segment, reader.url, block, first, stop), cut.interval)
    except NotFoundError as error:
        if snapshot.limits.get(segment) == 0:
            return  # It held nothing when the snapshot was taken, so nothing is missing.
        if failure := view.explain_missing(snapshot.generation, error, segment.partition):
            raise failure from error


def _resolved(snapshot: Snapshot, position: Position, on_corrupt: OnCorrupt) -> Position:
    if isinstance(position, Last):
        return _last_events(snapshot, position.count, on_corrupt)
    return position


def _time_of(snapshot: Snapshot, position: Position) -> int:
    """Timestamp of the event that an offset names; checks the offset on the way."""
    if not isinstance(position, Offset):
        return 0
    current = snapshot.generation.number
    if position.generation < current:
        raise FencedError(
            f"the offset lies in a generation that was truncated: begin with 'start'. "
            f"offset={position} current={current}"
        )
    segments = snapshot.chains.get(ChainId(position.partition, position.writer_id), [])
    segment = next((s for s in segments if s.sequence == position.sequence), None)
    if segment is None:
        raise NotFoundError(
            f"there is no such segment in the stream. offset={position} "
            f"url={snapshot.view.storage.url}"
        )
    reader = SegmentReader(snapshot.view.storage, segment.data_key)
    block = reader.block_at(position.position)
    if block is None:
        footer = reader.footer()
        if footer is not None and position.position == footer.position:
            return footer.last_timestamp_ms
        # Either nobody ever wrote a block there, or it is damaged: reading up to it tells.
        for walked in _newest_pieces(snapshot.view.storage, segment, None, 1 << 62, "raise"):
            if walked.block.position >= position.position:
                break
        raise InvalidRequestError(f"no block begins at this offset. offset={position}")
    events = events_of(Piece(segment, reader.url, block, 0, -1))
    return events[min(position.index, len(events) - 1)].timestamp_ms


def _last_events(snapshot: Snapshot, count: int, on_corrupt: OnCorrupt) -> Position:
    """The place of the last ``count`` events in the merged order; the start when there are fewer."""
    if count == 0:
        return End()
    found: list[tuple[int, str, Offset]] = []
    for partition in reversed(snapshot.partitions()):
        here: list[tuple[int, str, Offset]] = []
        for chain in sorted(c for c in snapshot.chains if c.partition == partition):
            here += _chain_tail(snapshot, chain, count, on_corrupt)
        # A later partition is later in every event, so its events come first.
        found = sorted(here)[-(count - len(found)) :] + found
        if len(found) >= count:
            return found[0][2]
    return Start()


def _chain_tail(
    snapshot: Snapshot, chain: ChainId, count: int, on_corrupt: OnCorrupt
) -> Iterable[tuple[int, str, Offset]]:
    """The newest events of a chain, at least so many; segments need not follow in time."""
    tail: list[tuple[int, str, Offset]] = []
    alive = snapshot.view.alive
    for segment in snapshot.chains[chain]:
        limit = snapshot.limits.get(segment)
        newest: deque[tuple[int, str, Offset]] = deque(maxlen=count)
        for piece in _newest_pieces(snapshot.view.storage, segment, limit, count, on_corrupt):
            newest.extend(
                (event.timestamp_ms, chain.writer_id, event.offset)
                for event in events_of(piece)
                if event.timestamp_ms >= alive.from_ms
            )
        tail = sorted([*tail, *newest])[-count:]
    return tail


def _newest_pieces(
    storage: Storage, segment: Segment, limit: int | None, count: int, on_corrupt: OnCorrupt
) -> Iterator[Piece]:
    """Blocks that hold at least the last ``count`` events of a segment, and maybe more."""
    reader = SegmentReader(storage, segment.data_key, limit=limit, on_corrupt=on_corrupt)
    footer = reader.footer()
    if footer is not None and limit in (None, footer.end):
        reader.seek_ordinal(footer.events - count)
    else:
        # Open: the events behind the last index entry are counted by reading them.
        probe = SegmentReader(storage, segment.data_key, limit=limit, on_corrupt=on_corrupt)
        probe.seek_ordinal(1 << 62)
        total = 0
        while blocks := probe.read_blocks(finished=True):
            total = blocks[-1].first_ordinal + blocks[-1].event_count
        reader.seek_ordinal(total - count)
    while blocks := reader.read_blocks(finished=True):
        for block in blocks:
            yield Piece(segment, reader.url, block, 0, -1)
