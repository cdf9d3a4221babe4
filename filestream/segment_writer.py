"""One segment from the writing side: create, append blocks, seal; one owner, never reopened.

Order is the promise: the head of the event file is durable before its first block, a block is
durable (at level ``disk``) before anybody hears of it, the index follows the data and is never
waited for. After any failed write or sync the segment is poisoned: nothing is written to it
again, least of all a second sync, which might succeed although the bytes are gone.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from filestream import indexfile
from filestream.errors import FilestreamError, UnavailableError
from filestream.segment_encoder import SegmentEncoder, SegmentOptions
from filestream.storage.base import Appender, Storage

__all__ = ["SegmentWriter"]

logger = logging.getLogger(__name__)

# Level "memory" hands blocks on in pieces of this size, or when flushed.
_PENDING_SIZE_BYTES: Final = 1 << 20
_USUAL: Final = SegmentOptions()


class SegmentWriter(SegmentEncoder):
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
        options: SegmentOptions = _USUAL,
    ) -> None:
        super().__init__(properties, options)
        self.key = key
        self._storage = storage
        self._index: Appender | None = None
        self._is_poisoned = False
        self._data = storage.create(f"{key}.dat")
        try:
            self._data.write_and_sync(self.head)
        except UnavailableError:
            # Nothing was promised about this file yet. Left behind, a full disk would collect
            # one empty file for each attempt; but what a reader may have seen a byte of stays,
            # because the next file of this name would have another head.
            self._data.close()
            if storage.size(f"{key}.dat") == 0:
                storage.delete(f"{key}.dat")
            raise

    @property
    def is_poisoned(self) -> bool:
        """A write or sync failed: only ``abandon`` is left to do."""
        return self._is_poisoned

    def commit(self) -> None:
        """Write what was added; what it survives then is the acknowledgement level.

        Raises:
            UnavailableError: the outcome is unknown and the segment poisoned.
        """
        level = self._options.acknowledgement
        if level == "memory" and self.pending_size < _PENDING_SIZE_BYTES:
            return
        pending, self.pending, self.pending_size = b"".join(self.pending), [], 0
        self._guarded(self._data.write_and_sync if level == "disk" else self._data.write, pending)
        entries, self.entries = self.entries, []
        for entry in entries:
            self._write_index_entry(entry)

    def flush(self) -> None:
        """Hand on what level ``memory`` has held back."""
        if self.pending:
            self.pending_size = _PENDING_SIZE_BYTES
            self.commit()

    def seal(self, closed_at_ms: int) -> None:
        """Write the end record, so that no reader waits any more; nothing can follow.

        Raises:
            UnavailableError: the end is not there; every acknowledged event is.
        """
        self.flush()
        end = self.end(closed_at_ms)
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
