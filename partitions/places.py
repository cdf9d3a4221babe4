"""A position of the stream as a place in each of its chains: what a group of consumers keeps."""

from filestream.partitions.chain import ChainId, Place, place_at_time
from filestream.partitions.layout import Offset, Partition
from filestream.partitions.positions import At, End, Position, Start
from filestream.partitions.snapshot import Bounds, Snapshot, StreamView, take_snapshot

__all__ = ["places_at"]


def places_at(view: StreamView, position: Position) -> tuple[int, dict[ChainId, Place]]:
    """Resolve a position now.

    Returns:
        The generation, and the place in each chain where reading on gives all that lies behind the
        position in the merged order; chains that are not named begin at their beginning.

    Raises:
        FencedError: an offset of a generation that was truncated.
        NotFoundError: an offset of a segment that is not there.
        InvalidRequestError: an offset at which no block begins.
    """
    snapshot = take_snapshot(view)
    bounds = Bounds(snapshot, position, End())
    number = snapshot.generation.number
    start = bounds.start
    if isinstance(start, Start):
        return number, {}
    if isinstance(start, End):
        return number, {chain: snapshot.end_of(chain, "raise") for chain in snapshot.chains}
    if isinstance(start, At):
        return number, _at_time(snapshot, start.timestamp_ms)
    assert isinstance(start, Offset)
    return number, _at_offset(snapshot, start, bounds.start_ms)


def _at_time(snapshot: Snapshot, from_ms: int) -> dict[ChainId, Place]:
    return {
        chain: place
        for chain in snapshot.chains
        if (place := _place_in(snapshot, chain, from_ms)) != Place()
    }


def _at_offset(snapshot: Snapshot, offset: Offset, from_ms: int) -> dict[ChainId, Place]:
    places = {}
    for chain in snapshot.chains:
        if chain == ChainId(offset.partition, offset.writer_id):
            places[chain] = Place(offset.sequence, offset.position, offset.index)
        else:
            # Events of the same time stand in the order of their writers.
            is_before = chain.writer_id < offset.writer_id
            places[chain] = _place_in(snapshot, chain, from_ms + is_before)
    return {chain: place for chain, place in places.items() if place != Place()}


def _place_in(snapshot: Snapshot, chain: ChainId, from_ms: int) -> Place:
    partition: Partition = chain.partition
    if partition.end_ms <= from_ms:
        return snapshot.end_of(chain, "raise")
    if partition.start_ms >= from_ms:
        return Place()
    return place_at_time(snapshot.view.storage, snapshot.chains[chain], from_ms)
