r"""The last line of a stored document: who set it, and who set those before it. Pure.

    set:<16 hex digits>[,<16 hex digits>...] crc32c:<8 hex digits>\n

The first mark is the setter's own, drawn at random; the others are those of the versions before,
newest first. One who set a version and does not know whether it counted (the answer was lost, or he
was stopped right after and others are far ahead) finds his mark in what stands there now, or not.
"""

import re
import secrets
from collections.abc import Sequence
from typing import Final

from filestream.codec import crc32c

__all__ = ["MARKS_MAX", "Marks", "new_mark", "split_marks", "with_marks"]

Marks = Sequence[str]

# So many setters may come after one before he cannot be told any more.
MARKS_MAX: Final = 32
_LINE: Final = re.compile(rb"set:([0-9a-f]{16}(?:,[0-9a-f]{16})*) crc32c:([0-9a-f]{8})\n\Z")
_LINE_SIZE_MAX: Final = 32 + 17 * MARKS_MAX


def new_mark() -> str:
    """A mark that nobody else has."""
    return secrets.token_hex(8)


def with_marks(value: bytes, own: str, before: Marks) -> bytes:
    """A document's bytes with the line at their end."""
    marks = ",".join([own, *before][:MARKS_MAX]).encode()
    return value + b"set:" + marks + b" crc32c:" + _checksum(marks) + b"\n"


def split_marks(data: bytes) -> tuple[bytes, Marks]:
    """The value and the marks; none for bytes without such a line.

    A line whose checksum does not hold is none: whoever reads the value finds it damaged.
    """
    match = _LINE.search(data, max(0, len(data) - _LINE_SIZE_MAX))
    if match is None or match[2] != _checksum(match[1]):
        return data, ()
    return data[: match.start()], match[1].decode().split(",")


def _checksum(marks: bytes) -> bytes:
    return f"{crc32c(marks):08x}".encode()
