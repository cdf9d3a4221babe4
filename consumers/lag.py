"""How far a group is behind: from files and its state alone, so also for a group that is dead."""

from dataclasses import dataclass

from filestream.consumers.state import GroupState, place_of
from filestream.errors import NotFoundError
from filestream.partitions.chain import Chain, ChainId, Place
from filestream.partitions.event import Event
from filestream.partitions.filters import Interval, select
from filestream.partitions.merge import events_of
from filestream.partitions.snapshot import Snapshot, StreamView, take_snapshot
from filestream.segment_map import boundary_at, segment_end

__all__ = ["Lag", "measure_lag"]


@dataclass(frozen=True, slots=True)
class Lag:
    """What a group has not processed.

    Attributes:
        events: those that were handed out and not committed included. Of E1 and E2 files, which keep
            no counts, only the part that had to be read is counted.
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
    low, high = state.low(), state.high()
    alive = view.alive
    events = size = 0
    oldest: int | None = None
    for chain in snapshot.chains:
        partition = chain.partition
        if alive.is_disjoint(partition.start_ms, partition.end_ms):
            continue
        start, end = low.get(chain, Place()), high.get(chain, Place())
        pending, first = _between(snapshot, chain, state, start, max(start, end), alive)
        rest, size_bytes = _behind(snapshot, chain, max(start, end), start)
        events += pending + rest
        # The place may be inside the last block, all of whose events are processed.
        size += size_bytes if first is not None else 0
        if first is not None and (oldest is None or first.timestamp_ms < oldest):
            oldest = first.timestamp_ms
    age_s = 0.0 if oldest is None else max(0.0, (view.clock.now_ms() - oldest) / 1000)
    return Lag(events, size, age_s, oldest or 0)


def _between(
    snapshot: Snapshot,
    chain_id: ChainId,
    state: GroupState,
    start: Place,
    end: Place,
    alive: Interval,
) -> tuple[int, Event | None]:
    """Unprocessed events between two places, and the first of them or behind them."""
    count, first = 0, None
    chain = Chain(snapshot.view.storage, snapshot.chains[chain_id], start=start)
    while pieces := chain.read():
        for piece in pieces:
            for chosen in select(piece, alive):
                for event in events_of(chosen):
                    is_beyond = place_of(event) >= end
                    if is_beyond and first is not None:
                        return count, first
                    if not is_beyond and state.is_processed(event):
                        continue
                    first = first or event
                    count += not is_beyond
                    if is_beyond:
                        return count, first
    return count, first


def _behind(snapshot: Snapshot, chain: ChainId, place: Place, low: Place) -> tuple[int, int]:
    """Events behind a place, and bytes behind a lower one."""
    events = size = 0
    storage = snapshot.view.storage
    for segment in snapshot.chains[chain]:
        if segment.sequence < low.sequence:
            continue
        try:
            end = segment_end(storage, segment.data_key, stop=snapshot.limits.get(segment))
        except NotFoundError:
            continue  # Undone, or expired while we look.
        is_low = segment.sequence == low.sequence
        size += max(0, end.boundary.position - (low.position if is_low else 0))
        if segment.sequence < place.sequence or end.boundary.events < 0:
            continue
        before = 0
        if segment.sequence == place.sequence and place.position:
            before = boundary_at(storage, segment.data_key, place.position).events + place.index
        events += max(0, end.boundary.events - before)
    return events, size
