"""Checks every byte of a stream: heads, blocks, events, footers, indexes, names, gaps.

Reads only, unless it is asked to rebuild indexes, which are hints and can always be made again.
A finding is ``damage`` (bytes that were acknowledged are wrong or gone), ``suspect`` (something is not
as a writer leaves it, and nothing is lost), or ``note`` (normal, but good to know).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from filestream import eventfile, indexfile
from filestream.blocks import Block, Header
from filestream.errors import (
    CorruptDataError,
    FilestreamError,
    NotFoundError,
    UnsupportedVersionError,
)
from filestream.partitions.catalog import Catalog
from filestream.partitions.layout import Pack, Partition, Segment
from filestream.partitions.packed_storage import PackedStorage
from filestream.partitions.packs import check_pack, index_problem
from filestream.partitions.packs import rebuild_index as remake_index
from filestream.partitions.settled import survey_settled
from filestream.partitions.snapshot import StreamView
from filestream.segment_reader import SegmentReader, decode_block
from filestream.storage.base import Storage

__all__ = ["Finding", "Level", "verify", "verify_segment"]

Level = Literal["damage", "suspect", "note"]

_INDEX_INTERVAL_BYTES: Final = 256 << 10
_LOOKS: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth telling.

    Attributes:
        kind: a stable word, such as ``"damaged block"``.
        position: byte in the file, where that means something; else 0.
        size_bytes: how much is concerned; 0 when unknown.
    """

    level: Level
    kind: str
    url: str
    position: int
    size_bytes: int
    message: str


def verify(
    view: StreamView,
    stream_name: str,
    *,
    rebuild_index: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Finding]:
    """Check the current generation; nothing found means every byte is what was written.

    Args:
        stream_name: compared with the one in each file.
        rebuild_index: write missing and wrong indexes anew.
        progress: told of bytes checked.
    """
    storage = view.storage
    catalog = Catalog(storage)
    generation = view.generations.current()
    for directory in catalog.partitions(generation.number):
        survey = survey_settled(view.storage, directory)
        segments = survey.segments
        for key in survey.missing:
            yield Finding(
                "damage", "missing event file", storage.url_of(key), 0, 0,
                "its index or a later segment is there.",
            )  # fmt: skip
        for pack in (pack for key in directory.keys for pack in storage.packs_in(key)):
            yield from _verify_pack(
                storage,
                pack,
                directory.partition,
                rebuild_ms=view.clock.now_ms() if rebuild_index else 0,
            )
        for problem in survey.problems:
            yield Finding("damage", "two files", storage.url_of(directory.keys[0]), 0, 0, problem)
        for segment in segments:
            is_last = not any(
                s.writer_id == segment.writer_id and s.sequence > segment.sequence for s in segments
            )
            try:
                yield from verify_segment(
                    storage,
                    segment,
                    stream_name=stream_name,
                    finished=not is_last,
                    rebuild_index=rebuild_index,
                    progress=progress,
                )
            except NotFoundError as error:
                failure = view.explain_missing(generation, error, segment.partition)
                if isinstance(failure, CorruptDataError):
                    url = storage.url_of(segment.data_key)
                    yield Finding("damage", "missing event file", url, 0, 0, str(error))
                elif failure is not None:
                    raise failure from error


def _verify_pack(
    storage: PackedStorage, pack: Pack, partition: Partition, *, rebuild_ms: int
) -> Iterator[Finding]:
    """Check the index of a pack; the pack itself is read segment by segment, as any others."""
    files = storage.inner
    url = files.url_of(pack.index_key)
    names = {entry.name for entry in files.list(pack.directory)}
    is_copied = names.issuperset(pack.segment_names())
    try:
        problem = index_problem(files, pack)
        if problem and rebuild_ms:
            remake_index(files, pack, rebuild_ms)
            storage.forget(pack)
            yield Finding("note", "index rebuilt", url, 0, 0, f"there was a {problem}.")
        elif problem:
            yield Finding("suspect", problem, url, 0, 0, "rebuild it with verify --rebuild-index.")
        if is_copied:
            check_pack(files, pack, partition)
    except CorruptDataError as error:
        advice = (
            " All that it was made from is still there: remove this file and its index, and compact again."
            if is_copied
            else ""
        )
        message = error.message + advice
        yield Finding("damage", "damaged pack", error.url, error.position, 0, message)
    except NotFoundError:
        return  # Truncated or expired meanwhile: whoever reads its segments will find out.


