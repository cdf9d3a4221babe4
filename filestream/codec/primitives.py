"""Avro's primitives as filestream uses them: numbers, texts, headers, one event; and the checksum.

An encoded event is ``body: bytes, headers: map<string, union<string, null>>``; every number is a
zig-zag varint (``signed`` below). Pure; each function says what it does at the end of its bytes.

Rule: nothing is read at or behind ``stop``, and nothing is allocated on the word of a count.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from google_crc32c import extend as _extend

from filestream.errors import CorruptDataError, InvalidRequestError

__all__ = [
    "HEADERS_MAX",
    "EncodedEvent",
    "crc32c",
    "encode_bodies",
    "encode_event",
    "encode_headers",
    "encode_signed",
    "need",
    "read_headers",
    "read_signed",
]

# Headers of one event: beyond it a block is refused, so that hostile counts cost little.
HEADERS_MAX: Final = 4096

# body and headers of one event, without its timestamp delta.
EncodedEvent = bytes

_TABLE_SIZE: Final = 8192

_LONGEST_SIGNED: Final = 10


def _encode(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


# Lengths, counts and deltas are nearly always short: one look-up instead of a loop.
_TABLE: Final = tuple(_encode(value) for value in range(_TABLE_SIZE))


def encode_signed(value: int) -> bytes:
    """Avro ``long``: zig-zag varint of -2**63 <= value < 2**63."""
    return _TABLE[value] if 0 <= value < _TABLE_SIZE else _encode(value)


def read_signed(data: bytes, at: int, stop: int) -> tuple[int, int] | None:
    """The Avro ``long`` at ``at`` and the position behind it; None when ``stop`` cuts it short.

    Raises:
        CorruptDataError: more than ten bytes, or more than 64 bits.
    """
    value = shift = 0
    limit = at + _LONGEST_SIGNED
    while at < stop:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 64:
                raise CorruptDataError("a number has more than 64 bits.")
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if at == limit:
            raise CorruptDataError("a number is longer than ten bytes.")
    return None


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C (Castagnoli) of ``data``, going on from ``crc``; at the hardware's speed."""
    return int(_extend(crc, data))


def encode_headers(headers: Mapping[str, str | None] | None) -> bytes:
    """Avro ``map<string, union<string, null>>`` as one block, keys sorted.

    Raises:
        InvalidRequestError: a name or value is no text, or is not representable in UTF-8.
    """
    if not headers:
        return b"\0"
    if len(headers) > HEADERS_MAX:
        raise InvalidRequestError(f"too many headers. count={len(headers)} most={HEADERS_MAX}")
    try:
        parts = [encode_signed(len(headers))]
        for name, value in sorted(headers.items()):
            raw = name.encode()
            parts += (encode_signed(len(raw)), raw)
            if value is None:
                parts.append(b"\2")
            else:
                raw = value.encode()
                parts += (b"\0", encode_signed(len(raw)), raw)
    except (AttributeError, TypeError, UnicodeEncodeError) as error:
        raise InvalidRequestError(
            "headers must map text to text or None, in valid Unicode. "
            f"headers={dict(headers)!r:.200}"
        ) from error
    parts.append(b"\0")
    return b"".join(parts)


def encode_event(
    body: bytes | bytearray | memoryview, headers: Mapping[str, str | None] | None = None
) -> EncodedEvent:
    """Body and headers of one event as Avro; the timestamp delta is added per block.

    Raises:
        InvalidRequestError: the body is not bytes, or a header is not text.
    """
    if type(body) is not bytes:
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise InvalidRequestError(
                f"a body must be bytes; encode text first, such as text.encode(). "
                f"type={type(body).__name__}"
            )
        try:
            body = bytes(body)
        except ValueError as error:
            raise InvalidRequestError(f"the body cannot be read: {error}") from error
    size = len(body)
    head = _TABLE[size] if size < _TABLE_SIZE else _encode(size)
    if not headers:
        if headers is not None and not isinstance(headers, Mapping):
            raise InvalidRequestError(f"headers must be a mapping. type={type(headers).__name__}")
        return head + body + b"\0"
    if not isinstance(headers, Mapping):
        raise InvalidRequestError(f"headers must be a mapping. type={type(headers).__name__}")
    return head + body + encode_headers(headers)


def encode_bodies(bodies: Sequence[bytes], longest: int) -> list[EncodedEvent]:
    """``encode_event`` for many events without headers: a call for each would take most of the time.

    Args:
        longest: size of the longest body.
    """
    if longest < _TABLE_SIZE:
        table = _TABLE
        return [table[len(body)] + body + b"\0" for body in bodies]
    return [b"".join((encode_signed(len(body)), body, b"\0")) for body in bodies]


def read_headers(data: bytes, at: int, stop: int) -> tuple[dict[str, str | None], int] | None:
    """The Avro map at ``at`` and the position behind it; None when ``stop`` cuts it short.

    Any number of map blocks and negative counts (with a byte size) are accepted; of equal
    names the last one wins.

    Raises:
        CorruptDataError: not a map of text to text or null.
    """
    headers: dict[str, str | None] = {}
    total = 0
    while True:
        found = read_signed(data, at, stop)
        if found is None:
            return None
        count, at = found
        if count == 0:
            return headers, at
        if count < 0:
            if (found := read_signed(data, at, stop)) is None:
                return None
            count, at = -count, found[1]
        # A pair takes two bytes at least, so a lying count cannot make this loop long.
        if count > (stop - at) // 2:
            return None
        total += count
        if total > HEADERS_MAX:
            raise CorruptDataError("an event has too many headers.")
        for _ in range(count):
            if not (pair := _read_pair(data, at, stop)):
                return None
            name, value, at = pair
            headers.pop(name, None)
            headers[name] = value


def _read_pair(data: bytes, at: int, stop: int) -> tuple[str, str | None, int] | None:
    texts: list[str | None] = []
    for is_value in (False, True):
        if is_value:
            if at >= stop:
                return None
            branch = data[at]
            at += 1
            if branch == 2:
                texts.append(None)
                break
            if branch != 0:
                raise CorruptDataError(f"a header has an unknown kind of value. branch={branch}")
        found = read_signed(data, at, stop)
        if found is None:
            return None
        size, at = found
        if size < 0:
            raise CorruptDataError("a text has a negative size.")
        if size > stop - at:
            return None
        try:
            texts.append(data[at : at + size].decode())
        except UnicodeDecodeError as error:
            raise CorruptDataError("a header is not UTF-8.") from error
        at += size
    return str(texts[0]), texts[1], at


def need(found: tuple[int, int] | None) -> tuple[int, int]:
    """What ``read_signed`` found inside an event, which must not be cut."""
    if found is None:
        raise CorruptDataError("an event runs over the end of its block.")
    return found
