"""One segment from the writing side: create, append blocks, seal; one owner, never reopened.

Order is the promise: the head of the event file is durable before its first block, a block is
durable (at level ``disk``) before anybody hears of it, the index follows the data and is never
waited for. After any failed write or sync the segment is poisoned: nothing is written to it
again, least of all a second sync, which might succeed although the bytes are gone.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from filestream import eventfile, eventfile_cdap, indexfile
from filestream.blocks import End
from filestream.codec import EncodedEvent, read_signed
from filestream.errors import FilestreamError, UnavailableError
from filestream.storage.base import Appender, Storage

__all__ = ["Acknowledgement", "SegmentFormat", "SegmentOptions", "SegmentWriter"]

logger = logging.getLogger(__name__)

Acknowledgement = Literal["memory", "os", "disk"]
SegmentFormat = Literal["E3", "E2"]

# Level "memory" hands blocks on in pieces of this size, or when flushed.
_PENDING_SIZE_BYTES: Final = 1 << 20
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


class SegmentWriter:
    """Not thread-safe: one leader at a time writes.

    Args:
        storage: where the segment goes.
        key: of the event file, without its suffix.
        properties: of the file header.

    Raises:
        ConflictError: the segment exists: another process writes under this name.
        UnavailableError: the store failed; a file without any byte was removed again.
    """

    def __init__(
        self,
        storage: Storage,
        key: str,
        properties: Mapping[str, str],
        options: SegmentOptions = SegmentOptions(),
    ) -> None:
        self.key = key
        self._storage = storage
        self._options = options
        # Blocks and index entries that were added and not written yet.
        self._pending: list[bytes] = []
        self._entries: list[indexfile.IndexEntry] = []
        self._pending_size = 0
        self._index: Appender | None = None
        self._is_poisoned = False
        self.events = 0
        self.blocks = 0
        self.first_timestamp_ms = 0
        self.last_timestamp_ms = 0
        if options.format == "E2":
            head, self._file_crc = eventfile_cdap.encode_header(properties), 0
        else:
            head, self._file_crc = eventfile.encode_header(properties)
        self._data = storage.create(f"{key}.dat")
        try:
            self._data.write_and_sync(head)
        except UnavailableError:
            # Nothing was promised about this file yet. Left behind, a full disk would collect
            # one empty file for each attempt; but what a reader may have seen a byte of stays,
            # because the next file of this name would have another head.
            self._data.close()
            if storage.size(f"{key}.dat") == 0:
                storage.delete(f"{key}.dat")
            raise
        self.position = len(head)
        self._indexed_position = -options.index_interval_bytes
        self._indexed_at_ms = -_INDEX_INTERVAL_MS

    @property
    def is_poisoned(self) -> bool:
        """A write or sync failed: only ``abandon`` is left to do."""
        return self._is_poisoned

    def add(
        self, events: Sequence[EncodedEvent], timestamps_ms: Sequence[int] | int
    ) -> list[tuple[int, int]]:
        """Encode events as the next block; nothing is written before ``commit``.

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

    def commit(self) -> None:
        """Write what was added; what it survives then is the acknowledgement level.

        Raises:
            UnavailableError: the outcome is unknown and the segment poisoned.
        """
        level = self._options.acknowledgement
        if level == "memory" and self._pending_size < _PENDING_SIZE_BYTES:
            return
        pending, self._pending, self._pending_size = b"".join(self._pending), [], 0
        self._guarded(self._data.write_and_sync if level == "disk" else self._data.write, pending)
        entries, self._entries = self._entries, []
        for entry in entries:
            self._write_index_entry(entry)

    def flush(self) -> None:
        """Hand on what level ``memory`` has held back."""
        if self._pending:
            self._pending_size = _PENDING_SIZE_BYTES
            self.commit()

    def seal(self, closed_at_ms: int) -> None:
        """Write the end record, so that no reader waits any more; nothing can follow.

        Raises:
            UnavailableError: the end is not there; every acknowledged event is.
        """
        self.flush()
        if self._options.format == "E2":
            end = eventfile_cdap.encode_end(max(closed_at_ms, self.last_timestamp_ms))
        else:
            record = End(
                self.position,
                0,
                self.blocks,
                self.events,
                self.first_timestamp_ms,
                self.last_timestamp_ms,
                closed_at_ms,
            )
            end = eventfile.encode_end(self._file_crc, record)
        write = self._data.write
        if self._options.acknowledgement == "disk":
            write = self._data.write_and_sync
        try:
            self._guarded(write, end)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go without an end record; readers leave the file when they see the next one."""
        self._is_poisoned = True
        self._data.close()
        if self._index is not None:
            self._index.close()

    def _guarded(self, action: Callable[[bytes], None], data: bytes) -> None:
        if self._is_poisoned:
            raise UnavailableError(f"the segment was given up. url={self.url}")
        try:
            action(data)
        except BaseException:
            # Also on KeyboardInterrupt: nobody knows how many bytes were written.
            self._is_poisoned = True
            raise

    @property
    def url(self) -> str:
        """Of the event file."""
        return self._storage.url_of(f"{self.key}.dat")

    def _put(self, block: bytes, first_ms: int, last_ms: int, count: int) -> tuple[int, int]:
        position = self.position
        if position - self._indexed_position >= self._options.index_interval_bytes or (
            first_ms - self._indexed_at_ms >= _INDEX_INTERVAL_MS
        ):
            self._entries.append(indexfile.IndexEntry(first_ms, position, self.events))
            self._indexed_position, self._indexed_at_ms = position, first_ms
        if not self.blocks:
            self.first_timestamp_ms = first_ms
        self.blocks += 1
        self.events += count
        self.last_timestamp_ms = last_ms
        self._pending.append(block)
        self._pending_size += len(block)
        self.position += len(block)
        return position, count

    def _write_index_entry(self, entry: indexfile.IndexEntry) -> None:
        # Index after data, never before, and never waited for: an entry that points past the
        # data is a lie, data without an entry only costs a scan.
        if self._options.format == "E2":
            head, raw = indexfile.CDAP_HEADER, indexfile.encode_cdap_entry(entry)
        else:
            head = indexfile.encode_header(self._file_crc)
            raw = indexfile.encode_entry(self._file_crc, entry)
        try:
            if self._index is None:
                self._index = self._storage.create(f"{self.key}.idx", durable_name=False)
                raw = head + raw
            self._index.write(raw)
        except FilestreamError as error:
            logger.warning("index is not written any more: %s", error)
            self._indexed_position = self._indexed_at_ms = 1 << 62
