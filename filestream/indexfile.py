"""Index files I3 and I1: which block stands where. No input or output happens here.

    I3 = "I3", file_crc (u32), entries of 28 B: timestamp (i64), position (i64),
         first_ordinal (i64), crc (u32, of file_crc and the 24 bytes before)
    I1 = "I1", Avro map, entries of 16 B: timestamp (i64), position (i64)

The index is a hint: it may lag, it is not synced, an entry is used only after the block it points
at was checked, and it can be rebuilt from its event file at any time. So parsing never raises; what cannot
be believed is left out.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from filestream.codec import crc32c, read_headers
from filestream.errors import CorruptDataError

__all__ = ["IndexEntry", "encode_cdap_entry", "encode_entry", "encode_header", "parse"]

CDAP_HEADER: Final = b"I1\0"
_ENTRY: Final = struct.Struct(">qqqI")
_CDAP_ENTRY: Final = struct.Struct(">qq")
_U32: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One indexed block.

    Attributes:
        first_ordinal: events before the block in its file; -1 where the format does not say.
    """

    timestamp_ms: int
    position: int
    first_ordinal: int


def encode_header(file_crc: int) -> bytes:
    """The head of an I3 file; it repeats the CRC of its event file."""
    return b"I3" + _U32.pack(file_crc)


def encode_entry(file_crc: int, entry: IndexEntry) -> bytes:
    """One I3 entry."""
    raw = struct.pack(">qqq", entry.timestamp_ms, entry.position, entry.first_ordinal)
    return raw + _U32.pack(crc32c(_U32.pack(file_crc) + raw))


def encode_cdap_entry(entry: IndexEntry) -> bytes:
    """One I1 entry."""
    return _CDAP_ENTRY.pack(entry.timestamp_ms, entry.position)


def parse(data: bytes, file_crc: int | None) -> Sequence[IndexEntry]:
    """Entries that can be believed, in file order; none for an index of another file.

    Args:
        data: the whole index file.
        file_crc: of the E3 event file, or None for an E1 or E2 file.
    """
    found: list[IndexEntry] = []
    if file_crc is not None:
        if data[:6] != encode_header(file_crc):
            return found
        seed = crc32c(_U32.pack(file_crc))
        for at in range(6, len(data) - 27, 28):
            timestamp_ms, position, first_ordinal, crc = _ENTRY.unpack_from(data, at)
            if crc32c(data[at : at + 24], seed) != crc or (
                found and position <= found[-1].position
            ):
                break
            found.append(IndexEntry(timestamp_ms, position, first_ordinal))
        return found
    if data[:2] != b"I1":
        return found
    try:
        head = read_headers(data, 2, len(data))
    except CorruptDataError:
        return found
    for at in range(head[1] if head else len(data), len(data) - 15, 16):
        timestamp_ms, position = _CDAP_ENTRY.unpack_from(data, at)
        if found and position <= found[-1].position:
            break
        found.append(IndexEntry(timestamp_ms, position, -1))
    return found
