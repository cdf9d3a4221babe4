"""What a writer writes through, whatever the storage: the row of segments that carry its id.

``FileLane`` where files grow, ``ObjectLane`` where they are put whole, ``JournalLane`` where they grow on
a disk of this machine and are put whole soon after.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from filestream.clock import Clock
from filestream.partitions.appended import Placed
from filestream.partitions.arrange import Batch
from filestream.partitions.generations import Generations
from filestream.partitions.packed_storage import PackedStorage
from filestream.partitions.writer_ids import WriterClaim
from filestream.settings import StreamProperties

__all__ = ["Flight", "Lane", "LaneSite"]


@dataclass(frozen=True, slots=True)
class LaneSite:
    """Where and as whom a lane writes.

    Attributes:
        claim: of the writer id; while it is held, no other process writes under it.
        properties: of the stream when the writer was opened.
    """

    storage: PackedStorage
    generations: Generations
    stream_name: str
    claim: WriterClaim
    properties: StreamProperties
    clock: Clock
    chance: random.Random


class Flight(Protocol):
    """Events on their way.

    Attributes:
        is_sent: somebody will call ``finish``; an interrupt may keep it from that.
    """

    is_sent: bool

    def finish(self) -> Placed:
        """Return when everything is acknowledged; the flight is over then, however it ends.

        Raises:
            UnavailableError: the events may be in the stream.
            ConflictError: another process writes under this id.
            NotFoundError: the stream was deleted.
        """
        ...

    def land(self) -> None:
        """It is over, and everybody was told."""
        ...


class Lane(ABC):
    """Only the leader of the writer's drain calls it, but for what says otherwise.

    Attributes:
        batch_size_max: bytes of events that are best written at once.
        can_fly: whether ``begin`` may be used.
    """

    batch_size_max: int
    can_fly: bool = False

    @abstractmethod
    def write(self, batches: Sequence[Batch]) -> Placed:
        """Write the events of several calls; they are acknowledged when it returns.

        Raises:
            UnavailableError: the store failed: the events may be in the stream.
            ConflictError: another process writes under this id.
            NotFoundError: the stream was deleted.
        """

    def begin(self, batches: Sequence[Batch]) -> Flight:
        """Begin to write, and let the next begin before this is done.

        Raises:
            FilestreamError: as ``write``; nothing was written.
        """
        raise AssertionError("ask can_fly first")

    def pause_s(self) -> float:
        """Seconds until the next flight should begin."""
        return 0.0

    def flush(self) -> None:
        """Return when nothing that was acknowledged, or begun, is held back."""

    def seal(self, reason: str) -> None:
        """End the open segment, if there is one; the next event begins another."""

    def look(self) -> None:
        """See to what is due without traffic: truncation, age, idle time, end of partition."""

    def is_look_due(self) -> bool:
        """Whether ``look`` would do something; any thread may ask."""
        return False

    def next_look_s(self) -> float | None:
        """Seconds until ``is_look_due`` should be asked; None for never. Any thread may ask."""
        return None

    def close(self) -> None:
        """Nothing is written any more; called once, after ``seal``."""

    @abstractmethod
    def forget_parent(self) -> None:
        """In a forked child: what is open, or in the air, is the parent's."""
