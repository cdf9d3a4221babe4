"""What is there now: the chains of the current generation, and where a position lies in each.

A snapshot is a listing plus the sizes of the files that may still grow; bounded reads end where the
snapshot ends, so they end even while writers go on. A position that names an event cuts all
chains at its place in the merged order: (timestamp, writer, sequence, position, index).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
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
from filestream.partitions.catalog import Catalog
from filestream.partitions.chain import Chain, ChainId, Place
from filestream.partitions.filters import ALWAYS, Interval, Piece, select
from filestream.partitions.generations import Generation, Generations
from filestream.partitions.layout import Offset, Partition, Segment
from filestream.partitions.merge import events_of
from filestream.partitions.positions import At, End, Last, Position, Start
from filestream.segment_reader import OnCorrupt, SegmentReader
from filestream.storage.base import Storage

__all__ = ["Bounds", "Cut", "Snapshot", "StreamView", "pieces_between", "take_snapshot"]


@dataclass(frozen=True, slots=True)
class StreamView:
    """Everything that reading a stream takes; no files are open in it."""

    storage: Storage
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
        if not self.generations.is_current(generation):
            now = self.generations.current()  # Raises when the stream was deleted.
            return FencedError(
                "the stream was truncated while it was read: read it again. "
                f"generation={generation.number} current={now.number} url={self.storage.url}"
            )
        if partition is not None and self.alive.is_disjoint(partition.start_ms, partition.end_ms):
            return None
        return CorruptDataError(f"a file is missing although nothing was truncated: {error}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Chains of one generation, with the size of each one's last segment.

    Attributes:
        chains: segments by chain, ascending.
        limits: size in bytes of the last segment of each chain when the snapshot was taken.
    """

    view: StreamView
    generation: Generation
    chains: dict[ChainId, list[Segment]] = field(default_factory=dict)
    limits: dict[ChainId, int] = field(default_factory=dict)

    def partitions(self) -> list[Partition]:
        """Partitions with segments, in the order of time."""
        return sorted({chain.partition for chain in self.chains})

    def in_partition(self, partition: Partition) -> list[ChainId]:
        """Chains of one partition, by writer."""
        return sorted(chain for chain in self.chains if chain.partition == partition)

    def open_chain(self, chain_id: ChainId, cut: "Cut", on_corrupt: OnCorrupt) -> Chain:
        """The chain between two places, ending with the snapshot."""
        chain = Chain(
            self.view.storage,
            self.chains[chain_id],
            start=cut.start,
            until=cut.until,
            limit=self.limits[chain_id],
            on_corrupt=on_corrupt,
        )
        if cut.start == Place() and cut.interval.from_ms > chain_id.partition.start_ms:
            chain.seek_time(cut.interval.from_ms)
        return chain


def take_snapshot(view: StreamView, interval: Interval = ALWAYS) -> Snapshot:
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
        for segment in catalog.segments(directory):
            chain = ChainId(partition, segment.writer_id)
            snapshot.chains.setdefault(chain, []).append(segment)
    for chain, segments in snapshot.chains.items():
        segments.sort(key=lambda segment: segment.sequence)
        try:
            snapshot.limits[chain] = view.storage.size(segments[-1].data_key)
        except NotFoundError as error:
            if failure := view.explain_missing(generation, error, chain.partition):
                raise failure from error
            snapshot.limits[chain] = 0
    return snapshot


class Cut(NamedTuple):
    """What of one chain is wanted."""

    start: Place
    until: Place | None
    interval: Interval


class Bounds:
    """Both ends of a read, as a cut of each chain.

    Args:
        snapshot: what is there.
        start: included.
        end: excluded.

    Raises:
        FencedError: an offset of a generation that was truncated.
        NotFoundError: an offset of a segment that is not there.
        InvalidRequestError: an offset that is no block's start.
    """

    def __init__(self, snapshot: Snapshot, start: Position, end: Position) -> None:
        self._snapshot = snapshot
        self.start = _resolved(snapshot, start)
        self.end = _resolved(snapshot, end)
        self._start_ms = _time_of(snapshot, self.start)
        self._end_ms = _time_of(snapshot, self.end)
        self.is_empty = isinstance(self.start, End) or isinstance(self.end, Start)

    def cut(self, chain: ChainId) -> Cut | None:
        """What of this chain lies between the ends; None when nothing does."""
        if self.is_empty:
            return None
        from_ms, until_ms = ALWAYS
        first, until = Place(), None
        if isinstance(self.start, At):
            from_ms = self.start.timestamp_ms
        elif isinstance(self.start, Offset):
            if _chain_of(self.start) == chain:
                first = Place(self.start.sequence, self.start.position, self.start.index)
            else:
                from_ms = self._start_ms + (chain.writer_id < self.start.writer_id)
        if isinstance(self.end, At):
            until_ms = self.end.timestamp_ms
        elif isinstance(self.end, Offset):
            if _chain_of(self.end) == chain:
                until = Place(self.end.sequence, self.end.position, self.end.index)
            else:
                until_ms = self._end_ms + (chain.writer_id < self.end.writer_id)
        interval = Interval(from_ms, until_ms)
        if interval.is_disjoint(chain.partition.start_ms, chain.partition.end_ms):
            return None
        return Cut(first, until, interval.both(self._snapshot.view.alive))


