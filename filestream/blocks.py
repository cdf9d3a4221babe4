"""What a format finds in the bytes of an event file, whatever the format's version.

Values only; ``eventfile`` (E3) and ``eventfile_cdap`` (E1, E2) make them, ``segment_reader``
acts on them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "BLOCK_SIZE_BYTES_LIMIT",
    "TIMESTAMP_MS_MAX",
    "Block",
    "Chunk",
    "Damaged",
    "End",
    "Found",
    "Header",
    "Incomplete",
    "Mark",
]

# Up to the end of the year 9999, so that every timestamp is also a date everywhere.
TIMESTAMP_MS_MAX = 253_402_300_799_999
# A reader refuses larger blocks before it allocates for them.
BLOCK_SIZE_BYTES_LIMIT = 64 << 20


@dataclass(frozen=True, slots=True)
class Mark:
    """Idempotent producer's mark: its highest sequence in a block, and how many events are its."""

    producer_id: str
    last_sequence: int
    event_count: int


@dataclass(frozen=True, slots=True)
class Block:
    """One checked block: its events are ``data[start:stop]``.

    Attributes:
        position, end: byte range of the block in its file.
        timestamp_ms: of the first event; ``timestamp_ms + span_ms`` of the last.
        event_count: events in it; -1 where the format does not say (E1, E2).
        first_ordinal: events before it in its file; -1 where the format does not say.
        has_delta: whether events carry a timestamp delta (E3).
    """

    position: int
    end: int
    timestamp_ms: int
    span_ms: int
    event_count: int
    first_ordinal: int
    data: bytes
    start: int
    stop: int
    has_delta: bool
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One checked piece of a large event (E3)."""

    block: Block
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class End:
    """The end record: nothing follows. Counts are -1 where the format does not keep them.

    Attributes:
        closed_at_ms: wall clock at closing; -1 when unknown.
    """

    position: int
    end: int
    blocks: int = -1
    events: int = -1
    first_timestamp_ms: int = 0
    last_timestamp_ms: int = 0
    closed_at_ms: int = -1


@dataclass(frozen=True, slots=True)
class Incomplete:
    """The bytes stop before the block does.

    Attributes:
        needed: position up to which bytes are needed, as far as that is known; 0 otherwise.
    """

    position: int
    needed: int = 0


@dataclass(frozen=True, slots=True)
class Damaged:
    """Bytes that are no block: a torn write at the tail of a file, damage anywhere else.

    Attributes:
        end: where the next block would begin, if the length can be believed; 0 otherwise.
        is_certain: no torn write looks like this.
    """

    position: int
    reason: str
    end: int = 0
    is_certain: bool = False


Found = Block | Chunk | End | Incomplete | Damaged


class Header(Protocol):
    """The parsed head of one event file, and the way to read on."""

    @property
    def size(self) -> int:
        """Bytes of the header; the first block begins here."""
        ...

    @property
    def version(self) -> str:
        """``"E1"``, ``"E2"`` or ``"E3"``."""
        ...

    @property
    def properties(self) -> Mapping[str, str]:
        """File properties."""
        ...

    def parse(self, data: bytes, at: int, base: int) -> Found:
        """What stands at ``data[at:]``, where ``data[0]`` is the file's byte ``base``.

        Raises:
            CorruptDataError: the block's checksum holds and its content does not.
            UnsupportedVersionError: it needs a feature that this version lacks.
        """
        ...
