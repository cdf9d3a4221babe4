"""Which bytes a Spark task reads. Knows nothing of Spark, and is tested without Java.

A split is a range of one event file between two block boundaries; reading it gives the same
events on every try, because boundaries lie behind whole blocks and bytes never change. Splits are
cut at index entries that were checked, packed into tasks in the order of time, and are small values
that pickle well.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from filestream.errors import FencedError, NotFoundError
from filestream.partitions.chain import Place
from filestream.partitions.filters import ALWAYS, Interval, Piece, select
from filestream.partitions.layout import Segment
from filestream.partitions.snapshot import Bounds, Snapshot, StreamView
from filestream.segment_map import SegmentEnd, segment_end
from filestream.segment_reader import OnCorrupt, SegmentReader
from filestream.storage.base import Storage

__all__ = ["DataLossError", "Split", "batch_splits", "cut", "pack", "read_splits", "segment_ranges"]

logger = logging.getLogger(__name__)


class DataLossError(NotFoundError):
    """Unread events are gone, and the query was to fail then."""


@dataclass(frozen=True, slots=True)
class Split:
    """A range of one event file.

    Attributes:
        start: a block boundary; 0 for the first block.
        stop: a boundary, or the size that was seen: nothing behind it is read.
        first: index of the first event wanted in the first block.
        last: index behind the last event wanted in the block that begins at ``stop``; 0 for
            none of it.
        interval: events outside are left out.
    """

    segment: Segment
    start: int
    stop: int
    first: int = 0
    last: int = 0
    interval: Interval = ALWAYS

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return self.stop - self.start


def batch_splits(
    snapshot: Snapshot, bounds: Bounds, size_bytes_max: int, interval: Interval = ALWAYS
) -> list[Split]:
    """Splits of a bounded read, in the order of time.

    Args:
        size_bytes_max: larger files are cut.
        interval: events outside are left out.
    """
    storage = snapshot.view.storage
    splits: list[Split] = []
    for segments in snapshot.by_partition().values():
        for segment in segments:
            wanted = bounds.cut(segment)
            if wanted is None:
                continue
            size = snapshot.limits.get(segment)
            split = Split(
                segment,
                wanted.start_position,
                storage.size(segment.data_key) if size is None else size,
                first=wanted.start_index,
                interval=wanted.interval.both(interval),
            )
            if wanted.until is not None:
                split = replace(split, stop=wanted.until[0], last=wanted.until[1])
            splits += _pruned(storage, split, size_bytes_max)
    return splits


def _pruned(storage: Storage, split: Split, size_bytes_max: int) -> Iterable[Split]:
    """The split in pieces, without those that lie outside its interval of time altogether."""
    from_ms, until_ms = split.interval
    partition = split.segment.partition
    if from_ms > partition.start_ms or until_ms < partition.end_ms:
        footer = SegmentReader(storage, split.segment.data_key).footer()
        if footer is not None and split.interval.is_disjoint(
            footer.first_timestamp_ms, footer.last_timestamp_ms + 1
        ):
            return []
    return cut(storage, split, size_bytes_max)


def cut(storage: Storage, split: Split, size_bytes_max: int) -> list[Split]:
    """A split in pieces of about ``size_bytes_max``, at index entries that hold what they say."""
    if split.size_bytes <= size_bytes_max + size_bytes_max // 4:
        return [split]
    reader = SegmentReader(storage, split.segment.data_key)
    target = split.start + size_bytes_max
    places: list[int] = []
    for entry in reader.index():
        if not split.start < entry.position < split.stop - size_bytes_max // 4:
            continue
        if entry.position >= target:
            block = reader.block_at(entry.position)
            if block is None or block.timestamp_ms != entry.timestamp_ms:
                logger.warning("index is wrong and was ignored: %s", reader.url)
                return [split]
            places.append(entry.position)
            target = entry.position + size_bytes_max
    starts = [split.start, *places]
    stops = [*places, split.stop]
    pieces = [
        replace(split, start=start, stop=stop, first=0, last=0)
        for start, stop in zip(starts, stops, strict=True)
    ]
    pieces[0] = replace(pieces[0], first=split.first)
    pieces[-1] = replace(pieces[-1], last=split.last)
    return pieces


def pack(splits: Sequence[Split], *, tasks_min: int, size_bytes_max: int) -> list[list[Split]]:
    """Splits as tasks, none much larger than ``size_bytes_max``, in the order given.

    Args:
        tasks_min: aim at so many tasks at least, if there is so much to do.
    """
    total = sum(split.size_bytes for split in splits)
    # Opening a file costs about as much as reading a few KiB of it.
    share = max(1, min(size_bytes_max, -(-(total + 4096 * len(splits)) // max(1, tasks_min))))
    tasks: list[list[Split]] = []
    filled = share
    for split in splits:
        if filled + split.size_bytes // 2 >= share:
            tasks.append([])
            filled = 0
        tasks[-1].append(split)
        filled += split.size_bytes + 4096
    return tasks


def segment_ranges(
    view: StreamView,
    segments: Sequence[Segment],
    start: Place,
    end: Place,
    ends: "dict[str, SegmentEnd] | None" = None,
) -> Iterator[Split]:
    """The ranges of a chain between two of its places.

    Args:
        segments: of the chain, ascending.
        ends: what is known of the ends of sealed segments, by key; added to.
    """
    for segment in segments:
        if segment.sequence < start.sequence or segment.sequence > end.sequence:
            continue
        first = start.position if segment.sequence == start.sequence else 0
        if segment.sequence == end.sequence:
            if end.position > first:
                yield Split(segment, first, end.position, first=start.index if first else 0)
            continue
        key = segment.data_key
        known = ends.get(key) if ends is not None else None
        if known is None:
            known = segment_end(view.storage, key)
            if ends is not None and known.is_sealed:
                ends[key] = known
        # Without an end record the reader decides, with its checksums, what the tail is.
        stop = known.boundary.position if known.is_sealed else known.size_bytes
        if stop > first:
            yield Split(segment, first, stop, first=start.index if first else 0)


def read_splits(
    view: StreamView,
    splits: Iterable[Split],
    *,
    generation: int,
    on_corrupt: OnCorrupt = "raise",
    skips_truncated: bool = False,
    skips_expired: bool = False,
) -> Iterator[Piece]:
    """The blocks of some splits, checked and cut to their bounds.

    Args:
        generation: of the splits.
        skips_truncated: go on where files are gone because the stream was truncated.
        skips_expired: go on where files are gone because they expired after they were planned.

    Raises:
        CorruptDataError: damage, or a file that is missing for no reason.
        FencedError: the stream was truncated and the files are gone.
        DataLossError: files expired and are gone.
    """
    for split in splits:
        try:
            yield from _read_split(view.storage, split, on_corrupt)
        except NotFoundError as error:
            current = view.generations.current()
            failure = view.explain_missing(current, error, split.segment.partition)
            if current.number != generation:
                failure = FencedError(
                    "the stream was truncated while it was read. "
                    f"generation={generation} current={current.number} url={view.storage.url}"
                )
            if failure is None:
                failure = DataLossError(
                    "files expired before they were read. Set failOnDataLoss=false to go on "
                    f"without them. {error}"
                )
            if (skips_expired and isinstance(failure, DataLossError)) or (
                skips_truncated and isinstance(failure, FencedError)
            ):
                logger.warning("files are gone and were skipped: %s", error)
                continue
            raise failure from error


def _read_split(storage: Storage, split: Split, on_corrupt: OnCorrupt) -> Iterator[Piece]:
    segment = split.segment
    # The block at the stop is read only if some of its events are wanted.
    limit = None if split.last else split.stop
    reader = SegmentReader(
        storage, segment.data_key, position=split.start, limit=limit, on_corrupt=on_corrupt
    )
    if split.interval.from_ms > segment.partition.start_ms and not split.start:
        reader.seek_time(split.interval.from_ms)
    while blocks := reader.read_blocks():
        for block in blocks:
            if block.position > split.stop or (block.position == split.stop and not split.last):
                return
            piece = Piece(
                segment,
                reader.url,
                block,
                split.first if block.position == split.start else 0,
                split.last if block.position == split.stop else -1,
            )
            yield from select(piece, split.interval)
