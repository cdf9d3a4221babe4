"""Event files of version E3: bytes to blocks and back. No input or output happens here.

Layout (big-endian; ``vint`` is a zig-zag varint; all CRCs are CRC-32C)::

    +------+------------+----------+---------+-----+------------------------+
    | "E3" | properties | file_crc | block 0 | ... | -1, footer, size, "E3" |
    | 2 B  | Avro map   | 4 B      |         |     | end, once, at sealing  |
    +------+------------+----------+---------+-----+------------------------+

    block        = timestamp_ms (i64 > 0), length (vint, of what follows), block header, payload
    block header = crc (4 B), flags, event_count, first_ordinal, span_ms, raw_size (vints),
                   array of (producer_id, last_sequence, event_count)
    payload      = events: body (bytes), headers (map), timestamp_delta_ms (vint)
    crc          = of file_crc, position of the block (i64), timestamp, length, the block header
                   behind its crc, payload
    footer       = crc (4 B), blocks, events, first_timestamp, last_timestamp, closed_at (vints)
    footer's crc = of file_crc, position of the -1 (i64), the -1, the footer behind its crc

Because the checksum covers the file's own CRC and the block's position, a block that was moved,
repeated or taken from another file fails it, and each block can be checked alone.

An event too large for one block is a run of CHUNK blocks; the first one's payload begins with
the headers, the body fills the rest and the blocks that follow; the last one counts as the event.

Rule: parse(encode(x)) == x, and nothing is allocated on the word of a length that is not checked.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from filestream.blocks import (
    BLOCK_SIZE_BYTES_LIMIT,
    TIMESTAMP_MS_MAX,
    Block,
    Chunk,
    Damaged,
    End,
    Found,
    Incomplete,
    Mark,
)
from filestream.codec import (
    EncodedEvent,
    crc32c,
    crc32c_range,
    encode_headers,
    encode_signed,
    read_headers,
    read_signed,
)
from filestream.errors import CorruptDataError, InvalidRequestError, UnsupportedVersionError
from filestream.transforms import FEATURES, compress, decompress

__all__ = [
    "EVENT_SCHEMA",
    "HEADER_SIZE_BYTES_LIMIT",
    "E3Header",
    "encode_block",
    "encode_end",
    "encode_header",
    "encode_large_event",
    "event_payload",
    "join_chunks",
    "looks_sealed",
    "parse_header",
]

MAGIC: Final = b"E3"
EVENT_SCHEMA: Final = (
    '{"type":"record","name":"StreamEvent","fields":[{"name":"body","type":"bytes"},'
    '{"name":"headers","type":{"type":"map","values":["string","null"]}},'
    '{"name":"timestamp_delta_ms","type":"long"}]}'
)
HEADER_SIZE_BYTES_LIMIT: Final = 1 << 20
_FIELDS: Final = [
    ["body", "bytes"],
    ["headers", ["map", ["string", "null"]]],
    ["timestamp_delta_ms", "long"],
]

COMPRESSED: Final = 1
ENCRYPTED: Final = 2
CHUNK: Final = 4
FIRST: Final = 8
LAST: Final = 16
_KNOWN_FLAGS: Final = COMPRESSED | ENCRYPTED | CHUNK | FIRST | LAST

_I64: Final = struct.Struct(">q")
_U32: Final = struct.Struct(">I")
_END: Final = _I64.pack(-1)
_SMALLEST_CONTENT: Final = 4 + 6


def encode_header(properties: Mapping[str, str]) -> tuple[bytes, int]:
    """The head of a file, and its ``file_crc``.

    Args:
        properties: at least ``file.id``, ``stream``, ``generation``, ``partition``, ``writer``;
            the schema is added.
    """
    head = MAGIC + encode_headers({**properties, "stream.schema": EVENT_SCHEMA})
    file_crc = crc32c(head)
    return head + _U32.pack(file_crc), file_crc


def parse_header(data: bytes) -> "E3Header | None":
    """The head of a file whose magic is E3; None when the bytes stop inside it.

    Raises:
        CorruptDataError: the checksum does not hold.
        UnsupportedVersionError: another schema, or a feature that this version lacks.
    """
    found = read_headers(data, 2, len(data))
    if found is None or len(data) < found[1] + 4:
        if len(data) > HEADER_SIZE_BYTES_LIMIT:
            raise CorruptDataError("the file header does not end.")
        return None
    properties, at = found
    (file_crc,) = _U32.unpack_from(data, at)
    if crc32c_range(data, 0, at) != file_crc:
        raise CorruptDataError("the checksum of the file header does not hold.")
    texts = {name: value for name, value in properties.items() if value is not None}
    _check_schema(texts.get("stream.schema", ""))
    for feature in filter(None, texts.get("requires", "").split(",")):
        if feature not in FEATURES:
            raise UnsupportedVersionError(
                f"the file needs a feature not had here. feature={feature}"
            )
    return E3Header(texts, file_crc, at + 4)


@lru_cache(maxsize=32)
def _check_schema(text: str) -> None:
    """Structure decides, not the text: names and extra attributes are free."""
    try:
        fields = [_shape(field) for field in json.loads(text)["fields"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnsupportedVersionError(f"unsupported schema. schema={text!r:.300}") from error
    if fields != _FIELDS:
        raise UnsupportedVersionError(f"unsupported schema. schema={text!r:.300}")


def _shape(field: Mapping[str, object]) -> list[object]:
    kind = field["type"]
    if isinstance(kind, dict):
        kind = [kind["type"], kind["values"]] if kind["type"] == "map" else kind["type"]
    return [field["name"], kind]


@dataclass(frozen=True, slots=True)
class E3Header:
    """Head of one E3 file; see ``filestream.blocks.Header``."""

    properties: Mapping[str, str]
    file_crc: int
    size: int
    version: str = "E3"

    def parse(self, data: bytes, at: int, base: int) -> Found:
        """See ``filestream.blocks.Header``."""
        position, stop = base + at, len(data)
        if stop - at < 8:
            return Incomplete(position)
        (timestamp_ms,) = _I64.unpack_from(data, at)
        if timestamp_ms == -1:
            return self._parse_end(data, at, position)
        if not 0 < timestamp_ms <= TIMESTAMP_MS_MAX:
            reason = f"a timestamp is impossible. timestamp_ms={timestamp_ms}"
            return Damaged(position, reason, is_certain=timestamp_ms < 0)
        try:
            found = read_signed(data, at + 8, stop)
        except CorruptDataError as error:
            return Damaged(position, str(error))
        if found is None:
            return Incomplete(position)
        length, content = found
        if not _SMALLEST_CONTENT <= length <= BLOCK_SIZE_BYTES_LIMIT:
            return Damaged(position, f"a block has an impossible length. length={length}")
        end = content + length
        if end > stop:
            return Incomplete(position, base + end)
        crc = crc32c(_U32.pack(self.file_crc) + _I64.pack(position) + data[at:content])
        if crc32c_range(data, content + 4, end, crc) != _U32.unpack_from(data, content)[0]:
            return Damaged(position, "the checksum of a block does not hold.", base + end)
        return self._parse_content(data, content + 4, end, position, base + end, timestamp_ms)

    def _parse_content(
        self, data: bytes, at: int, stop: int, position: int, end: int, timestamp_ms: int
    ) -> Found:
        """A block whose checksum holds: what is wrong from here on was written wrong."""
        numbers = []
        for _ in range(5):
            number, at = _need(read_signed(data, at, stop))
            numbers.append(number)
        flags, event_count, first_ordinal, span_ms, raw_size = numbers
        if flags & ~_KNOWN_FLAGS or flags & ENCRYPTED:
            raise UnsupportedVersionError(
                f"a block needs a feature not had here. flags={flags} position={position}"
            )
        marks, at = _read_marks(data, at, stop)
        if min(event_count, first_ordinal, span_ms, raw_size) < 0:
            raise CorruptDataError("a block header holds a negative number.", position=position)
        if timestamp_ms + span_ms > TIMESTAMP_MS_MAX:
            raise CorruptDataError("a timestamp lies behind the year 9999.", position=position)
        if flags & COMPRESSED:
            data = decompress(self.properties.get("block.codec", ""), data[at:stop], raw_size)
            at, stop = 0, len(data)
        if raw_size != stop - at:
            raise CorruptDataError("a payload has another size than it says.", position=position)
        if not event_count and not (flags & CHUNK and not flags & LAST):
            raise CorruptDataError("a block holds no event.", position=position)
        block = Block(
            position, end, timestamp_ms, span_ms, event_count, first_ordinal,
            data, at, stop, True, marks,
        )  # fmt: skip
        if flags & CHUNK:
            return Chunk(block, bool(flags & FIRST), bool(flags & LAST))
        return block

    def _parse_end(self, data: bytes, at: int, position: int) -> Found:
        stop = len(data)
        start = at + 8
        try:
            cursor = start + 4
            numbers = []
            for _ in range(5):
                found = read_signed(data, cursor, stop)
                if found is None:
                    return Incomplete(position)
                number, cursor = found
                numbers.append(number)
        except CorruptDataError as error:
            return Damaged(position, str(error), is_certain=True)
        if stop < cursor + 6:
            return Incomplete(position)
        tail = _U32.pack(cursor - start) + MAGIC
        crc = crc32c(
            _U32.pack(self.file_crc) + _I64.pack(position) + _END + data[start + 4 : cursor]
        )
        if data[cursor : cursor + 6] != tail or crc != _U32.unpack_from(data, start)[0]:
            return Damaged(
                position, "the checksum of the end record does not hold.", is_certain=True
            )
        return End(position, position + (cursor - at) + 6, *numbers)


def encode_block(
    file_crc: int,
    position: int,
    payload: bytes,
    *,
    timestamp_ms: int,
    span_ms: int,
    event_count: int,
    first_ordinal: int,
    flags: int = 0,
    marks: Sequence[Mark] = (),
    codec: str = "",
) -> bytes:
    """One block, ready to be written at ``position`` in one piece.

    Args:
        payload: events, or the piece of a large one.
        codec: compress with it where that makes the block smaller.
    """
    raw_size = len(payload)
    if codec:
        smaller = compress(codec, payload)
        if len(smaller) < raw_size:
            payload, flags = smaller, flags | COMPRESSED
    rest = b"".join(
        (
            encode_signed(flags),
            encode_signed(event_count),
            encode_signed(first_ordinal),
            encode_signed(span_ms),
            encode_signed(raw_size),
            _encode_marks(marks) if marks else b"\0",
        )
    )
    head = _I64.pack(timestamp_ms) + encode_signed(4 + len(rest) + len(payload))
    crc = crc32c(_U32.pack(file_crc) + _I64.pack(position) + head + rest)
    return b"".join((head, _U32.pack(crc32c(payload, crc)), rest, payload))


def encode_large_event(
    file_crc: int,
    position: int,
    headers: bytes,
    body: bytes | memoryview,
    *,
    timestamp_ms: int,
    first_ordinal: int,
    chunk_size_bytes: int,
    codec: str = "",
) -> Iterator[bytes]:
    """The CHUNK blocks of one event, in order, the first one at ``position``.

    Args:
        headers: the encoded map.
        chunk_size_bytes: payload of one block at the most; the headers must fit the first.
    """
    if len(headers) >= chunk_size_bytes:
        raise InvalidRequestError(f"headers are too large. size={len(headers)}")
    view = memoryview(body)
    piece = headers + bytes(view[: chunk_size_bytes - len(headers)])
    at = len(piece) - len(headers)
    flags = CHUNK | FIRST
    while True:
        is_last = at >= len(view)
        block = encode_block(
            file_crc,
            position,
            piece,
            timestamp_ms=timestamp_ms,
            span_ms=0,
            event_count=int(is_last),
            first_ordinal=first_ordinal,
            flags=flags | LAST if is_last else flags,
            codec=codec,
        )
        yield block
        if is_last:
            return
        position += len(block)
        piece, flags = bytes(view[at : at + chunk_size_bytes]), CHUNK
        at += len(piece)


def encode_end(file_crc: int, end: End) -> bytes:
    """The end record that belongs at ``end.position``; ``end.end`` is not looked at."""
    numbers = (
        end.blocks, end.events, end.first_timestamp_ms, end.last_timestamp_ms, end.closed_at_ms,
    )  # fmt: skip
    rest = b"".join(map(encode_signed, numbers))
    crc = crc32c(_U32.pack(file_crc) + _I64.pack(end.position) + _END + rest)
    return _END + _U32.pack(crc) + rest + _U32.pack(4 + len(rest)) + MAGIC


def looks_sealed(tail: bytes) -> bool:
    """Whether the last bytes of a file have the shape of an end record, checksum aside."""
    if len(tail) < 14 or tail[-2:] != MAGIC:
        return False
    at = len(tail) - 6 - _U32.unpack_from(tail, len(tail) - 6)[0] - 8
    return at >= 0 and tail[at : at + 8] == _END


def join_chunks(chunks: Sequence[Chunk]) -> Block:
    """The large event that a complete run of chunks holds, as a block of one ordinary event."""
    first, last = chunks[0].block, chunks[-1].block
    found = read_headers(first.data, first.start, first.stop)
    if found is None:
        raise CorruptDataError("headers of a large event are cut.", position=first.position)
    at = found[1]
    pieces: list[bytes] = [first.data[at : first.stop]]
    pieces += [c.block.data[c.block.start : c.block.stop] for c in chunks[1:]]
    body_size = sum(map(len, pieces))
    data = b"".join((encode_signed(body_size), *pieces, first.data[first.start : at], b"\0"))
    return Block(
        first.position, last.end, first.timestamp_ms, 0, 1, first.first_ordinal,
        data, 0, len(data), True,
    )  # fmt: skip


def event_payload(events: Sequence[EncodedEvent], deltas: Sequence[int] | None) -> bytes:
    """Events of one block as its payload; ``deltas`` None means all zero."""
    if deltas is None:
        return b"\0".join(events) + b"\0"
    parts: list[bytes] = []
    for event, delta in zip(events, deltas, strict=True):
        parts += (event, encode_signed(delta))
    return b"".join(parts)


def _need(found: tuple[int, int] | None) -> tuple[int, int]:
    if found is None:
        raise CorruptDataError("a block header is cut.")
    return found


def _encode_marks(marks: Sequence[Mark]) -> bytes:
    parts = [encode_signed(len(marks))]
    for mark in marks:
        raw = mark.producer_id.encode()
        parts += (encode_signed(len(raw)), raw)
        parts += (encode_signed(mark.last_sequence), encode_signed(mark.event_count))
    return b"".join((*parts, b"\0"))


def _read_marks(data: bytes, at: int, stop: int) -> tuple[tuple[Mark, ...], int]:
    if at < stop and data[at] == 0:
        return (), at + 1
    marks: list[Mark] = []
    while True:
        count, at = _need(read_signed(data, at, stop))
        if count == 0:
            return tuple(marks), at
        if count < 0:
            count, at = -count, _need(read_signed(data, at, stop))[1]
        if count > (stop - at) // 3:
            raise CorruptDataError("a block header counts more marks than it holds.")
        for _ in range(count):
            size, at = _need(read_signed(data, at, stop))
            if not 0 <= size <= stop - at:
                raise CorruptDataError("a block header is cut.")
            producer_id = data[at : at + size].decode(errors="replace")
            last_sequence, at = _need(read_signed(data, at + size, stop))
            event_count, at = _need(read_signed(data, at, stop))
            marks.append(Mark(producer_id, last_sequence, event_count))