def verify_segment(
    storage: PackedStorage,
    segment: Segment,
    *,
    stream_name: str,
    finished: bool,
    rebuild_index: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Finding]:
    """Check one segment; see ``verify``.

    Args:
        finished: the writer has a later segment, so nothing is added here.
    """
    url = storage.url_of(segment.data_key)
    reader = SegmentReader(storage, segment.data_key, on_corrupt="skip")
    check = _Check(segment, url)
    looks = 0
    while True:
        try:
            blocks = reader.read_blocks(finished=finished)
        except CorruptDataError as error:
            yield Finding("damage", "damaged file", url, error.position, 0, error.message)
            return
        except UnsupportedVersionError as error:
            yield Finding("damage", "unsupported file", url, 0, 0, str(error))
            return
        if reader.lost_bytes > check.lost_bytes:
            lost = reader.lost_bytes - check.lost_bytes
            check.lost_bytes = reader.lost_bytes
            at = (blocks[0].position if blocks else reader.position) - lost
            yield Finding("damage", "damaged block", url, at, lost, "events were lost here.")
        if not blocks:
            # Twice: the second look at an unchanged tail asks whether it hides damage.
            looks += 1
            if looks == _LOOKS or reader.is_over:
                break
            continue
        for block in blocks:
            yield from check.block(block)
        if progress is not None:
            progress(blocks[-1].end - blocks[0].position)
    yield from _verify_head(storage, reader, check, stream_name)
    yield from check.end(reader, storage.size(segment.data_key))
    yield from _verify_index(storage, segment, reader, check, rebuild=rebuild_index)


def _verify_head(
    storage: Storage, reader: SegmentReader, check: "_Check", stream_name: str
) -> Iterator[Finding]:
    if reader.header is not None:
        yield from check.header(reader.header, stream_name)
    elif not storage.can_append and not check.lost_bytes:
        said = "it was put whole, and holds nothing now."
        yield Finding("damage", "empty file", reader.url, 0, 0, said)


class _Check:
    """What must hold from block to block of one segment."""

    def __init__(self, segment: Segment, url: str) -> None:
        self._segment = segment
        self._url = url
        self.lost_bytes = 0
        self.positions: list[tuple[int, int, int]] = []
        self._events = 0
        self._last_ms = 0

    def _finding(self, level: Level, kind: str, message: str, position: int = 0) -> Finding:
        return Finding(level, kind, self._url, position, 0, message)

    def block(self, block: Block) -> Iterator[Finding]:
        """Decode it and compare it with the blocks before."""
        try:
            events = decode_block(block, self._url)
        except FilestreamError as error:
            message = getattr(error, "message", str(error))
            yield self._finding("damage", "damaged block", message, block.position)
            return
        self.positions.append((block.position, block.timestamp_ms, block.first_ordinal))
        if block.first_ordinal >= 0:
            if block.first_ordinal != self._events and not self.lost_bytes:
                yield self._finding(
                    "damage", "wrong count", "events are missing before a block.", block.position
                )
            self._events = block.first_ordinal
            if events and events[-1][0] != block.span_ms:
                yield self._finding(
                    "damage",
                    "wrong span",
                    "the last event is not where it should be.",
                    block.position,
                )
        self._events += len(events)
        if block.timestamp_ms < self._last_ms:
            yield self._finding("suspect", "time goes back", "a block is older.", block.position)
        self._last_ms = block.timestamp_ms + block.span_ms
        partition = self._segment.partition
        if not partition.start_ms <= block.timestamp_ms <= self._last_ms < partition.end_ms:
            yield self._finding(
                "suspect", "wrong partition", "an event lies outside its partition.", block.position
            )

    def header(self, header: Header, stream_name: str) -> Iterator[Finding]:
        """Compare what the file says of itself with its path."""
        if header.version != "E3":
            yield self._finding("note", "unverified", "E1 and E2 files have no checksums.")
            return
        segment = self._segment
        expected = {
            "stream": stream_name,
            "generation": str(segment.partition.generation),
            "partition": segment.partition.name,
            "writer": segment.writer_id,
            "sequence": str(segment.sequence),
        }
        for name, value in expected.items():
            said = header.properties.get(name, value)
            if said != value:
                # A stream that was moved keeps its old name inside; anything else was swapped.
                level: Level = "note" if name == "stream" else "damage"
                yield self._finding(level, "wrong place", f"the file says {name}={said!r:.100}.")

    def end(self, reader: SegmentReader, size: int) -> Iterator[Finding]:
        """Compare the end record with what was found."""
        end = reader.end
        if end is None:
            if reader.torn_bytes:
                yield Finding(
                    "note", "torn tail", self._url, size - reader.torn_bytes, reader.torn_bytes,
                    "bytes that were never acknowledged.",
                )  # fmt: skip
            elif reader.position < size and reader.header is not None:
                yield Finding(
                    "note", "unfinished tail", self._url, reader.position, size - reader.position,
                    "a block in the making, or the tail of a writer that died.",
                )  # fmt: skip
            elif reader.header is None and size:
                yield self._finding("suspect", "unreadable head", "the file header is not whole.")
            else:
                yield self._finding(
                    "note", "open", "no end record: a live file, or a dead writer's."
                )
            return
        if end.end < size:
            yield Finding(
                "suspect", "trailing bytes", self._url, end.end, size - end.end,
                "bytes behind the end record.",
            )  # fmt: skip
        if end.events >= 0 and end.events != self._events and not self.lost_bytes:
            yield self._finding(
                "damage", "wrong count", f"the end record counts {end.events} events.", end.position
            )


