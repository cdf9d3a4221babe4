"""Which lane of a group an event belongs to: a function of the event alone. Pure.

The same in every process and easy to write in any language:

    splitmix64(x):  x += 0x9E3779B97F4A7C15
                    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9
                    x = (x ^ x >> 27) * 0x94D049BB133111EB
                    return x ^ x >> 31                          (all modulo 2**64)

    round robin     splitmix64(splitmix64(crc32c(segment path) << 32 ^ position) + index) mod lanes
    hash            splitmix64(crc32c(header value, or nothing)) mod lanes

The segment path is the part of an offset's text before the colon, such as
``00001/1401408000.86400/file.0.000000``.
A plain remainder of the offset would not do: positions of equal events differ by a constant, which
may share a factor with the number of lanes, so that a lane would stay empty.
"""

from functools import lru_cache
from typing import Final, Literal, get_args

from filestream.codec import crc32c
from filestream.errors import InvalidRequestError
from filestream.partitions.event import Event
from filestream.partitions.layout import Offset, Segment

__all__ = ["LANES_MAX", "Strategy", "check_strategy", "lane_of", "splitmix64"]

Strategy = Literal["fifo", "round_robin", "hash"]

LANES_MAX: Final = 256
_MASK: Final = (1 << 64) - 1


def splitmix64(value: int) -> int:
    """Mix 64 bits so that each depends on all (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def check_strategy(strategy: object, key_header: object) -> None:
    """Refuse what divides nothing.

    Raises:
        InvalidRequestError: no such strategy, or a key where none is used, or none where one is.
    """
    if strategy not in get_args(Strategy):
        raise InvalidRequestError(
            f"strategy must be one of {', '.join(get_args(Strategy))}. strategy={strategy!r:.50}"
        )
    if strategy == "hash" and not (isinstance(key_header, str) and key_header):
        raise InvalidRequestError(
            "strategy hash needs key_header, the name of the header to divide by"
        )
    if strategy != "hash" and key_header is not None:
        raise InvalidRequestError(f"key_header is for strategy hash. strategy={strategy}")


def lane_of(event: Event, strategy: Strategy, key_header: str | None, lanes: int) -> int:
    """The lane of an event, 0 to ``lanes - 1``."""
    if lanes == 1:
        return 0
    if strategy == "hash":
        assert key_header is not None
        return _lane_of_key(event.headers.get(key_header) or "", lanes)
    seed = _seed(event.segment) << 32
    return splitmix64(splitmix64(seed ^ event.position) + event.index_in_block) % lanes


@lru_cache(maxsize=4096)
def _lane_of_key(key: str, lanes: int) -> int:
    return splitmix64(crc32c(key.encode())) % lanes


@lru_cache(maxsize=1024)
def _seed(segment: Segment) -> int:
    return crc32c(Offset.in_segment(segment, 0, 0).segment_path.encode())
