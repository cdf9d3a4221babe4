r"""Small JSON documents that know when they are damaged.

    {"generation": 2, ...}\n
    crc32c:0123abcd\n

JSON for people, and a line with the CRC-32C of everything before it: a flipped digit in a generation
or a ttl would otherwise hide events without a word.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from filestream.codec import crc32c
from filestream.errors import CorruptDataError

__all__ = ["decode_document", "encode_document"]

_MARK: Final = b"crc32c:"


def encode_document(content: Mapping[str, object]) -> bytes:
    """The document of a JSON object."""
    text = json.dumps(content, indent=1).encode() + b"\n"
    return text + _MARK + f"{crc32c(text):08x}\n".encode()


def decode_document(data: bytes, *, url: str) -> dict[str, Any]:
    """The JSON object of a document.

    Raises:
        CorruptDataError: the checksum is missing or does not hold, or this is no JSON object.
    """
    text, mark, crc = data.rpartition(_MARK)
    if not mark or crc != f"{crc32c(text):08x}\n".encode():
        raise CorruptDataError("the checksum of a document does not hold.", url=url)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError("a document is no JSON.", url=url) from error
    if not isinstance(content, dict):
        raise CorruptDataError("a document is no JSON object.", url=url)
    return content
