"""Where appended events went: offsets that are made only when somebody looks at them."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, overload

from filestream.partitions.layout import Offset, Segment

__all__ = ["AppendedOffsets", "Placed", "Run"]


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


class Placed(NamedTuple):
    """Where the events of several calls went.

    Attributes:
        runs: in the order in which they were written.
        order: place of each given event in the order written; None when both are the same.
    """

    runs: Sequence[Run]
    order: Sequence[int] | None

    def offset(self, index: int) -> Offset:
        """Of one event, counted in the order given."""
        place = index if self.order is None else self.order[index]
        for run in self.runs:
            if place < run.size:
                return Offset.in_segment(run.segment, run.position, run.first + place)
            place -= run.size
        raise IndexError(index)


class AppendedOffsets(Sequence[Offset]):
    """Offsets of the events of one call, in the order in which they were given.

    Args:
        placed: where the events of this and other calls went.
        start: index of this call's first event among them.
        count: how many events are this call's.
    """

    def __init__(self, placed: Placed, start: int, count: int) -> None:
        self._placed = placed
        self._start = start
        self._count = count
        self._ends: list[int] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Offset: ...
    @overload
    def __getitem__(self, index: slice) -> list[Offset]: ...
    def __getitem__(self, index: int | slice) -> Offset | list[Offset]:
        """Offset of one event, or of several."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        runs, order = self._placed
        place = self._start + index % self._count
        if order is not None:
            place = order[place]
        if self._ends is None:
            self._ends = list(accumulate(run.size for run in runs))
        number = bisect_right(self._ends, place)
        run = runs[number]
        return Offset.in_segment(
            run.segment, run.position, run.first + place - (self._ends[number] - run.size)
        )

    def __repr__(self) -> str:
        return f"AppendedOffsets(count={self._count})"
