"""When a segment is sealed and the next one begun. Pure: it is told the time and the sizes."""

from dataclasses import dataclass
from typing import Final

from filestream.settings import StreamProperties

__all__ = ["SegmentAge", "next_look_s", "roll_reason"]

# After a partition's end its segment waits this long for stragglers before the timer seals it.
_PARTITION_GRACE_S: Final = 10.0


@dataclass(slots=True)
class SegmentAge:
    """What rotation needs to know of an open segment; monotonic seconds.

    Attributes:
        partition_end_ms: wall clock at which its partition ends.
    """

    opened_s: float
    appended_s: float
    partition_end_ms: int


def roll_reason(
    age: SegmentAge,
    *,
    size_bytes: int,
    properties: StreamProperties,
    now_s: float,
    now_ms: int,
) -> str | None:
    """Why the segment should be sealed now, or None."""
    idle_s = now_s - age.appended_s
    if size_bytes >= properties.segment_size_bytes_max:
        return "size"
    if (now_s - age.opened_s) * 1000 >= properties.segment_age_ms_max:
        return "age"
    if idle_s * 1000 >= properties.segment_idle_ms_max:
        return "idle"
    if now_ms >= age.partition_end_ms and idle_s >= _PARTITION_GRACE_S:
        return "partition end"
    return None


def next_look_s(
    age: SegmentAge, *, properties: StreamProperties, now_s: float, now_ms: int
) -> float:
    """Seconds until ``roll_reason`` may first say something without any traffic; at least 0.01."""
    until_end_s = max(
        (age.partition_end_ms - now_ms) / 1000, age.appended_s + _PARTITION_GRACE_S - now_s
    )
    until_old_s = age.opened_s + properties.segment_age_ms_max / 1000 - now_s
    until_idle_s = age.appended_s + properties.segment_idle_ms_max / 1000 - now_s
    return max(0.01, min(until_end_s, until_old_s, until_idle_s))