def _chain_of(offset: Offset) -> ChainId:
    return ChainId(offset.partition, offset.writer_id)


def _resolved(snapshot: Snapshot, position: Position) -> Position:
    if isinstance(position, Last):
        return _last_events(snapshot, position.count)
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
    segments = snapshot.chains.get(_chain_of(position), [])
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
        raise InvalidRequestError(f"no block begins at this offset. offset={position}")
    events = events_of(Piece(segment, reader.url, block, 0, -1))
    return events[min(position.index, len(events) - 1)].timestamp_ms


def _last_events(snapshot: Snapshot, count: int) -> Position:
    """The place of the last ``count`` events in the merged order; the start when there are fewer."""
    if count == 0:
        return End()
    found: list[tuple[int, str, Offset]] = []
    for partition in reversed(snapshot.partitions()):
        here: list[tuple[int, str, Offset]] = []
        for chain in snapshot.in_partition(partition):
            here += _chain_tail(snapshot, chain, count)
        # A later partition is later in every event, so its events come first.
        found = sorted(here)[-(count - len(found)) :] + found
        if len(found) >= count:
            return found[0][2]
    return Start()


def _chain_tail(
    snapshot: Snapshot, chain: ChainId, count: int
) -> Iterable[tuple[int, str, Offset]]:
    tail: deque[tuple[int, str, Offset]] = deque()
    alive = snapshot.view.alive
    segments = snapshot.chains[chain]
    for segment in reversed(segments):
        limit = snapshot.limits[chain] if segment is segments[-1] else None
        wanted = count - len(tail)
        newest: deque[tuple[int, str, Offset]] = deque(maxlen=wanted)
        for piece in _newest_pieces(snapshot.view.storage, segment, limit, wanted):
            newest.extend(
                (event.timestamp_ms, chain.writer_id, event.offset)
                for event in events_of(piece)
                if event.timestamp_ms >= alive.from_ms
            )
        tail.extendleft(reversed(newest))
        if len(tail) >= count:
            break
    return tail


def _newest_pieces(
    storage: Storage, segment: Segment, limit: int | None, count: int
) -> Iterator[Piece]:
    """Blocks that hold at least the last ``count`` events of a segment, and maybe more."""
    reader = SegmentReader(storage, segment.data_key, limit=limit)
    footer = reader.footer()
    if footer is not None and limit in (None, footer.end):
        reader.seek_ordinal(footer.events - count)
    else:
        # Open: the events behind the last index entry are counted by reading them.
        probe = SegmentReader(storage, segment.data_key, limit=limit)
        probe.seek_ordinal(1 << 62)
        total = 0
        while blocks := probe.read_blocks(finished=True):
            total = blocks[-1].first_ordinal + blocks[-1].event_count
        reader.seek_ordinal(total - count)
    while blocks := reader.read_blocks(finished=True):
        for block in blocks:
            yield Piece(segment, reader.url, block, 0, -1)


def pieces_between(
    snapshot: Snapshot, bounds: Bounds, chain_ids: Sequence[ChainId], on_corrupt: OnCorrupt
) -> list[Iterator[Piece]]:
    """For each chain that has something in the bounds, its pieces one after the other."""
    found = []
    for chain_id in chain_ids:
        cut = bounds.cut(chain_id)
        if cut is not None:
            found.append(_pieces_of(snapshot, chain_id, cut, on_corrupt))
    return found


def _pieces_of(
    snapshot: Snapshot, chain_id: ChainId, cut: Cut, on_corrupt: OnCorrupt
) -> Iterator[Piece]:
    view = snapshot.view
    try:
        chain = snapshot.open_chain(chain_id, cut, on_corrupt)
        while pieces := chain.read():
            for piece in pieces:
                chosen = select(piece, cut.interval)
                if chosen is not None:
                    yield chosen
    except NotFoundError as error:
        if failure := view.explain_missing(snapshot.generation, error, chain_id.partition):
            raise failure from error
