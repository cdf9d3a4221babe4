"""Where appended events went: offsets that are made only when somebody looks at them."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, overload

from filestream.partitions.layout import Offset, Segment

__all__ = ["AppendedOffsets", "Run", "divide"]


class Run(NamedTuple):
    """Events that stand one behind the other in one block.

    Attributes:
        position: of the block in the segment.
        first: index of the first of them in the block.
        size: how many they are.
    """

    segment: Segment
    position: int
    first: int
    size: int


class AppendedOffsets(Sequence[Offset]):
    """Offsets of appended events, in the order in which the events were given.

    Args:
        runs: where the events stand, in the order in which they were written.
        order: place of each given event in the order written; None when both are the same.
    """

    def __init__(self, runs: Sequence[Run] = (), order: Sequence[int] | None = None) -> None:
        self._runs = runs
        self._order = order
        self._ends = [runs[0].size] if len(runs) == 1 else list(accumulate(r.size for r in runs))

    def __len__(self) -> int:
        if self._order is not None:
            return len(self._order)
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Offset: ...
    @overload
    def __getitem__(self, index: slice) -> list[Offset]: ...
    def __getitem__(self, index: int | slice) -> Offset | list[Offset]:
        """Offset of one event, or of several."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        place = index % len(self)
        if self._order is not None:
            place = self._order[place]
        number = bisect_right(self._ends, place)
        run = self._runs[number]
        return Offset.in_segment(
            run.segment, run.position, run.first + place - (self._ends[number] - run.size)
        )

    def __repr__(self) -> str:
        return f"AppendedOffsets(count={len(self)})"


def divide(
    runs: Sequence[Run], order: Sequence[int] | None, counts: Sequence[int]
) -> list[AppendedOffsets]:
    """What belongs to each of several calls whose events were written together.

    Args:
        runs, order: as ``AppendedOffsets`` takes them, of all events of all calls.
        counts: events of each call.
    """
    if len(counts) == 1:
        return [AppendedOffsets(runs, order)]
    divided: list[AppendedOffsets] = []
    start = 0
    for count in counts:
        if order is not None:
            divided.append(AppendedOffsets(runs, order[start : start + count]))
        else:
            divided.append(AppendedOffsets(_between(runs, start, start + count)))
        start += count
    return divided


def _between(runs: Sequence[Run], start: int, stop: int) -> list[Run]:
    if len(runs) == 1:
        segment, position, first, _ = runs[0]
        return [Run(segment, position, first + start, stop - start)]
    taken: list[Run] = []
    at = 0
    for segment, position, first, size in runs:
        low, high = max(start, at), min(stop, at + size)
        if low < high:
            taken.append(Run(segment, position, first + low - at, high - low))
        at += size
    return taken
