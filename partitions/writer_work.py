"""What a writer's threads and tasks bring to its drain."""

from filestream.codec import EncodedEvent
from filestream.partitions.appended import AppendedOffsets, Placed
from filestream.partitions.drain import Work
from filestream.partitions.layout import Offset

__all__ = ["Append", "Control", "may_fly"]


class Append(Work):
    """Events of one call, and where they went.

    Attributes:
        is_loose: nobody waits for it: more events may join until it is taken.
        placed, start: where its events and those of other calls went, and which of them is its first.
    """

    __slots__ = ("events", "is_loose", "placed", "start", "timestamps_ms")

    def __init__(
        self,
        events: list[EncodedEvent],
        timestamps_ms: list[int | None] | None,
        size: int,
        *,
        is_loose: bool = False,
    ) -> None:
        super().__init__(size)
        self.events = events
        self.timestamps_ms = timestamps_ms
        self.is_loose = is_loose
        self.placed = Placed((), None)
        self.start = 0

    @property
    def offset(self) -> Offset:
        """Of its first event."""
        return self.placed.offset(self.start)

    @property
    def offsets(self) -> AppendedOffsets:
        """Of its events; made on the caller's thread, not on the leader's."""
        return AppendedOffsets(self.placed, self.start, len(self.events))


class Control(Work):
    """A step that must not run beside an append: flush, look, roll or close; "pass" may."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        super().__init__(is_urgent=True)
        self.what = what


def may_fly(work: Work) -> bool:
    """Whether other batches may be under way beside this work."""
    return isinstance(work, Append) or (isinstance(work, Control) and work.what == "pass")
