"""Compression of a block's payload, by registered name.

A file names its codec in the property ``block.codec`` and, so that an older reader fails before
the first event and not in the middle, in ``requires`` as well.
"""

from typing import Final

from filestream.errors import CorruptDataError, InvalidRequestError, UnsupportedVersionError

__all__ = ["CODECS", "FEATURES", "compress", "decompress", "file_properties"]

# Name in stream settings -> (name in block.codec and in Arrow, name in requires).
# lz4_raw of the format is not among them: Arrow's decoder does not tell how many bytes came out, so
# a hostile file could have uninitialised memory delivered as an event.
CODECS: Final = {"zstd": ("zstd", "zstd")}
FEATURES: Final = frozenset(feature for _, feature in CODECS.values())
_NAMES: Final = frozenset(name for name, _ in CODECS.values())


def file_properties(compression: str) -> dict[str, str]:
    """Properties of a file whose blocks may be compressed; none for ``"none"``.

    Raises:
        InvalidRequestError: no such compression.
    """
    if compression == "none":
        return {}
    if compression not in CODECS:
        raise InvalidRequestError(
            f"no such compression: {compression!r}. Choose none, {', '.join(CODECS)}"
        )
    name, feature = CODECS[compression]
    return {"block.codec": name, "requires": feature}


def compress(codec: str, payload: bytes) -> bytes:
    """The payload in fewer bytes, hopefully; ``codec`` as in ``block.codec``."""
    import pyarrow as pa

    return bytes(pa.compress(payload, codec=codec, asbytes=True))


def decompress(codec: str, payload: bytes, raw_size: int) -> bytes:
    """The payload as it was; ``raw_size`` is bounded by the caller's block limit.

    Raises:
        UnsupportedVersionError: a codec that this version does not know.
        CorruptDataError: another size comes out.
    """
    from filestream.blocks import BLOCK_SIZE_BYTES_LIMIT

    if codec not in _NAMES:
        raise UnsupportedVersionError(f"a block is compressed by an unknown codec. codec={codec!r}")
    if raw_size > BLOCK_SIZE_BYTES_LIMIT:
        raise CorruptDataError(f"a block claims an impossible size. raw_size={raw_size}")
    import pyarrow as pa

    try:
        raw = bytes(pa.decompress(payload, raw_size, codec=codec, asbytes=True))
    except (OSError, ValueError) as error:
        raise CorruptDataError(f"a block does not decompress. codec={codec}") from error
    if len(raw) != raw_size:
        raise CorruptDataError(f"a block decompresses to another size. raw_size={raw_size}")
    return raw
