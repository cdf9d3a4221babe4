"""One grammar of positions for Python, the command line and Spark. Pure.

start                       the first event of the current generation
end                         behind the last event that is there now
-100                        the last 100 events
@2026-11-20T10:00Z          the first event at or after a time (no zone: UTC)
@1401408000000, @-10m, @now the same in milliseconds since the epoch, or relative to now
00001/1401408000.86400/file.0.000000:340.1   that event
A..B                        from A, included, to B, excluded; either may be left out
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from filestream.errors import InvalidRequestError
from filestream.partitions.layout import Offset
from filestream.units import parse_timestamp_ms

__all__ = [
    "At",
    "End",
    "Last",
    "Position",
    "PositionLike",
    "Start",
    "parse_position",
    "parse_range",
]

_LAST: Final = re.compile(r"-([0-9]{1,12})")


@dataclass(frozen=True, slots=True)
class Start:
    """The first event of the current generation."""


@dataclass(frozen=True, slots=True)
class End:
    """Behind the last event that is there now."""


@dataclass(frozen=True, slots=True)
class Last:
    """The last events, in the merged order."""

    count: int


@dataclass(frozen=True, slots=True)
class At:
    """The first event at or after a time."""

    timestamp_ms: int


Position = Start | End | Last | At | Offset
PositionLike = Position | str | int | datetime


def parse_position(given: PositionLike, *, now_ms: int) -> Position:
    """The position that a text, a negative count, a time or an offset names.

    Raises:
        InvalidRequestError: it names none.
    """
    if isinstance(given, Start | End | Last | At | Offset):
        return given
    if isinstance(given, datetime):
        moment = given if given.tzinfo else given.replace(tzinfo=UTC)
        return At(round(moment.timestamp() * 1000))
    if isinstance(given, int) and not isinstance(given, bool) and given <= 0:
        return Last(-given)
    if isinstance(given, str):
        text = given.strip()
        if text == "start":
            return Start()
        if text == "end":
            return End()
        if match := _LAST.fullmatch(text):
            return Last(int(match[1]))
        if text.startswith("@"):
            return At(parse_timestamp_ms(text[1:], now_ms=now_ms))
        if "/" in text and ":" in text:
            return Offset.parse(text)
    raise InvalidRequestError(
        f"no position: {given!r:.200}. Write start, end, -100, @2026-11-20T10:00Z, @-10m, or an offset"
    )


def parse_range(text: str, *, now_ms: int) -> tuple[Position, Position]:
    """Both ends of ``A..B``, ``A..``, ``..B``, or of a single position (up to the end).

    Raises:
        InvalidRequestError: one of them is no position.
    """
    first, dots, last = text.partition("..")
    return (
        parse_position(first or "start", now_ms=now_ms),
        parse_position(last, now_ms=now_ms) if dots and last else End(),
    )
