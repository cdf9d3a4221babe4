"""Puts the small segments of finished partitions into packs, and removes them when nobody needs them.

A pack is put whole under a name of its own, and from then on stands for its segments: that is the
one step that counts. Before it nothing has changed, after it the old files are only copies. Those go
once the pack has been there for the grace time, and only after every checksum in it was read back and
held. So this may be killed anywhere, and run again.

A partition is finished some time after it has ended. Late events may still come to it: they make
further segments, which are packed at another time. A writer that was asleep all that time might take
the name of a segment that was packed and removed; it looks for that when it writes into a partition that
has ended, see ``PackedStorage.was_packed``.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from filestream.coordination.base import PropertyStore
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    UnsupportedVersionError,
)
from filestream.eventfile import looks_sealed
from filestream.partitions.catalog import Catalog, PartitionDirectory
from filestream.partitions.layout import (
    Pack,
    Partition,
    Segment,
    parse_pack_file,
    parse_segment_name,
)
from filestream.partitions.packs import (
    check_pack,
    check_segments,
    put_pack,
    read_index,
    rebuild_index,
)
from filestream.partitions.snapshot import StreamView
from filestream.units import format_size_exactly, parse_duration_ms, parse_size_bytes

__all__ = ["Chore", "Compaction", "CompactionSettings", "Compactor", "Packed", "compact"]

logger = logging.getLogger(__name__)

# Writers and readers of other machines may have clocks that differ by almost so much.
_AFTER_MS_MIN: Final = 60_000
# A listing that began before a pack was put may not end after its segments were removed.
_GRACE_MS_MIN: Final = 60_000
_PACK_SIZE_BYTES: Final = (1 << 20, 1 << 30)
# A segment of more than this part of a pack is large enough as it is.
_SMALL_SHARE: Final = 8
# So many are read at once.
_READERS: Final = 16
_CLAIM: Final = "compaction/0"
# One piece of work for one worker: so many sequences of one writer at the most.
_CHORE_SEGMENTS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """How to compact.

    Attributes:
        after_ms: a partition is finished so long after its end.
        grace_ms: segments stay so long after they were packed.
        pack_size_bytes: of a pack, about.
        dry_run: read everything, change nothing.
    """

    after_ms: int = 600_000
    grace_ms: int = 3_600_000
    pack_size_bytes: int = 64 << 20
    dry_run: bool = False

    @classmethod
    def parse(
        cls, after: str | float, grace: str | float, pack_size: str | int, *, dry_run: bool = False
    ) -> "CompactionSettings":
        """Settings from what people write, as ``("10m", "1h", "64MiB")``.

        Raises:
            InvalidRequestError: a bad value.
        """
        return cls(
            parse_duration_ms(after), parse_duration_ms(grace), parse_size_bytes(pack_size), dry_run
        )

    def __post_init__(self) -> None:
        if self.after_ms < _AFTER_MS_MIN:
            raise InvalidRequestError(
                "after must be at least 1m: clocks of writers differ, and the last events of a "
                f"partition are on their way. after_ms={self.after_ms}"
            )
        if self.grace_ms < _GRACE_MS_MIN:
            raise InvalidRequestError(
                "grace must be at least 1m: a listing that is under way would miss what is removed. "
                f"grace_ms={self.grace_ms}"
            )
        least, most = _PACK_SIZE_BYTES
        if not least <= self.pack_size_bytes <= most:
            raise InvalidRequestError(
                f"pack_size must lie in {format_size_exactly(least)}..{format_size_exactly(most)}. "
                f"pack_size={format_size_exactly(self.pack_size_bytes)}"
            )


@dataclass(frozen=True, slots=True)
class Chore:
    """What there is to do for some segments of one writer; small, and independent of all others.

    Attributes:
        first, last: sequences of these segments.
        left: a pack holds exactly these segments, and so many of them are still there as files of
            their own; empty when they are to be packed.
    """

    partition: Partition
    writer_id: str
    first: int
    last: int
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Packed:
    """One pack that was made, or would be.

    Attributes:
        key: below the stream.
        segments: how many it holds.
        size_bytes: of all of them.
    """

    key: str
    segments: int
    size_bytes: int


@dataclass(slots=True)
class Compaction:
    """What was done.

    Attributes:
        packs: that were made.
        removed: segments that were removed, as a pack holds them.
        waiting: segments that a pack holds, and that stay for their grace time.
        refused: event files and packs that are damaged, and were left as they are.
    """

    packs: list[Packed] = field(default_factory=list)
    removed: int = 0
    waiting: int = 0
    refused: list[str] = field(default_factory=list)

    def add(self, other: "Compaction") -> None:
        """Count in what another worker did."""
        self.packs += other.packs
        self.removed += other.removed
        self.waiting += other.waiting
        self.refused += other.refused


class Compactor:
    """Plans, and does what was planned; the two may happen in different processes.

    Args:
        view: of the stream.
    """

    def __init__(self, view: StreamView, settings: CompactionSettings) -> None:
        self._view = view
        self._storage = view.storage
        self._files = view.storage.inner
        self._clock = view.clock
        self._settings = settings
        self._small_bytes = settings.pack_size_bytes // _SMALL_SHARE

    def plan(self) -> list[Chore]:
        """What there is to do in the current generation, from listings alone."""
        finished_ms = self._clock.now_ms() - self._settings.after_ms
        generation = self._view.generations.current()
        return [
            chore
            for directory in Catalog(self._storage).partitions(generation.number)
            if directory.partition.end_ms <= finished_ms
            for chore in self._plan_partition(directory)
        ]

    def do(self, chore: Chore) -> Compaction:
        """Do one of them; nothing, when the partition was truncated or expired meanwhile.

        Raises:
            UnavailableError: the store failed.
            FencedError: the stream was truncated at this moment.
        """
        done = Compaction()
        try:
            self._do(chore, done)
        except CorruptDataError as error:
            # A pack: what it was made from stays, and so does all that reads it as it is.
            logger.warning("left a damaged pack alone: %s", error)
            done.refused.append(_names(chore))
        except NotFoundError as error:
            generation = self._view.generations.current()
            was_done = not chore.left and self._is_packed(chore)
            if generation.number != chore.partition.generation or was_done:
                return done
            failure = self._view.explain_missing(generation, error, chore.partition)
            if isinstance(failure, CorruptDataError):
                logger.warning("a file that should be there is not: %s", failure)
                done.refused.append(_names(chore))
            elif failure is not None:
                raise failure from error
        return done

    def _do(self, chore: Chore, done: Compaction) -> None:
        if chore.left:
            pack = Pack(chore.partition.key, chore.writer_id, chore.first, chore.last)
            self._tidy(chore.partition, pack, chore.left, done)
            return
        for pack, parts in self._packs_of(chore, done):
            done.packs.append(Packed(pack.data_key, len(parts), sum(map(len, parts))))
            if not self._settings.dry_run:
                put_pack(self._files, pack, parts, self._clock.now_ms())
                self._tidy(chore.partition, pack, range(pack.first, pack.last + 1), done)

    def _plan_partition(self, directory: PartitionDirectory) -> Iterator[Chore]:
        partition = directory.partition
        if directory.keys != (partition.key,):
            return  # Padded by somebody else: not ours to rearrange.
        packs, loose = _look(partition, (e.name for e in self._files.list(partition.key)))
        for pack in packs:
            there = loose.get(pack.writer_id, set())
            if left := there.intersection(range(pack.first, pack.last + 1)):
                there -= left
                yield Chore(partition, pack.writer_id, pack.first, pack.last, tuple(sorted(left)))
        for writer_id, sequences in sorted(loose.items()):
            for first, last in _runs(sorted(sequences)):
                if first < last:
                    yield Chore(partition, writer_id, first, last)

    def _is_packed(self, chore: Chore) -> bool:
        """Whether somebody did it, or a part of it: as a worker whose work is done again."""
        self._storage.list(chore.partition.key)
        packs = self._storage.packs_in(chore.partition.key)
        return any(
            pack.writer_id == chore.writer_id
            and pack.first <= chore.last
            and pack.last >= chore.first
            for pack in packs
        )

    def _packs_of(self, chore: Chore, done: Compaction) -> Iterator[tuple[Pack, list[bytes]]]:
        """Packs that segments fill, one after the other; one alone fills none."""
        parts: list[bytes] = []
        start, size = chore.first, 0
        for sequence, data in self._read_all(chore):
            fits = data is not None and self._is_sound(chore, sequence, data, done)
            grown = size + len(data or b"")
            if parts and (not fits or grown > self._settings.pack_size_bytes):
                yield from _pack(chore, start, parts)
                parts, size = [], 0
            if fits and data is not None:
                start = start if parts else sequence
                parts.append(data)
                size += len(data)
        yield from _pack(chore, start, parts)

    def _read_all(self, chore: Chore) -> Iterator[tuple[int, bytes | None]]:
        """Segments in order, several requests at a time; None for one that is not small."""

        def read(sequence: int) -> bytes | None:
            key = Segment(chore.partition, chore.writer_id, sequence).data_key
            size = self._files.size(key)
            return self._files.read(key, 0, size) if size < self._small_bytes else None

        with ThreadPoolExecutor(_READERS, thread_name_prefix="filestream-compact") as readers:
            for at in range(chore.first, chore.last + 1, _READERS):
                some = range(at, min(at + _READERS, chore.last + 1))
                yield from zip(some, readers.map(read, some), strict=True)

    def _is_sound(self, chore: Chore, sequence: int, data: bytes, done: Compaction) -> bool:
        """Whether these are all bytes of a closed segment, and of this one."""
        if data[:2] in (b"E1", b"E2"):
            return False
        try:
            check_segments(data, chore.partition, chore.writer_id, range(sequence, sequence + 1))
        except UnsupportedVersionError:
            return False
        except CorruptDataError as error:
            # Where files grow, one without an end is open, or a dead writer's.
            if not self._files.can_append or looks_sealed(data):
                key = Segment(chore.partition, chore.writer_id, sequence).data_key
                logger.warning("left a damaged segment alone: %s %s", key, error)
                done.refused.append(key)
            return False
        return True

    def _tidy(
        self, partition: Partition, pack: Pack, left: Sequence[int], done: Compaction
    ) -> None:
        """Remove segments that a pack has held for long enough."""
        if self._clock.now_ms() - self._packed_at_ms(pack) < self._settings.grace_ms:
            done.waiting += len(left)
            return
        check_pack(self._files, pack, partition)
        if self._settings.dry_run:
            done.removed += len(left)
            return
        for sequence in left:
            segment = Segment(partition, pack.writer_id, sequence)
            if self._files.can_append:
                self._files.delete(segment.index_key)
            self._files.delete(segment.data_key)
            done.removed += 1

    def _packed_at_ms(self, pack: Pack) -> int:
        """When a pack was made; now, if there is no index to say: then one is made."""
        index = read_index(self._files, pack)
        if not index.packed_at_ms and not self._settings.dry_run:
            index = rebuild_index(self._files, pack, self._clock.now_ms())
        return index.packed_at_ms or self._clock.now_ms()


def _look(partition: Partition, names: Iterable[str]) -> tuple[list[Pack], dict[str, set[int]]]:
    """Packs, and sequences of each writer that are files of their own under the names we give."""
    packs: set[Pack] = set()
    loose: dict[str, set[int]] = {}
    for name in names:
        if found := parse_pack_file(partition.key, name):
            # An index alone is no pack: if all segments are there, they are packed again.
            packs.update({found[0]} if found[1] == "seg" else ())
        elif name.endswith(".dat") and (parsed := parse_segment_name(name)):
            segment = Segment(partition, parsed[0], int(parsed[1]))
            if segment.data_key == f"{partition.key}/{name}":
                loose.setdefault(segment.writer_id, set()).add(segment.sequence)
    return sorted(packs), loose


def _names(chore: Chore) -> str:
    """What to look at when something is wrong with it."""
    pack = Pack(chore.partition.key, chore.writer_id, chore.first, chore.last)
    return pack.data_key


def _pack(chore: Chore, start: int, parts: list[bytes]) -> Iterator[tuple[Pack, list[bytes]]]:
    if len(parts) > 1:
        last = start + len(parts) - 1
        yield Pack(chore.partition.key, chore.writer_id, start, last), parts


def _runs(sequences: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of those that follow each other; ascending, and none too long."""
    if not sequences:
        return
    start = before = sequences[0]
    for sequence in sequences[1:]:
        if sequence != before + 1 or sequence - start >= _CHORE_SEGMENTS_MAX:
            yield start, before
            start = sequence
        before = sequence
    yield start, before


def compact(
    view: StreamView,
    store: PropertyStore,
    settings: CompactionSettings,
    *,
    work: Callable[[Sequence[Chore]], Iterable[Compaction]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compaction:
    """Compact a stream; in one process at a time.

    Args:
        work: does chores, here or elsewhere; what it gives back may come in any order. None does one
            after the other.
        progress: told how many chores of how many are done.

    Raises:
        ConflictError: another process compacts it.
        UnavailableError, FencedError: as ``Compactor.do``; what was done stays done.
    """
    try:
        claim = store.claim(_CLAIM)
    except ConflictError as error:
        raise ConflictError(
            f"another process compacts this stream. url={view.storage.url}"
        ) from error
    with claim:
        compactor = Compactor(view, settings)
        chores = compactor.plan()
        total = Compaction()
        for number, done in enumerate(work(chores) if work else map(compactor.do, chores), 1):
            total.add(done)
            if progress is not None:
                progress(number, len(chores))
        return total
