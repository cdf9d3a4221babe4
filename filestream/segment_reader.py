"""One segment from the reading side: checked blocks from a position on, and what its end means.

A file without an end record is a live file or the work of a writer that died; the bytes cannot
tell which. So this room reports what is there, keeps its position at the first block that is not
whole, and opens the file anew on each read. Only its caller may know that the writer moved on and
say so (``finished=True``); only then is an unfinished tail taken for torn.

Rule: a block is handed out only after its checksum held. Bad bytes with anything valid behind them
are damage and raise; bad bytes with nothing valid behind them are a tail that was never
acknowledged.
"""

import logging
import re
from dataclasses import replace
from typing import Final, Literal

from filestream import eventfile, eventfile_cdap, indexfile
from filestream.blocks import (
    BLOCK_SIZE_BYTES_LIMIT,
    Block,
    Chunk,
    Damaged,
    End,
    Found,
    Header,
    Incomplete,
)
from filestream.codec import decode_events
from filestream.errors import (
    CorruptDataError,
    FilestreamError,
    InvalidRequestError,
    UnsupportedVersionError,
)
from filestream.one_read import OneRead
from filestream.storage.base import Storage

__all__ = ["OnCorrupt", "SegmentReader", "check_on_corrupt", "decode_block", "parse_header"]

logger = logging.getLogger(__name__)

OnCorrupt = Literal["raise", "skip"]

_READ_SIZE_BYTES: Final = 1 << 20
_HEAD_SIZE_BYTES: Final = 4 << 10
_TAIL_SIZE_BYTES: Final = 256
_INDEX_SIZE_BYTES_MAX: Final = 64 << 20
# The first bytes of a timestamp between 1970 and 9999, but not of a run of zeros.
_TIMESTAMP: Final = re.compile(rb"(?=\0\0(?!\0{6})[\0-\xe6])|(?=\xff{8})")


def check_on_corrupt(policy: object) -> OnCorrupt:
    """The policy itself; a misspelt one must not lose data in silence.

    Raises:
        InvalidRequestError: neither ``"raise"`` nor ``"skip"``.
    """
    if policy == "raise":
        return "raise"
    if policy == "skip":
        return "skip"
    raise InvalidRequestError(f"on_corrupt must be 'raise' or 'skip'. on_corrupt={policy!r:.50}")


def parse_header(data: bytes) -> Header | None:
    """The head of an event file of any known version; None when the bytes stop inside it.

    Raises:
        UnsupportedVersionError: a version or schema that this release cannot read.
        CorruptDataError: no event file, or a damaged head.
    """
    if len(data) < 2:
        return None
    if data[:2] == b"E3":
        return eventfile.parse_header(data)
    if data[:2] in (b"E1", b"E2"):
        return eventfile_cdap.parse_header(data)
    if data[:1] == b"E" and data[1:2].isdigit():
        raise UnsupportedVersionError(
            f"unsupported version of event file: {data[:2]!r}. Upgrade the reader."
        )
    if not any(data):
        return None  # Only zeros: the head was not written yet, or a power cut took it.
    raise CorruptDataError(f"no event file: it begins with {data[:2]!r}.")


