"""How far a group is behind: from files and its state alone, so also for a group that is dead."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from filestream.consumers.layers import place_of
from filestream.consumers.state import GroupState
from filestream.errors import NotFoundError
from filestream.partitions.chain import Chain, ChainId, Place
from filestream.partitions.event import Event
from filestream.partitions.filters import Interval, select
from filestream.partitions.merge import events_of
from filestream.partitions.snapshot import Snapshot, StreamView, take_snapshot
from filestream.segment_map import boundary_at, segment_end

__all__ = ["Lag", "measure_lag"]

_ORIGIN: Final = Place()


@dataclass(frozen=True, slots=True)
class Lag:
    """What a group has not processed.

    Attributes:
        events: those that were handed out and not committed included. E1 and E2 files keep no counts,
            and are read for it.
        size_bytes: of files, behind the places of the group.
        seconds: age of the oldest such event by its timestamp; 0 when there is none.
        oldest_timestamp_ms: its timestamp; 0 when there is none.
    """

    events: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    oldest_timestamp_ms: int = 0


def measure_lag(view: StreamView, state: GroupState) -> Lag:
    """Look at heads and footers, and read only blocks that are processed in part.

    Raises:
        CorruptDataError: damage where it looked.
    """
    snapshot = take_snapshot(view)
    if state.generation != snapshot.generation.number:
        state = state.in_generation(snapshot.generation.number)
    state = state.as_mirrored()
    low, high = state.low(), state.high()
    alive = view.alive
    events = size = 0
    oldest: Event | None = None
    for chain in snapshot.chains:
        partition = chain.partition
        if alive.is_disjoint(partition.start_ms, partition.end_ms):
            continue
        start = low.get(chain, _ORIGIN)
        end = max(start, high.get(chain, _ORIGIN))
        pending, first = _between(snapshot, chain, state, start, end, alive)
        if first is None:
            continue
        # From the first that counts on: what lies before it is processed, given up or expired.
        begin = place_of(first)
        events += pending + _behind(snapshot, chain, state, max(end, begin))
        size += _size_behind(snapshot, chain, begin)
        if oldest is None or first.timestamp_ms < oldest.timestamp_ms:
            oldest = first
    if oldest is None:
        return Lag()
    age_s = max(0.0, (view.clock.now_ms() - oldest.timestamp_ms) / 1000)
    return Lag(events, size, age_s, oldest.timestamp_ms)


def _between(
    snapshot: Snapshot,
    chain: ChainId,
    state: GroupState,
    start: Place,
    end: Place,
    alive: Interval,
) -> tuple[int, Event | None]:
    """Unprocessed events between two places, and the first of them or behind them."""
    count, first = 0, None
    for event in _events_from(snapshot, chain, start, alive):
        is_beyond = place_of(event) >= end
        if is_beyond and first is not None:
            break
        if state.is_dead(event) or (not is_beyond and state.is_processed(event)):
            continue
        first = first or event
        if is_beyond:
            break
        count += 1
    return count, first


def _behind(snapshot: Snapshot, chain: ChainId, state: GroupState, place: Place) -> int:
    """Events from a place on, of which nothing is processed, without those that were given up."""
    events = 0
    storage = snapshot.view.storage
    for segment in snapshot.chains[chain]:
        if segment.sequence < place.sequence:
            continue
        try:
            end = segment_end(storage, segment.data_key, stop=snapshot.limits.get(segment))
        except NotFoundError:
            continue  # Undone, or expired while we look.
        if end.boundary.events < 0:
            # E1 and E2 keep no counts: there is nothing for it but to read.
            return sum(1 for _ in _events_from(snapshot, chain, place, snapshot.view.alive))
        before = 0
        if segment.sequence == place.sequence and place.position:
            before = boundary_at(storage, segment.data_key, place.position).events + place.index
        events += max(0, end.boundary.events - before)
    dead = sum(
        1
        for letter in state.dead
        if ChainId(letter.offset.partition, letter.offset.writer_id) == chain
        and Place(letter.offset.sequence, letter.offset.position, letter.offset.index) >= place
    )
    return max(0, events - dead)


def _size_behind(snapshot: Snapshot, chain: ChainId, place: Place) -> int:
    """Bytes of files from a place's block on."""
    size = 0
    for segment in snapshot.chains[chain]:
        if segment.sequence < place.sequence:
            continue
        try:
            size += snapshot.view.storage.size(segment.data_key)
        except NotFoundError:
            continue
        if segment.sequence == place.sequence:
            size -= place.position
    return size


def _events_from(
    snapshot: Snapshot, chain_id: ChainId, place: Place, alive: Interval
) -> Iterator[Event]:
    chain = Chain(snapshot.view.storage, snapshot.chains[chain_id], start=place)
    while pieces := chain.read():
        for piece in pieces:
            for chosen in select(piece, alive):
                yield from events_of(chosen)
