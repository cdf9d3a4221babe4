"""The hot loops, twice: a compiled kernel where a compiler was there, hand-tuned Python elsewhere.

Both mean the same; ``tests/filestream/test_codec.py`` holds them together. This room picks
one of the two at import. ``FILESTREAM_KERNEL=pure`` in the environment of a *test* asks for the
slow one; it is read here because no argument reaches an import.
"""

import os

from filestream.codec import pure
from filestream.codec.primitives import (
    EncodedEvent,
    crc32c,
    encode_bodies,
    encode_event,
    encode_headers,
    encode_signed,
    read_headers,
    read_signed,
)
from filestream.codec.pure import decode_events

__all__ = [
    "ColumnDecoder",
    "EncodedEvent",
    "crc32c",
    "crc32c_range",
    "decode_events",
    "encode_bodies",
    "encode_event",
    "encode_headers",
    "encode_signed",
    "kernel",
    "read_headers",
    "read_signed",
]

try:
    if os.environ.get("FILESTREAM_KERNEL") == "pure":
        raise ImportError("the pure codec was asked for")
    from filestream.codec._kernel import ColumnDecoder, crc32c_range

    _KERNEL = "compiled"
except ImportError:
    from filestream.codec.pure import ColumnDecoder, crc32c_range  # type: ignore[assignment]

    _KERNEL = "pure"

assert pure.COLUMNS == ("timestamp", "body", "headers", "position", "index")


def kernel() -> str:
    """Which codec runs in this process: ``"compiled"`` or ``"pure"``."""
    return _KERNEL
