"""One segment as bytes: head, blocks, index entries, end record. Pure: writes nothing anywhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from filestream import eventfile, eventfile_cdap, indexfile
from filestream.blocks import End
from filestream.codec import EncodedEvent, read_signed

__all__ = ["Acknowledgement", "SegmentEncoder", "SegmentFormat", "SegmentOptions"]

Acknowledgement = Literal["memory", "os", "disk", "object", "journal"]
SegmentFormat = Literal["E3", "E2"]

_INDEX_INTERVAL_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """How a segment is written.

    Attributes:
        index_interval_bytes: data between two index entries.
        codec: compress blocks with it, by its name in ``block.codec``; empty for none.
    """

    format: SegmentFormat = "E3"
    acknowledgement: Acknowledgement = "disk"
    index_interval_bytes: int = 256 << 10
    codec: str = ""


class SegmentEncoder:
    """Blocks in order, from the head to the end record; not thread-safe.

    Args:
        properties: of the file header.

    Attributes:
        head: the first bytes of the event file.
        position: where the next block will begin.
        pending: blocks that were added and not taken yet.
        pending_size: of these, in bytes.
        entries: index entries that belong to them.
    """

    def __init__(self, properties: Mapping[str, str], options: SegmentOptions) -> None:
        self._options = options
        self.pending: list[bytes] = []
        self.pending_size = 0
        self.entries: list[indexfile.IndexEntry] = []
        self.events = 0
        self.blocks = 0
        self.first_timestamp_ms = 0
        self.last_timestamp_ms = 0
        if options.format == "E2":
            self.head, self._file_crc = eventfile_cdap.encode_header(properties), 0
        else:
            self.head, self._file_crc = eventfile.encode_header(properties)
        self.position = len(self.head)
        self._indexed_position = -options.index_interval_bytes
        self._indexed_at_ms = -_INDEX_INTERVAL_MS

    def add(
        self, events: Sequence[EncodedEvent], timestamps_ms: Sequence[int] | int
    ) -> list[tuple[int, int]]:
        """Encode events as the next block.

        Args:
            events: one or more that fit a block together.
            timestamps_ms: one for all, or one each, not decreasing and not below
                ``last_timestamp_ms``.

        Returns:
            Runs of ``(block position, events)``: one run in E3, one for each timestamp in E2,
            whose blocks hold one timestamp each.
        """
        if isinstance(timestamps_ms, int):
            first = last = timestamps_ms
        else:
            first, last = timestamps_ms[0], timestamps_ms[-1]
        assert first >= self.last_timestamp_ms, "timestamps of a file decrease"
        if self._options.format == "E2":
            stamps = [first] * len(events) if isinstance(timestamps_ms, int) else timestamps_ms
            return self._add_cdap(events, stamps)
        deltas = None
        if not isinstance(timestamps_ms, int) and first != last:
            deltas = [timestamp - first for timestamp in timestamps_ms]
        block = eventfile.encode_block(
            self._file_crc,
            self.position,
            eventfile.event_payload(events, deltas),
            timestamp_ms=first,
            span_ms=last - first,
            event_count=len(events),
            first_ordinal=self.events,
            codec=self._options.codec,
        )
        return [self._put(block, first, last, len(events))]

    def _add_cdap(
        self, events: Sequence[EncodedEvent], stamps: Sequence[int]
    ) -> list[tuple[int, int]]:
        runs: list[tuple[int, int]] = []
        start = 0
        for index in range(1, len(events) + 1):
            if index == len(events) or stamps[index] != stamps[start]:
                block = eventfile_cdap.encode_block(stamps[start], events[start:index])
                runs.append(self._put(block, stamps[start], stamps[start], index - start))
                start = index
        return runs

    def add_large(
        self, event: EncodedEvent, timestamp_ms: int, chunk_size_bytes: int
    ) -> list[tuple[int, int]]:
        """Encode one event as a run of blocks (E3 only); as ``add``."""
        found = read_signed(event, 0, len(event))
        assert found is not None
        size, at = found
        chunks = list(
            eventfile.encode_large_event(
                self._file_crc,
                self.position,
                event[at + size :],
                memoryview(event)[at : at + size],
                timestamp_ms=timestamp_ms,
                first_ordinal=self.events,
                chunk_size_bytes=chunk_size_bytes,
                codec=self._options.codec,
            )
        )
        run = self._put(b"".join(chunks), timestamp_ms, timestamp_ms, 1)
        self.blocks += len(chunks) - 1
        return [run]

    def end(self, closed_at_ms: int) -> bytes:
        """The end record; no block may follow it."""
        if self._options.format == "E2":
            return eventfile_cdap.encode_end(max(closed_at_ms, self.last_timestamp_ms))
        record = End(
            self.position,
            0,
            self.blocks,
            self.events,
            self.first_timestamp_ms,
            self.last_timestamp_ms,
            closed_at_ms,
        )
        return eventfile.encode_end(self._file_crc, record)

    def whole(self, closed_at_ms: int) -> bytes:
        """Head, all blocks, end record: a segment that is closed when it appears."""
        return b"".join((self.head, *self.pending, self.end(closed_at_ms)))

    def _put(self, block: bytes, first_ms: int, last_ms: int, count: int) -> tuple[int, int]:
        position = self.position
        if position - self._indexed_position >= self._options.index_interval_bytes or (
            first_ms - self._indexed_at_ms >= _INDEX_INTERVAL_MS
        ):
            self.entries.append(indexfile.IndexEntry(first_ms, position, self.events))
            self._indexed_position, self._indexed_at_ms = position, first_ms
        if not self.blocks:
            self.first_timestamp_ms = first_ms
        self.blocks += 1
        self.events += count
        self.last_timestamp_ms = last_ms
        self.pending.append(block)
        self.pending_size += len(block)
        self.position += len(block)
        return position, count
