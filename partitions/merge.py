"""Pieces of many chains in one order: by (timestamp, writer, sequence, position, index). Pure.

Within a chain the order is that of the file, whatever the timestamps say; between chains the
timestamps decide, and the writer's id where they are equal. The same files always give the same
order.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence

from filestream.partitions.event import Event
from filestream.partitions.filters import Piece
from filestream.segment_reader import decode_block

__all__ = ["events_of", "merge_events", "merge_pieces"]


def events_of(piece: Piece) -> Sequence[Event]:
    """The events of a piece.

    Raises:
        CorruptDataError: the block cannot be decoded.
    """
    segment, url, block, first, stop = piece
    start_ms, position = block.timestamp_ms, block.position
    events = [
        Event(start_ms + delta, headers, body, segment, position, index)
        for index, (delta, body, headers) in enumerate(decode_block(block, url))
    ]
    if first == 0 and stop < 0:
        return events
    return events[first : stop if stop >= 0 else None]


def merge_events(chains: Sequence[Iterable[Piece]]) -> Iterator[Event]:
    """Events of several chains, each one's pieces given in its own order."""
    if len(chains) == 1:
        for piece in chains[0]:
            yield from events_of(piece)
        return
    sources = [(event for piece in chain for event in events_of(piece)) for chain in chains]
    yield from heapq.merge(*sources, key=_event_key)


def merge_pieces(chains: Sequence[Iterable[Piece]]) -> Iterator[Piece]:
    """Whole pieces of several chains in the order of their first events."""
    if len(chains) == 1:
        yield from chains[0]
        return
    yield from heapq.merge(*chains, key=_piece_key)


def _event_key(event: Event) -> tuple[int, str]:
    return event.timestamp_ms, event.segment.writer_id


def _piece_key(piece: Piece) -> tuple[int, str]:
    return piece.block.timestamp_ms, piece.segment.writer_id
