"""Durations, sizes and points in time as people write them: ``1d``, ``256KiB``, ``2026-11-20T10:00Z``."""

import re
from datetime import UTC, datetime
from typing import Final

from filestream.errors import InvalidRequestError

__all__ = [
    "format_duration",
    "format_size",
    "format_size_exactly",
    "format_timestamp",
    "parse_duration_ms",
    "parse_size_bytes",
    "parse_timestamp_ms",
]

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_DURATION_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_SIZE_POWER: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_LONGEST: Final = 32
# From 1973 on; a count with fewer digits is one of seconds.
_MILLISECONDS_DIGITS: Final = 12


def parse_duration_ms(text: str | float) -> int:
    """Milliseconds of ``"90s"``, ``"1h30m"``, ``"1d"``, or of a number (not a text) of seconds.

    Raises:
        InvalidRequestError: the text is no duration, or it is negative.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        if not 0 <= text < 1e12:
            raise InvalidRequestError(f"duration is out of range. duration_s={text}")
        return round(text * 1000)
    if not isinstance(text, str):
        raise InvalidRequestError(f"duration must be text or seconds. type={type(text).__name__}")
    cleaned = text.strip().lower()
    if len(cleaned) > _LONGEST:
        raise InvalidRequestError(f"no duration: {text!r:.50}. It is too long")
    if cleaned == "0":
        return 0
    total, at = 0.0, 0
    for match in _DURATION.finditer(cleaned):
        if match.start() != at:
            break
        total += float(match[1]) * _DURATION_MS[match[2]]
        at = match.end()
    if at == 0 or at != len(cleaned):
        raise InvalidRequestError(
            f"no duration: {text!r}. Write a number and a unit: ms, s, m, h, d or w, such as 1h30m"
        )
    return round(total)


def format_duration(duration_ms: int) -> str:
    """The shortest text that ``parse_duration_ms`` turns back into the same number."""
    for unit in ("d", "h", "m", "s"):
        size = _DURATION_MS[unit]
        if duration_ms and duration_ms % size == 0:
            return f"{duration_ms // size}{unit}"
    return f"{duration_ms}ms"


def parse_size_bytes(text: str | int) -> int:
    """Bytes of ``"8MiB"``, ``"64MB"``, ``"1g"`` or of a bare number.

    ``KiB``-style units are powers of 1024, ``KB`` and ``K`` are powers of 1000.

    Raises:
        InvalidRequestError: the text is no size.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise InvalidRequestError(f"size is negative. size_bytes={text}")
        return text
    match = _SIZE.fullmatch(str(text).strip()) if len(str(text)) <= _LONGEST else None
    if match is None:
        raise InvalidRequestError(
            f"no size: {text!r:.50}. Write a number and a unit, such as 256KiB, 64MB or 1GiB"
        )
    base = 1024 if match[3] else 1000
    return round(float(match[1]) * float(base ** _SIZE_POWER[match[2].lower()]))


def format_size(size_bytes: int) -> str:
    """For people: three digits and a binary unit."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_size_exactly(size_bytes: int) -> str:
    """The shortest text that ``parse_size_bytes`` turns back into the same number."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return str(size_bytes)


def parse_timestamp_ms(text: str, *, now_ms: int) -> int:
    """Milliseconds since the epoch of an ISO 8601 time, a count of milliseconds, ``now`` or ``-10m``.

    A time without a zone is UTC, so that the same command means the same on every machine.

    Raises:
        InvalidRequestError: the text is none of these.
    """
    cleaned = text.strip()
    if len(cleaned) > 2 * _LONGEST:
        raise InvalidRequestError(f"no time: {text!r:.50}. It is too long")
    if cleaned == "now":
        return now_ms
    if cleaned.startswith(("-", "+")):
        distance = parse_duration_ms(cleaned[1:])
        return now_ms - distance if cleaned[0] == "-" else now_ms + distance
    if cleaned.isascii() and cleaned.isdigit() and len(cleaned) > 8:
        if len(cleaned) < _MILLISECONDS_DIGITS:
            raise InvalidRequestError(
                f"no time: {text!r}. It looks like seconds; milliseconds are meant: {cleaned}000"
            )
        return int(cleaned)
    try:
        moment = datetime.fromisoformat(cleaned)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(
            f"no time: {text!r}. Write 2026-11-20T10:00Z, a count of milliseconds, now, or -10m"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def format_timestamp(timestamp_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds, such as ``2014-05-30T00:00:00.005Z``."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
