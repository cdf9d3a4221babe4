"""An event, the unit that a user sees."""

from collections.abc import Mapping
from typing import NamedTuple

from filestream.partitions.layout import Offset, Segment

__all__ = ["Event"]


class Event(NamedTuple):
    """One event as it was read. A tuple, because hundreds of thousands are made a second.

    Attributes:
        timestamp_ms: milliseconds since 1970-01-01T00:00:00Z.
        headers: text to text or None; the reader's own, not shared with other events.
        body: the bytes that were appended.
        segment, position, index_in_block: where it stands; ``offset`` says the same in one value.
    """

    timestamp_ms: int
    headers: Mapping[str, str | None]
    body: bytes
    segment: Segment
    position: int
    index_in_block: int

    @property
    def offset(self) -> Offset:
        """Its place; reading from it begins with this event."""
        return Offset.in_segment(self.segment, self.position, self.index_in_block)
