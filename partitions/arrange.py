"""Which events go where: one time each, in the order of time, divided by partition. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import gt

from filestream.blocks import TIMESTAMP_MS_MAX
from filestream.codec import EncodedEvent
from filestream.partitions.appended import Run
from filestream.partitions.layout import Partition, Segment
from filestream.segment_encoder import SegmentEncoder
from filestream.settings import StreamProperties

__all__ = ["Arranged", "Batch", "Portion", "arrange", "blocks_of", "encode_run"]

# Events of one call, and a timestamp for each; None for the clock's.
Batch = tuple[Sequence[EncodedEvent], Sequence[int | None] | None]


@dataclass(frozen=True, slots=True)
class Portion:
    """Events of one partition, in the order of time; one time for all, or one each."""

    partition: Partition
    events: Sequence[EncodedEvent]
    stamps: Sequence[int] | int

    @property
    def first_ms(self) -> int:
        """Time of the first event."""
        return self.stamps if isinstance(self.stamps, int) else self.stamps[0]

    def not_before(self, least_ms: int) -> "Portion":
        """The same, with times raised where they lie before ``least_ms``."""
        if self.first_ms >= least_ms:
            return self
        if isinstance(self.stamps, int):
            return Portion(self.partition, self.events, least_ms)
        return Portion(self.partition, self.events, [max(s, least_ms) for s in self.stamps])

    def part(self, start: int, stop: int) -> "Portion":
        """Some of the events."""
        stamps = self.stamps if isinstance(self.stamps, int) else self.stamps[start:stop]
        return Portion(self.partition, self.events[start:stop], stamps)


@dataclass(frozen=True, slots=True)
class Arranged:
    """All events of several calls.

    Attributes:
        order: for each event as given, which one it is now; None when nothing was sorted.
    """

    portions: list[Portion]
    order: list[int] | None


def arrange(batches: Sequence[Batch], generation: int, now_ms: int, duration_ms: int) -> Arranged:
    """Stamp, sort and divide the events of several calls.

    Args:
        now_ms: the time of events that came without one.
        duration_ms: of a partition.
    """
    now_ms = max(1, min(now_ms, TIMESTAMP_MS_MAX))
    if all(given is None for _, given in batches):
        # The usual case: one time for all, nothing to sort and nothing to divide.
        events = [event for batch, _ in batches for event in batch]
        return Arranged(
            [Portion(Partition.of(generation, now_ms, duration_ms), events, now_ms)], None
        )
    events, stamps = _flatten(batches, now_ms)
    order: list[int] | None = None
    if any(map(gt, stamps, stamps[1:])):
        by_time = sorted(range(len(stamps)), key=stamps.__getitem__)
        events, stamps = [events[i] for i in by_time], [stamps[i] for i in by_time]
        order = [0] * len(by_time)
        for place, i in enumerate(by_time):
            order[i] = place
    portions: list[Portion] = []
    at = 0
    while at < len(events):
        partition = Partition.of(generation, stamps[at], duration_ms)
        end = bisect_right(stamps, partition.end_ms - 1, lo=at)
        portions.append(Portion(partition, events[at:end], stamps[at:end]))
        at = end
    return Arranged(portions, order)


def blocks_of(events: Sequence[EncodedEvent], size_max: int) -> Iterable[tuple[int, int, int]]:
    """Ranges of events that fit a block, with their size; one that fits none stands alone."""
    # A timestamp delta takes up to ten bytes more.
    whole = sum(map(len, events)) + 10 * len(events)
    if whole <= size_max or len(events) == 1:
        yield 0, len(events), whole
        return
    # Summed and searched in one go each: a step for each event would take longer than its bytes.
    sums = list(accumulate(map((10).__add__, map(len, events))))
    start = before = 0
    while start < len(events):
        end = max(bisect_right(sums, before + size_max, lo=start), start + 1)
        yield start, end, sums[end - 1] - before
        start, before = end, sums[end - 1]


def encode_run(
    encoder: SegmentEncoder, segment: Segment, portion: Portion, properties: StreamProperties
) -> list[Run]:
    """Add events that fit a block, or one that fits none, to a segment; where they stand in it."""
    events, stamps = portion.events, portion.stamps
    if isinstance(stamps, int):
        first = last = stamps
    else:
        first, last = stamps[0], stamps[-1]
    block_size_max = properties.block_size_bytes_max
    if len(events[0]) > block_size_max and properties.format == "E3":
        placed = encoder.add_large(events[0], first, block_size_max)
    else:
        placed = encoder.add(events, first if first == last else stamps)
    return [Run(segment, position, 0, count) for position, count in placed]


def _flatten(batches: Sequence[Batch], now_ms: int) -> tuple[list[EncodedEvent], list[int]]:
    events: list[EncodedEvent] = []
    stamps: list[int] = []
    for batch, given in batches:
        events += batch
        if given is None:
            stamps += [now_ms] * len(batch)
        else:
            stamps += [now_ms if stamp is None else stamp for stamp in given]
    return events, stamps
