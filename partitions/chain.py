"""The segments that one writer filled in one partition, read one after the other.

A segment without an end record is left for good only when a later sequence of the same writer is
known in the same partition, and after one more look at it; the wall clock is no evidence, and a file
in a later partition is none either, because producers may go back in event time.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from filestream.errors import NotFoundError
from filestream.partitions.filters import Interval, Piece, select
from filestream.partitions.layout import Partition, Segment
from filestream.segment_reader import OnCorrupt, SegmentReader
from filestream.storage.base import Storage

__all__ = ["Chain", "ChainId", "Place", "place_at_time"]

logger = logging.getLogger(__name__)


class ChainId(NamedTuple):
    """Names a chain; sorts by time, then by writer."""

    partition: Partition
    writer_id: str


class Place(NamedTuple):
    """A place in a chain; ``position`` 0 is the first block of the segment."""

    sequence: int = 0
    position: int = 0
    # The method of this name that a tuple has is of no use here.
    index: int = 0  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]


_ORIGIN: Final = Place()


class Chain:
    """Reads on as the chain grows; not thread-safe.

    Args:
        storage: of the stream.
        segments: those known so far.
        start: begin there.
        on_corrupt: see ``SegmentReader``.
    """

    def __init__(
        self,
        storage: Storage,
        segments: Iterable[Segment],
        *,
        start: Place = _ORIGIN,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        self._storage = storage
        self._segments = {segment.sequence: segment for segment in segments}
        self._last = max(self._segments, default=-1)
        self._start = start
        self._on_corrupt: OnCorrupt = on_corrupt
        self._reader: SegmentReader | None = None
        self._segment: Segment | None = None
        # The next segment to open has this sequence or a higher one.
        self._next = start.sequence
        self.torn_bytes = 0
        self.lost_bytes = 0

    def learn(self, segment: Segment) -> None:
        """A segment of this chain exists."""
        self._segments[segment.sequence] = segment
        self._last = max(self._last, segment.sequence)

    def knows(self, segment: Segment) -> bool:
        """Whether the segment was learnt already."""
        return segment.sequence in self._segments

    @property
    def is_open(self) -> bool:
        """Whether ``read`` may bring something without ``learn`` being called first."""
        return self._reader is not None or self._next <= self._last

    @property
    def following(self) -> Segment | None:
        """The segment that will come after the last one known; None before there is one."""
        last = self._segments.get(self._last)
        return last and replace(last, sequence=last.sequence + 1)

    @property
    def place(self) -> Place:
        """Where to go on after everything that was read."""
        if self._reader is None or self._segment is None:
            return Place(self._next)
        return Place(self._segment.sequence, self._reader.position, 0)

    def read(self) -> list[Piece]:
        """The next blocks, about 1 MiB of them; empty when nothing is there now.

        Raises:
            CorruptDataError: damage.
            NotFoundError: a segment is gone.
        """
        while self._reader is not None or self._open_next():
            assert self._reader is not None
            assert self._segment is not None
            finished = self._segment.sequence < self._last
            pieces = self._pieces(self._reader, finished=finished)
            if pieces:
                return pieces
            if not self._is_over():
                return []
            self._leave()
        return []

    def _is_over(self) -> bool:
        return self._reader is not None and self._reader.is_over

    def seek_time(self, timestamp_ms: int) -> None:
        """Skip what lies before a time by footers and indexes alone; what is left may begin earlier."""
        while self._next <= self._last and self._open_next():
            assert self._reader is not None
            footer = self._reader.footer()
            if footer is not None and footer.last_timestamp_ms < timestamp_ms:
                self._leave()
                continue
            self._reader.seek_time(timestamp_ms)
            return

    def _open_next(self) -> bool:
        known = [sequence for sequence in self._segments if sequence >= self._next]
        if not known:
            return False
        sequence = min(known)
        segment = self._segments[sequence]
        is_start = sequence == self._start.sequence
        self._reader = SegmentReader(
            self._storage,
            segment.data_key,
            position=self._start.position if is_start else 0,
            on_corrupt=self._on_corrupt,
        )
        self._segment = segment
        self._next = sequence
        return True

    def _leave(self) -> None:
        assert self._reader is not None
        assert self._segment is not None
        self.torn_bytes += self._reader.torn_bytes
        self.lost_bytes += self._reader.lost_bytes
        if self._reader.torn_bytes:
            logger.info(
                "a writer died before it acknowledged the last bytes: torn_bytes=%d url=%s",
                self._reader.torn_bytes,
                self._reader.url,
            )
        self._reader = None
        self._next = self._segment.sequence + 1

    def _pieces(self, reader: SegmentReader, *, finished: bool) -> list[Piece]:
        segment = self._segment
        assert segment is not None
        try:
            blocks = reader.read_blocks(finished=finished)
        except NotFoundError:
            if reader.header is not None:
                raise
            # A creation that failed before its first byte was undone; the name may come again.
            del self._segments[segment.sequence]
            self._last = max(self._segments, default=-1)
            self._reader = None
            return []
        pieces = []
        for block in blocks:
            first = 0
            if segment.sequence == self._start.sequence and block.position == self._start.position:
                first = self._start.index
            pieces.append(Piece(segment, reader.url, block, first, -1))
        return pieces


def place_at_time(storage: Storage, segments: Iterable[Segment], from_ms: int) -> Place:
    """The first event of a chain at or after a time, or the chain's end.

    Found by reading up to it once; so what is appended later is delivered whatever its timestamp
    says.
    """
    chain = Chain(storage, segments)
    chain.seek_time(from_ms)
    interval = Interval(from_ms=from_ms)
    while pieces := chain.read():
        for piece in pieces:
            for chosen in select(piece, interval):
                return Place(piece.segment.sequence, piece.block.position, chosen.first)
    return chain.place
