"""Which events of a block lie in an interval of time. Pure: a block that lies outside is not decoded."""

from bisect import bisect_left
from typing import NamedTuple

from filestream.blocks import Block
from filestream.partitions.layout import Segment
from filestream.segment_reader import decode_block

__all__ = ["ALWAYS", "Interval", "Piece", "select"]


class Interval(NamedTuple):
    """A half-open interval of time: ``from_ms <= timestamp < until_ms``."""

    from_ms: int = -(1 << 63)
    until_ms: int = 1 << 63

    def is_disjoint(self, start_ms: int, end_ms: int) -> bool:
        """Whether nothing of ``[start_ms, end_ms)`` lies in it."""
        return end_ms <= self.from_ms or start_ms >= self.until_ms

    def both(self, other: "Interval") -> "Interval":
        """What lies in both."""
        return Interval(max(self.from_ms, other.from_ms), min(self.until_ms, other.until_ms))


ALWAYS = Interval()


class Piece(NamedTuple):
    """Some events of one checked block: those with ``first <= index < stop``.

    Attributes:
        stop: -1 for all that there are.
    """

    segment: Segment
    url: str
    block: Block
    first: int
    stop: int


def select(piece: Piece, interval: Interval) -> tuple[Piece, ...]:
    """What of a piece lies in an interval: one piece, or none."""
    block = piece.block
    first_ms, last_ms = block.timestamp_ms, block.timestamp_ms + block.span_ms
    if first_ms >= interval.from_ms and last_ms < interval.until_ms:
        return (piece,)
    if last_ms < interval.from_ms or first_ms >= interval.until_ms:
        return ()
    stamps = [first_ms + delta for delta, _, _ in decode_block(block, piece.url)]
    first = max(piece.first, bisect_left(stamps, interval.from_ms))
    stop = bisect_left(stamps, interval.until_ms)
    if piece.stop >= 0:
        stop = min(stop, piece.stop)
    return (piece._replace(first=first, stop=stop),) if first < stop else ()
