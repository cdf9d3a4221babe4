"""Pieces of many files in one order: by (timestamp, writer, sequence, position, index). Pure.

Within a source the order is its own; between sources the timestamps decide, and where they are equal
the writer and the sequence. The same files always give the same order.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from filestream.partitions.event import Event
from filestream.partitions.filters import Piece
from filestream.segment_reader import decode_block

__all__ = ["Source", "events_of", "merge_events", "merge_pieces"]

Item = TypeVar("Item", Event, Piece)


class Source(NamedTuple):
    """Pieces in an order of their own.

    Attributes:
        first_ms: no event is older; until the merge gets there, the source is not touched.
        order: decides between sources at equal times; no two sources share it.
    """

    first_ms: int
    order: tuple[str, int]
    pieces: Iterator[Piece]


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


def merge_events(sources: Sequence[Source]) -> Iterator[Event]:
    """Events of several sources."""
    return _merge([(s, _events(s.pieces)) for s in sources], lambda event: event.timestamp_ms)


def merge_pieces(sources: Sequence[Source]) -> Iterator[Piece]:
    """Whole pieces of several sources, in the order of their first events."""
    return _merge([(s, s.pieces) for s in sources], lambda piece: piece.block.timestamp_ms)


def _events(pieces: Iterator[Piece]) -> Iterator[Event]:
    for piece in pieces:
        yield from events_of(piece)


def _merge(
    sources: Sequence[tuple[Source, Iterator[Item]]], time_of: Callable[[Item], int]
) -> Iterator[Item]:
    if len(sources) == 1:
        yield from sources[0][1]
        return
    # The head of a source that was not touched yet is None, and its time a lower bound.
    heap: list[tuple[int, tuple[str, int], list[Any]]] = [
        (source.first_ms, source.order, [None, items]) for source, items in sources
    ]
    heapq.heapify(heap)
    while heap:
        _, order, cell = heap[0]
        head, items = cell
        if head is not None:
            yield head
        head = cell[0] = next(items, None)
        if head is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (time_of(head), order, cell))