class SegmentReader:
    """Reads one ``.dat``; not thread-safe.

    Args:
        storage: where the segment is.
        key: of the event file, with its suffix.
        position: a block's start to begin at; 0 for the first block.
        limit: read as if the file ended there; None for wherever it ends.
        on_corrupt: ``"skip"`` steps over damage, logs it and counts it in ``lost_bytes``.

    Attributes:
        position: where the first block not yet handed out begins; 0 while there is no head.
        end: the end record, once reached.
        is_over: nothing will ever follow.
        torn_bytes: size of a tail that was never acknowledged.
        lost_bytes: size of the damage that was stepped over.
    """

    def __init__(
        self,
        storage: Storage,
        key: str,
        *,
        position: int = 0,
        limit: int | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        self.key = key
        self.position = position
        self.header: Header | None = None
        self.end: End | None = None
        self.is_over = False
        self.torn_bytes = 0
        self.lost_bytes = 0
        # Where files do not grow, what was read of one holds for ever: mostly one request is enough.
        self._source = storage
        # Put whole: then it has an end, or it is damaged.
        self._is_whole = not storage.can_append
        self._storage = storage if storage.can_append else OneRead(storage, key)
        self._limit = limit
        self._on_corrupt = on_corrupt
        # A large event whose last chunk was not seen yet; it begins at ``position``.
        self._chunks: list[Chunk] = []
        self._cursor = position
        self._stuck: tuple[int, int] | None = None

    @property
    def url(self) -> str:
        """Of the event file."""
        return self._storage.url_of(self.key)

    def read_blocks(self, *, finished: bool = False) -> list[Block]:
        """Whole, checked blocks from ``position`` on, about 1 MiB of them; empty at the end.

        Args:
            finished: it is known that the writer will not add to this file.

        Raises:
            CorruptDataError: damage; the position stays before it.
            NotFoundError: the file is gone.
            UnsupportedVersionError: this release cannot read the file.
        """
        if self.is_over:
            return []
        try:
            if self.open_header() is None:
                self._look_into_missing_header(finished=finished or self._limit is not None)
                return []
            assert self.header is not None
            if self.position == 0:
                self.position = self._cursor = self.header.size
            return self._read(finished=finished)
        except CorruptDataError as error:
            if error.url:
                raise
            raise CorruptDataError(
                error.message, url=self.url, position=error.position or self._cursor
            ) from error
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(f"{error} url={self.url}") from error

    def footer(self) -> End | None:
        """The end record, read from the end of the file in one step; None for an open file.

        E1 and E2 files keep no counts: None as well.
        """
        header = self.open_header()
        if header is None or header.version != "E3":
            return None
        size = self._storage.size(self.key)
        start = max(header.size, size - _TAIL_SIZE_BYTES)
        tail = self._storage.read(self.key, start, size - start)
        if not eventfile.looks_sealed(tail):
            return None
        at = len(tail) - 14 - int.from_bytes(tail[-6:-2], "big")
        found = header.parse(tail, at, start)
        return found if isinstance(found, End) else None

    def open_header(self) -> Header | None:
        """The head of the file, read if need be; None when it is not whole yet."""
        if self.header is None:
            head = self._storage.read(self.key, 0, _HEAD_SIZE_BYTES)
            header = parse_header(head)
            while header is None and len(head) % _HEAD_SIZE_BYTES == 0 and head:
                more = self._storage.read(self.key, len(head), _HEAD_SIZE_BYTES)
                if not more:
                    break
                head += more
                header = parse_header(head)
            if isinstance(header, eventfile_cdap.CdapHeader) and header.needs_end:
                header = self._with_close_time(header)
            self.header = header
        return self.header

    def first_timestamp_ms(self) -> int | None:
        """Time of the first block as it stands there, not checked; None where there is none."""
        header = self.open_header()
        head = b"" if header is None else self._storage.read(self.key, header.size, 8)
        return int.from_bytes(head, "big", signed=True) if len(head) == 8 else None

    @property
    def held_size(self) -> int:
        """Bytes of the segment that are kept in memory, where it never changes."""
        return self._storage.held_size if isinstance(self._storage, OneRead) else 0

    def index(self) -> list[indexfile.IndexEntry]:
        """Entries of the index beside the file that can be believed, ascending; maybe none."""
        header = self.open_header()
        if header is None:
            return []
        try:
            key = f"{self.key.removesuffix('.dat')}.idx"
            data = self._storage.read(key, 0, _INDEX_SIZE_BYTES_MAX)
        except FilestreamError:
            return []  # A hint: whatever is wrong with it, reading goes on without.
        file_crc = header.file_crc if isinstance(header, eventfile.E3Header) else None
        return list(indexfile.parse(data, file_crc))

    def seek_time(self, timestamp_ms: int) -> None:
        """Skip whole index intervals that lie before a time; what is left may begin earlier."""
        # Strictly before: several blocks in a row may have the very timestamp asked for. And one
        # entry earlier, because a block may span time beyond its own timestamp.
        entries = [e for e in self.index() if e.timestamp_ms < timestamp_ms]
        self._seek_entries(entries[:-1] if len(entries) > 1 else entries)

    def seek_ordinal(self, ordinal: int) -> None:
        """Skip whole index intervals of events before the one with this number (E3)."""
        self._seek_entries([e for e in self.index() if 0 <= e.first_ordinal <= ordinal])

    def block_at(self, position: int) -> Block | None:
        """The checked block that begins at ``position``; None when none does."""
        if self.open_header() is None or position <= 0:
            return None
        try:
            found = self._parse_at(position)
        except CorruptDataError:
            return None
        if isinstance(found, Chunk) and found.is_first:
            # A large event: read all of its run.
            blocks = SegmentReader(self._source, self.key, position=position).read_blocks()
            return blocks[0] if blocks and blocks[0].position == position else None
        return found if isinstance(found, Block) else None

    def _seek_entries(self, entries: list[indexfile.IndexEntry]) -> None:
        # The index is a hint: an entry serves only when a checked block stands where it says.
        for entry in reversed(entries[-3:]):
            if entry.position <= self.position:
                return
            block = self.block_at(entry.position)
            if block is not None and block.timestamp_ms == entry.timestamp_ms:
                self.position = self._cursor = entry.position
                return
        if entries:
            logger.warning("index is wrong and was ignored: %s", self.url)

    def _look_into_missing_header(self, *, finished: bool) -> None:
        """The head is not whole: not there yet, torn at birth, or damaged since?"""
        size = self._storage.size(self.key)
        if self._is_whole:
            self.is_over = True
            self.lost_bytes += size
            if self._on_corrupt == "raise":
                raise CorruptDataError("the file header is cut although the file was put whole.")
            logger.warning("stepped over a file whose header is cut: %s", self.url)
            return
        place = (0, size)
        if size and (finished or self._stuck == place):
            # The index is created after the head was synced, the end record later still.
            index = f"{self.key.removesuffix('.dat')}.idx"
            is_proven = self._has_sealed_shape() or self._storage.exists(index)
            # Looked at once more: the writer may have finished the head in the meantime.
            if is_proven and self.open_header() is None:
                raise CorruptDataError("the file header is cut although blocks were written.")
        self._stuck = place
        if finished:
            self.torn_bytes = size
            self.is_over = True

    def _read(self, *, finished: bool) -> list[Block]:
        assert self.header is not None
        blocks: list[Block] = []
        size = _READ_SIZE_BYTES
        while not blocks:
            wanted = size if self._limit is None else min(size, self._limit - self._cursor)
            data = self._storage.read(self.key, self._cursor, wanted) if wanted > 0 else b""
            found = self._take(data, blocks)
            if isinstance(found, End):
                self.end, self.is_over = found, True
                # A large event that was not finished never happened.
                self.position = self._cursor = found.position
                break
            if isinstance(found, Damaged):
                if blocks:
                    break
                if self._step_over(found, finished=finished):
                    continue
                break
            if blocks:
                break
            if len(data) == size:
                # The file goes on: take the rest of this block too, however large it is.
                needed = found.needed - self._cursor if found.needed else 0
                size = max(_READ_SIZE_BYTES, needed)
                if size <= len(data) and not self._chunks and not blocks:
                    size = len(data) + _READ_SIZE_BYTES
                continue
            self._at_file_end(found.position, finished=finished)
            break
        return blocks

    def _take(self, data: bytes, blocks: list[Block]) -> End | Incomplete | Damaged:
        """Parse what is there, moving the cursor; returns what stopped it."""
        header = self.header
        assert header is not None
        base, at, stop = self._cursor, 0, len(data)
        while at < stop:
            try:
                found = header.parse(data, at, base)
            except CorruptDataError as error:
                # The checksum holds and the content does not: nobody wrote this by accident.
                return Damaged(base + at, error.message, is_certain=True)
            except UnsupportedVersionError:
                if blocks:
                    return Incomplete(base + at)
                raise
            if isinstance(found, Block):
                if self._chunks:
                    return Damaged(found.position, "a large event is interrupted.", is_certain=True)
                blocks.append(found)
                self.position = self._cursor = found.end
                at = found.end - base
            elif isinstance(found, Chunk):
                if found.is_first == bool(self._chunks):
                    return Damaged(
                        found.block.position, "a large event is broken.", is_certain=True
                    )
                self._chunks.append(found)
                self._cursor = found.block.end
                at = found.block.end - base
                if found.is_last:
                    blocks.append(eventfile.join_chunks(self._chunks))
                    self._chunks = []
                    self.position = self._cursor
            else:
                return found
        return Incomplete(self._cursor)

    def _at_file_end(self, at: int, *, finished: bool) -> None:
        """The bytes stop in or behind the block at ``at``: wait, or look for damage."""
        is_bounded = finished or self._limit is not None
        size = self._storage.size(self.key)
        end = size if self._limit is None else min(size, self._limit)
        if self._is_whole and end == size:
            reason = "the end of the file is missing although it was put whole."
            self._step_over(Damaged(at, reason, is_certain=True), finished=finished)
            return
        # Looked into once it has stood still: a writer in the middle of a block is normal.
        place = (at, size)
        if at < end and (is_bounded or self._stuck == place):
            reason = "a block claims more bytes than the file has."
            if self._step_over(Damaged(at, reason), finished=finished) or self.is_over:
                return
        self._stuck = place
        if is_bounded:
            self.torn_bytes = max(0, end - self.position)
            self.is_over = True

    def _step_over(self, damage: Damaged, *, finished: bool) -> bool:
        """Decide about bad bytes: raise, step over them (True), or leave them (False)."""
        is_bounded = finished or self._limit is not None
        if not damage.is_certain and self._became_whole(damage):
            return False
        behind = self._valid_position_behind(damage)
        # Blocks of another file fail the checksum too; but no torn write ends in an end record.
        is_damage = behind is not None or damage.is_certain or self._has_sealed_shape()
        # Asked again: the writer may have finished this block and written the one we found.
        if is_damage and not damage.is_certain and self._became_whole(damage):
            return False
        if not is_damage:
            if is_bounded:
                self.torn_bytes = self._storage.size(self.key) - self.position
                self.is_over = True
            return False
        if self._on_corrupt == "raise":
            raise CorruptDataError(damage.reason, url=self.url, position=damage.position)
        stop = behind if behind is not None else self._storage.size(self.key)
        self.lost_bytes += stop - self.position
        logger.warning(
            "stepped over damage: %s url=%s position=%d lost_bytes=%d",
            damage.reason,
            self.url,
            damage.position,
            stop - self.position,
        )
        self.position = self._cursor = stop
        self._chunks = []
        self.is_over = behind is None
        return behind is not None

    def _became_whole(self, damage: Damaged) -> bool:
        """Whether the writer was merely in the middle of it; then a bounded read ends here."""
        is_whole = isinstance(self._parse_at(damage.position), (Block, Chunk, End))
        self.is_over = is_whole and self._limit is not None
        return is_whole

    def _parse_at(self, position: int) -> Found:
        """What stands at one position, read anew and with nothing behind it."""
        assert self.header is not None
        size = _HEAD_SIZE_BYTES
        while True:
            data = self._storage.read(self.key, position, size)
            found = self.header.parse(data, 0, position)
            if (
                not isinstance(found, Incomplete)
                or len(data) < size
                or found.needed <= position + size
            ):
                return found
            size = found.needed - position

    def _has_sealed_shape(self) -> bool:
        size = self._storage.size(self.key)
        tail = self._storage.read(self.key, max(0, size - _TAIL_SIZE_BYTES), _TAIL_SIZE_BYTES)
        return eventfile.looks_sealed(tail)

    def _valid_position_behind(self, damage: Damaged) -> int | None:
        """Where the next block or end record stands whose checksum holds; None: nowhere."""
        header = self.header
        assert header is not None
        if header.version != "E3":
            return None  # Without checksums nothing can be recognised again.
        start = damage.position + 1
        data = self._storage.read(self.key, start, 2 * BLOCK_SIZE_BYTES_LIMIT)
        starts = [damage.end - start] if damage.end else []
        for at in (*starts, *(match.start() for match in _TIMESTAMP.finditer(data))):
            try:
                found = header.parse(data, at, start)
            except (CorruptDataError, UnsupportedVersionError):
                return start + at
            if isinstance(found, (Block, Chunk, End)):
                # Reading can go on at a large event's first chunk only.
                is_middle = isinstance(found, Chunk) and not found.is_first
                if not is_middle or self._on_corrupt == "raise":
                    return start + at
        return None

    def _with_close_time(self, header: eventfile_cdap.CdapHeader) -> Header | None:
        """E2 with ``close.timestamp``: events have no time before the end is there."""
        data = self._storage.read(self.key, 0, self._storage.size(self.key))
        at = header.size
        while True:
            found = header.parse(data, at, 0)
            if isinstance(found, Block):
                at = found.end
            elif isinstance(found, End):
                return replace(header, uniform=str(found.closed_at_ms))
            elif isinstance(found, Damaged) and found.is_certain:
                raise CorruptDataError(found.reason, url=self.url, position=found.position)
            else:
                return None


def decode_block(block: Block, url: str) -> list[tuple[int, bytes, dict[str, str | None]]]:
    """Events of a checked block as ``(timestamp_delta_ms, body, headers)``.

    Raises:
        CorruptDataError: the checksum holds, or there is none (E1, E2), and the events do not.
    """
    try:
        events = decode_events(block.data, block.start, block.stop, has_delta=block.has_delta)
    except CorruptDataError as error:
        raise CorruptDataError(error.message, url=url, position=block.position) from error
    if block.event_count not in (-1, len(events)):
        raise CorruptDataError(
            f"a block holds another number of events than it says. said={block.event_count}",
            url=url,
            position=block.position,
        )
    return events
