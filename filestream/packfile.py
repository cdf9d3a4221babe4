"""Packs: small segments of one writer, byte for byte one behind the other, and where each begins.

    pack  = segment+    closed E3 files with consecutive sequences; nothing before, between, behind
    index = "P1"  packed_at_ms  first_sequence  count  size{count} (vints)  crc (u32)

Nothing of a segment changes, so every checksum in it goes on to hold, and offsets stay what they are.
The index is a hint as that of a segment is: it follows the pack, may be missing, and can be made anew
by ``walk``. No input or output happens here.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from filestream import eventfile
from filestream.blocks import Block, Chunk, End
from filestream.codec import crc32c, encode_signed, read_signed
from filestream.errors import CorruptDataError

__all__ = ["PackIndex", "encode_index", "parse_index", "walk"]

_MAGIC: Final = b"P1"
_U32: Final = struct.Struct(">I")
_COUNT_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PackIndex:
    """Where segments stand in a pack.

    Attributes:
        packed_at_ms: wall clock when the pack was made.
        first: sequence of the first segment.
        sizes: of each segment in bytes, in the order of their sequences.
    """

    packed_at_ms: int
    first: int
    sizes: Sequence[int]


def encode_index(index: PackIndex) -> bytes:
    """The index file of a pack."""
    numbers = (index.packed_at_ms, index.first, len(index.sizes), *index.sizes)
    raw = _MAGIC + b"".join(map(encode_signed, numbers))
    return raw + _U32.pack(crc32c(raw))


def parse_index(data: bytes) -> PackIndex:
    """What ``encode_index`` gave.

    Raises:
        CorruptDataError: it is not whole, or its checksum does not hold.
    """
    stop = len(data) - _U32.size
    if data[:2] != _MAGIC or stop < 2 or crc32c(data[:stop]) != _U32.unpack_from(data, stop)[0]:
        raise CorruptDataError("the checksum of a pack's index does not hold.")
    numbers: list[int] = []
    at = 2
    while at < stop:
        found = read_signed(data, at, stop)
        if found is None or found[0] < 0 or len(numbers) > _COUNT_MAX:
            raise CorruptDataError("a pack's index holds no numbers.", position=at)
        numbers.append(found[0])
        at = found[1]
    if len(numbers) < 4 or numbers[2] != len(numbers) - 3:
        raise CorruptDataError("a pack's index holds another number of segments than it says.")
    return PackIndex(numbers[0], numbers[1], numbers[3:])


def walk(data: bytes) -> Iterator[tuple[int, int, Mapping[str, str]]]:
    """Start, size and file properties of each segment; every checksum is checked on the way.

    Raises:
        CorruptDataError: anything but whole, closed E3 segments stands there.
        UnsupportedVersionError: they need what this release lacks.
    """
    start = 0
    while start < len(data):
        header = _header_at(data, start)
        # In the coordinates of the segment the pack's first byte lies before its own.
        position = header.size
        while not isinstance(found := header.parse(data, start + position, -start), End):
            if not isinstance(found, Block | Chunk):
                reason = getattr(found, "reason", "the bytes stop inside a segment.")
                raise CorruptDataError(reason, position=start + position)
            position = found.end if isinstance(found, Block) else found.block.end
        yield start, found.end, header.properties
        start += found.end


def _header_at(data: bytes, start: int) -> eventfile.E3Header:
    size = 4 << 10
    while True:
        head = data[start : start + size]
        header = eventfile.parse_header(head) if head[:2] == eventfile.MAGIC else None
        if header is not None:
            return header
        if head[:2] != eventfile.MAGIC or start + size >= len(data):
            raise CorruptDataError("no segment begins here.", position=start)
        size *= 2
