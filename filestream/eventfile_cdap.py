"""Event files of versions E1 and E2 (CDAP): read for ever, written on request. No input or output.

Layout (big-endian; ``vint`` is a zig-zag varint)::

    +--------------+------------+----------------------------------------+----------+
    | "E1" or "E2" | properties | block: timestamp_ms, length, events... | negative |
    | 2 B          | Avro map   | i64, vint                              | i64, end |
    +--------------+------------+----------------------------------------+----------+

An event is ``body: bytes, headers: map``. There is no checksum: what these files say can be
wrong in ways that nobody notices, which is why E3 exists. The end is -1 in E1 and minus the close
time in E2. E2 may give all events of a file one timestamp (``stream.uni.timestamp``, which may be
the close time and is then unknown until the end is there) and default headers (``event.<name>``).
"""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from filestream.blocks import TIMESTAMP_MS_MAX, Block, Damaged, End, Found, Incomplete
from filestream.codec import (
    EncodedEvent,
    decode_events,
    encode_event,
    encode_headers,
    encode_signed,
    read_headers,
    read_signed,
)
from filestream.errors import CorruptDataError, UnsupportedVersionError

__all__ = [
    "EVENT_SCHEMA",
    "CdapHeader",
    "encode_block",
    "encode_end",
    "encode_header",
    "parse_header",
]

EVENT_SCHEMA: Final = (
    '{"type":"record","name":"StreamEvent","fields":[{"name":"body","type":"bytes"},'
    '{"name":"headers","type":{"type":"map","values":["string","null"]}}]}'
)
_I64: Final = struct.Struct(">q")
_LENGTH_MAX: Final = 2**31 - 1
_HEADER_SIZE_BYTES_LIMIT: Final = 1 << 20
_UNIFORM: Final = "stream.uni.timestamp"
_AT_CLOSE: Final = "close.timestamp"
_NUMBER: Final = re.compile(r"[0-9]{1,15}")


def encode_header(properties: Mapping[str, str]) -> bytes:
    """The head of an E2 file; the schema is added."""
    return b"E2" + encode_headers({**properties, "stream.schema": EVENT_SCHEMA})


def encode_block(timestamp_ms: int, events: Sequence[EncodedEvent]) -> bytes:
    """One block of events that share a timestamp."""
    payload = b"".join(events)
    return _I64.pack(timestamp_ms) + encode_signed(len(payload)) + payload


def encode_end(closed_at_ms: int) -> bytes:
    """The end of an E2 file; the close time must not be before any block."""
    return _I64.pack(-closed_at_ms)


def parse_header(data: bytes) -> "CdapHeader | None":
    """The head of a file whose magic is E1 or E2; None when the bytes stop inside it.

    Raises:
        UnsupportedVersionError: the schema is missing or another one.
        CorruptDataError: the header does not end.
    """
    found = read_headers(data, 2, len(data))
    if found is None:
        if len(data) > _HEADER_SIZE_BYTES_LIMIT:
            raise CorruptDataError("the file header does not end.")
        return None
    properties = {name: value for name, value in found[0].items() if value is not None}
    _check_schema(properties.get("stream.schema"))
    version = data[:2].decode("ascii")
    uniform = properties.get(_UNIFORM) if version == "E2" else None
    defaults = {
        name.removeprefix("event."): value
        for name, value in found[0].items()
        if version == "E2" and name.startswith("event.")
    }
    if uniform not in (None, _AT_CLOSE) and not _NUMBER.fullmatch(str(uniform)):
        raise CorruptDataError(f"the uniform timestamp is no number. value={uniform!r:.100}")
    return CdapHeader(properties, version, found[1], uniform, defaults)


def _check_schema(text: str | None) -> None:
    if text is None:
        raise UnsupportedVersionError("the file header lacks stream.schema.")
    try:
        schema = json.loads(text)
        fields = [(field["name"], field["type"]) for field in schema["fields"]]
        (body, body_type), (headers, headers_type) = fields
        is_known = (
            (body, body_type, headers) == ("body", "bytes", "headers")
            and headers_type["type"] == "map"
            and headers_type["values"] == ["string", "null"]
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnsupportedVersionError(f"unsupported schema. schema={text!r:.300}") from error
    if not is_known:
        raise UnsupportedVersionError(f"unsupported schema. schema={text!r:.300}")


@dataclass(frozen=True, slots=True)
class CdapHeader:
    """Head of one E1 or E2 file; see ``filestream.blocks.Header``.

    Attributes:
        uniform: the text of ``stream.uni.timestamp``, or None.
        defaults: default headers.
    """

    properties: Mapping[str, str]
    version: str
    size: int
    uniform: str | None
    defaults: Mapping[str, str | None]

    @property
    def needs_end(self) -> bool:
        """Whether events have no timestamp before the end of the file is there."""
        return self.uniform == _AT_CLOSE

    def parse(self, data: bytes, at: int, base: int) -> Found:
        """See ``filestream.blocks.Header``."""
        position, stop = base + at, len(data)
        if stop - at < 8:
            return Incomplete(position)
        (timestamp_ms,) = _I64.unpack_from(data, at)
        if timestamp_ms < 0:
            closed_at_ms = -timestamp_ms if self.version == "E2" and timestamp_ms != -1 else -1
            return End(position, position + 8, closed_at_ms=closed_at_ms)
        try:
            found = read_signed(data, at + 8, stop)
        except CorruptDataError as error:
            return Damaged(position, str(error), is_certain=True)
        if found is None:
            return Incomplete(position)
        length, start = found
        if not 1 <= length <= _LENGTH_MAX:
            is_zero = timestamp_ms == 0 and not any(data[at:])
            return Damaged(
                position,
                f"a block has an impossible length. length={length}",
                is_certain=not is_zero,
            )
        end = start + length
        if end > stop:
            return Incomplete(position, base + end)
        if self.uniform not in (None, _AT_CLOSE):
            timestamp_ms = int(str(self.uniform))
        if timestamp_ms > TIMESTAMP_MS_MAX:
            return Damaged(position, "a timestamp lies behind the year 9999.", is_certain=True)
        return self._block(data, start, end, position, base + end, timestamp_ms)

    def _block(
        self, data: bytes, start: int, stop: int, position: int, end: int, timestamp_ms: int
    ) -> Block:
        if self.defaults:
            # Rare, so simply: written anew with the defaults in, and read like any other block.
            events = decode_events(data, start, stop, has_delta=False)
            data = b"".join(
                encode_event(body, {**self.defaults, **headers}) for _, body, headers in events
            )
            start, stop = 0, len(data)
        return Block(position, end, timestamp_ms, 0, -1, -1, data, start, stop, False)
