"""Where the blocks of a segment stand, from their heads alone: no payload is read.

For planners: they need boundaries and counts of events, not events. A boundary is a place at which
reading may begin and end; the inside of a large event's run of blocks is none. Nothing here is
verified by a checksum: whoever reads between two boundaries does that.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from filestream import eventfile
from filestream.blocks import BLOCK_SIZE_BYTES_LIMIT
from filestream.codec import read_signed
from filestream.errors import CorruptDataError
from filestream.segment_reader import SegmentReader
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
    storage: Storage, key: str, known: Boundary | None = None, stop: int | None = None
) -> SegmentEnd:
    """The end of a segment, read in one step when it is sealed, walked to otherwise.

    Args:
        key: of the event file.
        known: a boundary from an earlier look, to go on from.
        stop: look at it as if it had this size.
    """
    reader = SegmentReader(storage, key)
    size = storage.size(key) if stop is None else stop
    footer = reader.footer()
    if footer is not None and footer.end <= size:
        return SegmentEnd(Boundary(footer.position, footer.events), True, size)
    last = known
    is_sealed = False
    if known is None:
        entries = [entry for entry in reader.index() if entry.position < size]
        # A hint, checked before it is used.
        if entries and reader.block_at(entries[-1].position) is not None:
            last = Boundary(entries[-1].position, entries[-1].first_ordinal)
    for boundary in boundaries(storage, key, last, size):
        if boundary is None:
            is_sealed = True
        else:
            last = boundary
    return SegmentEnd(last or Boundary(0, 0), is_sealed, size)


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
