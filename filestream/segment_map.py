"""Where the blocks of a segment stand, for planners: they need boundaries and counts, not events.

A boundary is a place at which reading may begin and end; the inside of a large event's run of blocks
is none. ``boundaries`` walks heads alone and checks nothing: whoever reads between two boundaries
does that. ``segment_end`` is checked.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from filestream import eventfile
from filestream.blocks import BLOCK_SIZE_BYTES_LIMIT
from filestream.codec import read_signed
from filestream.errors import CorruptDataError
from filestream.segment_reader import OnCorrupt, SegmentReader
from filestream.storage.base import Storage

__all__ = ["Boundary", "SegmentEnd", "boundaries", "boundary_at", "segment_end"]

_CHUNK_SIZE_BYTES: Final = 64 << 10
_HEAD_SIZE_BYTES: Final = 64
_I64: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place between blocks.

    Attributes:
        events: events before it in the segment; -1 where the format does not say.
    """

    position: int
    events: int


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """Where a segment ends now.

    Attributes:
        boundary: behind the last whole block.
        is_sealed: nothing will follow.
        size_bytes: of the event file.
    """

    boundary: Boundary
    is_sealed: bool
    size_bytes: int


def segment_end(
    storage: Storage,
    key: str,
    known: Boundary | None = None,
    stop: int | None = None,
    on_corrupt: OnCorrupt = "raise",
) -> SegmentEnd:
    """The end of a segment: from its footer when it is sealed, else by reading what is new in it.

    Reading checks, so damage is never taken for the end; and it begins at ``known`` or at the last
    index entry, so it costs what was appended since.

    Args:
        key: of the event file.
        known: a boundary from an earlier look, to go on from.
        stop: look at it as if it had this size.

    Raises:
        CorruptDataError: damage, unless it is to be stepped over.
    """
    probe = SegmentReader(storage, key)
    size = storage.size(key) if stop is None else stop
    footer = probe.footer()
    if footer is not None and footer.end <= size:
        return SegmentEnd(Boundary(footer.position, footer.events), True, size)
    start = known or Boundary(0, 0)
    reader = SegmentReader(storage, key, position=start.position, limit=stop, on_corrupt=on_corrupt)
    if known is None:
        reader.seek_ordinal(1 << 62)
    last = Boundary(reader.position, start.events)
    # Twice: the second look at an unchanged tail asks whether it hides damage.
    looks_left = 2
    while looks_left and not reader.is_over:
        blocks = reader.read_blocks()
        if not blocks:
            looks_left -= 1
        elif blocks[-1].first_ordinal >= 0:
            last = Boundary(blocks[-1].end, blocks[-1].first_ordinal + blocks[-1].event_count)
        else:
            last = Boundary(blocks[-1].end, -1)
    if reader.position > last.position:
        last = Boundary(reader.position, last.events)
    return SegmentEnd(last, reader.end is not None, size)


def boundary_at(storage: Storage, key: str, position: int) -> Boundary:
    """The boundary at a block's start, with the count that its head gives."""
    data = storage.read(key, position, _HEAD_SIZE_BYTES)
    head = _read_head(data, 0, has_counts=True) if position else None
    if SegmentReader(storage, key).open_header() is None or head is None:
        return Boundary(position, 0)
    return Boundary(position, head.first_ordinal)


def boundaries(
    storage: Storage, key: str, start: Boundary | None = None, stop: int | None = None
) -> Iterator[Boundary | None]:
    """Boundaries from ``start`` (included) on; None, once, for the end record.

    Args:
        start: None for the first block.
        stop: no boundary behind this position.
    """
    header = SegmentReader(storage, key).open_header()
    if header is None:
        return
    size = storage.size(key) if stop is None else stop
    has_counts = header.version == "E3"
    if start is None or start.position == 0:
        start = Boundary(header.size, 0 if has_counts else -1)
    yield start
    position, events = start.position, start.events
    data, base = b"", position
    while True:
        if position - base + _HEAD_SIZE_BYTES > len(data):
            data, base = storage.read(key, position, _CHUNK_SIZE_BYTES), position
        head = _read_head(data, position - base, has_counts=has_counts)
        if head is None:
            return
        if head.is_end:
            yield None
            return
        position += head.size
        if position > size:
            return
        events += head.events if has_counts else 0
        # The rest of a large event must follow before there is a boundary again.
        if not head.is_inside:
            yield Boundary(position, events)


class _Head(NamedTuple):
    size: int
    events: int
    first_ordinal: int
    is_inside: bool
    is_end: bool


def _read_head(data: bytes, at: int, *, has_counts: bool) -> _Head | None:
    """What the head of a block says; None when there is no whole or sensible head."""
    if len(data) - at < 8:
        return None
    (timestamp_ms,) = _I64.unpack_from(data, at)
    if timestamp_ms < 0:
        return _Head(0, 0, 0, False, True) if timestamp_ms == -1 or not has_counts else None
    try:
        found = read_signed(data, at + 8, len(data))
        limit = BLOCK_SIZE_BYTES_LIMIT if has_counts else 2**31
        if found is None or not 0 < found[0] <= limit:
            return None
        length, content = found
        numbers: list[int] = []
        cursor = content + 4
        while has_counts and len(numbers) < 3:
            found = read_signed(data, cursor, len(data))
            if found is None:
                return None
            numbers.append(found[0])
            cursor = found[1]
    except CorruptDataError:
        return None
    size = content - at + length
    if not has_counts:
        return _Head(size, 0, -1, False, False)
    flags, events, first_ordinal = numbers
    is_inside = bool(flags & eventfile.CHUNK) and not flags & eventfile.LAST
    return _Head(size, events, first_ordinal, is_inside, False)