def _verify_index(
    storage: PackedStorage, segment: Segment, reader: SegmentReader, check: _Check, *, rebuild: bool
) -> Iterator[Finding]:
    url = storage.url_of(segment.index_key)
    if reader.header is None or not check.positions or storage.holds(segment.data_key):
        return
    known = {position: (stamp, ordinal) for position, stamp, ordinal in check.positions}
    entries = reader.index()
    size = storage.size(segment.data_key)
    for entry in entries:
        # Entries follow the data, so one that points behind it proves that data is gone.
        if entry.position >= size:
            yield Finding(
                "damage", "data is missing", storage.url_of(segment.data_key), size,
                entry.position - size, "the index knows of a block behind the end.",
            )  # fmt: skip
            return
    is_wrong = any(known.get(e.position) != (e.timestamp_ms, e.first_ordinal) for e in entries)
    size = storage.size(segment.index_key) if storage.exists(segment.index_key) else 0
    entry_size = 28 if reader.header.version == "E3" else 16
    has_junk = (
        size > 0 and (size - 6 if entry_size == 28 else size - 3) >= (len(entries) + 1) * entry_size
    )
    # Where segments are put whole, each is small and has no index.
    is_missing = not entries and (storage.can_append or size > 0)
    if is_missing or is_wrong or has_junk:
        kind = "missing index" if not size else "wrong index"
        if rebuild:
            _rebuild_index(storage, segment, reader.header, check)
            yield Finding("note", "index rebuilt", url, 0, 0, f"there was a {kind}.")
        else:
            yield Finding("suspect", kind, url, 0, 0, "rebuild it with verify --rebuild-index.")


def _rebuild_index(storage: Storage, segment: Segment, header: Header, check: _Check) -> None:
    raw = [b"I1\0"]
    if isinstance(header, eventfile.E3Header):
        raw = [indexfile.encode_header(header.file_crc)]
    next_position = 0
    for position, stamp, ordinal in check.positions:
        if position < next_position:
            continue
        next_position = position + _INDEX_INTERVAL_BYTES
        entry = indexfile.IndexEntry(stamp, position, ordinal)
        if isinstance(header, eventfile.E3Header):
            raw.append(indexfile.encode_entry(header.file_crc, entry))
        else:
            raw.append(indexfile.encode_cdap_entry(entry))
    storage.delete(segment.index_key)
    storage.put_if_absent(segment.index_key, b"".join(raw))
