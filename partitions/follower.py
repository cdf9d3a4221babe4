"""Follows a stream as it grows: new blocks, new segments, new writers, new partitions, truncation.

One round reads everything that is there now, partition by partition in the order of time; between
rounds the caller waits. Nothing is waited for that may never come: a silent writer holds nobody
up, and what a late one brings is delivered when it comes.

Where the storage can tell of changes (inotify), only what changed is looked at, and all of it once
a second to be safe. Elsewhere each open chain is polled at intervals that double while it is
silent, and listing may take at most a twentieth of the time. Where segments are put whole, the next
one of each chain is asked for by its name, which costs less than a listing and comes sooner.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from filestream.errors import FencedError, NotFoundError, UnavailableError
from filestream.partitions.catalog import Catalog, PartitionDirectory
from filestream.partitions.chain import Chain, ChainId, Place
from filestream.partitions.filters import Interval, Piece, select
from filestream.partitions.layout import Partition
from filestream.partitions.merge import Source
from filestream.partitions.positions import At, End, Position
from filestream.partitions.snapshot import (
    Bounds,
    FromPlaces,
    Snapshot,
    StreamView,
    segments_of,
    sources_behind,
    sources_between,
    take_snapshot,
)
from filestream.segment_reader import OnCorrupt, check_on_corrupt
from filestream.storage.base import Waker

__all__ = ["Follower"]

logger = logging.getLogger(__name__)

_POLL_S_MIN: Final = 0.001
_POLL_S_MAX: Final = 1.0
_LISTING_SHARE: Final = 0.05
# Where each look is a request that costs money.
_FAR_POLL_S_MIN: Final = 0.02
_FAR_LISTING_S: Final = (0.5, 5.0)


class _Followed:
    """A chain, and when to look at it again if nobody tells us."""

    __slots__ = ("chain", "interval_s", "look_at_s")

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.interval_s = _POLL_S_MIN
        self.look_at_s = 0.0


class Follower:
    """Not thread-safe. Close it to give the watches back.

    Args:
        view: of the stream.
        start: where to begin; resolved here, once. Or the place in each chain, where chains that
            are not named begin at their beginning.
    """

    def __init__(
        self,
        view: StreamView,
        start: Position | Mapping[ChainId, Place],
        *,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        self._view = view
        self._clock = view.clock
        self._catalog = Catalog(view.storage)
        self._generation_key = f"{view.store_key}/generation"
        self._on_corrupt: OnCorrupt = check_on_corrupt(on_corrupt)
        self._interval = (
            Interval(from_ms=start.timestamp_ms) if isinstance(start, At) else Interval()
        )
        self._chains: dict[ChainId, _Followed] = {}
        self._directories: dict[str, PartitionDirectory] = {}
        self._changed: set[str] = set()
        self._list_at_s = 0.0
        self._checked_at_s = 0.0
        self._idle_s = _POLL_S_MIN
        self._is_alone = False
        self._is_far = not view.storage.can_append
        self._listing_s = _FAR_LISTING_S[0]
        # The last partition in which each writer has a segment.
        self._newest: dict[str, Partition] = {}
        self._waker: Waker | None = view.storage.waker()
        # Watches first, then the listing: what happens in between is seen by both.
        self._generation = view.generations.current()
        self._watch_top()
        snapshot = take_snapshot(view, on_corrupt=on_corrupt)
        self._generation = snapshot.generation
        # What was there before is read as any bounded read, in the merged order of all files; then
        # each chain goes on where the snapshot ended, in the order of its own files.
        self._backlog: Iterator[list[Source]] = iter(())
        if not isinstance(start, End):
            self._backlog = (
                [source._replace(pieces=self._until_truncated(source.pieces)) for source in sources]
                for sources in self._sources(snapshot, start)
            )
        for chain_id, segments in snapshot.chains.items():
            place = self._end_of(snapshot, chain_id)
            chain = Chain(view.storage, segments, start=place, on_corrupt=on_corrupt)
            self._chains[chain_id] = _Followed(chain)
        self._discover()

    @property
    def generation(self) -> int:
        """The generation that is followed now."""
        return self._generation.number

    def round(self) -> Iterator[list[Source]]:
        """For each partition with something to look at, what is new in each of its chains."""
        yield from self._backlog
        now_s = self._clock.monotonic_s()
        self._look_at_generation(now_s)
        if now_s >= self._list_at_s:
            try:
                self._discover()
            except FencedError:
                self._begin_generation()
        due: dict[Partition, list[ChainId]] = {}
        for chain_id, followed in self._chains.items():
            if self._is_followed(chain_id, followed) and followed.look_at_s <= now_s:
                due.setdefault(chain_id.partition, []).append(chain_id)
        for partition in sorted(due):
            yield [
                Source(partition.start_ms, (chain_id.writer_id, 0), self._news(chain_id))
                for chain_id in sorted(due[partition])
            ]

    def wait_s(self) -> float:
        """How long nothing needs to be looked at, unless ``fileno`` becomes readable."""
        now_s = self._clock.monotonic_s()
        due = [f.look_at_s for c, f in self._chains.items() if self._is_followed(c, f)]
        until_s = min([*due, self._list_at_s, now_s + _POLL_S_MAX]) - now_s
        return max(until_s, _POLL_S_MIN)

    def _is_followed(self, chain_id: ChainId, followed: _Followed) -> bool:
        """Whether there may be more of a chain without its being listed."""
        if followed.chain.is_open:
            return True
        # One that a writer has left for a later partition gets no more but late events: listed.
        return self._is_far and chain_id.partition == self._newest.get(chain_id.writer_id)

    def wait(self, timeout_s: float) -> None:
        """Block until something changed or the time ran out."""
        if self._waker is None:
            self._clock.sleep(timeout_s)
        else:
            self._take_changes(timeout_s)

    def take_changes(self) -> None:
        """Learn what changed without blocking; for event loops that watch ``fileno``."""
        if self._waker is not None:
            self._take_changes(0)

    def fileno(self) -> int | None:
        """A descriptor that becomes readable on changes, if there is one."""
        return None if self._waker is None else self._waker.fileno()

    def close(self) -> None:
        """Give the watches back; may be called twice."""
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()

    def look_everywhere(self) -> None:
        """Make the next round look at everything, whatever was announced."""
        self.take_changes()
        self._list_at_s = self._checked_at_s = 0.0
        for followed in self._chains.values():
            followed.look_at_s = 0.0

    def _sources(
        self, snapshot: Snapshot, start: Position | Mapping[ChainId, Place]
    ) -> Iterator[list[Source]]:
        """For each partition, what lies behind the start; the start itself is checked at once."""
        partitions = snapshot.by_partition().values()
        if isinstance(start, Mapping):
            behind = FromPlaces(self._view, start)
            return (sources_behind(snapshot, behind, p, self._on_corrupt) for p in partitions)
        bounds = Bounds(snapshot, start, End(), self._on_corrupt)
        return (sources_between(snapshot, bounds, p, self._on_corrupt) for p in partitions)

    def _end_of(self, snapshot: Snapshot, chain_id: ChainId) -> Place:
        try:
            return snapshot.end_of(chain_id, self._on_corrupt)
        except NotFoundError:
            return Place(snapshot.chains[chain_id][-1].sequence)

    def _until_truncated(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        try:
            yield from pieces
        except FencedError:
            self._begin_generation()

    def _news(self, chain_id: ChainId) -> Iterator[Piece]:
        followed = self._chains.get(chain_id)
        if followed is None:
            return  # The stream was truncated in the middle of a round.
        interval = self._interval.both(self._view.alive)
        found = False
        try:
            # One read a round: a writer that is faster than the reader must not hide the others.
            if self._is_far and not followed.chain.is_open:
                self._ask_for_next(followed.chain)
            pieces = followed.chain.read()
            found = bool(pieces)
            for piece in pieces:
                yield from select(piece, interval)
        except NotFoundError as error:
            self._lose(chain_id, error)
            return
        now_s = self._clock.monotonic_s()
        if found:
            followed.interval_s = _FAR_POLL_S_MIN if self._is_far else _POLL_S_MIN
        elif self._waker is not None:
            followed.interval_s = _POLL_S_MAX
        else:
            followed.interval_s = min(followed.interval_s * 2, _POLL_S_MAX)
        followed.look_at_s = now_s + followed.interval_s

    def _ask_for_next(self, chain: Chain) -> None:
        following = chain.following
        if following is not None and self._view.storage.exists(following.data_key):
            chain.learn(following)

    def _lose(self, chain_id: ChainId, error: NotFoundError) -> None:
        """A file is gone: truncated, expired, or missing."""
        if self._view.generations.current().version != self._generation.version:
            self._begin_generation()
            return
        failure = self._view.explain_missing(self._generation, error, chain_id.partition)
        if failure is not None:
            raise failure from error
        del self._chains[chain_id]

    def _look_at_generation(self, now_s: float) -> None:
        if self._generation_key in self._changed or now_s - self._checked_at_s >= _POLL_S_MAX:
            self._changed.discard(self._generation_key)
            self._checked_at_s = now_s
            try:
                if not self._view.generations.is_current(self._generation):
                    self._begin_generation()
            except UnavailableError as error:
                # Nobody can truncate now either, for all that a reader need know.
                if not self._is_alone:
                    logger.warning("reading on without coordination: %s", error)
                self._is_alone = True
            else:
                self._is_alone = False

    def _begin_generation(self) -> None:
        """The stream was truncated: what was not read is gone, the new life begins at its start."""
        before = self._generation.number
        self._generation = self._view.generations.current()
        logger.info("generation changed: %s %d", self._view.storage.url, self._generation.number)
        if self._generation.number != before:
            self._backlog = iter(())
            self._chains = {}
            self._directories = {}
            self._newest = {}
        self._changed = set()
        self._watch_top()
        self._discover()

    def _watch_top(self) -> None:
        if self._waker is not None:
            self._waker.watch("")
            self._waker.watch(self._generation_key)

    def _discover(self) -> None:
        """List what may have new names in it."""
        began_s = self._clock.monotonic_s()
        known = len(self._directories), len(self._chains)
        for key in self._catalog.generation_keys(self._generation.number):
            if self._waker is not None and key:
                self._waker.watch(key)
        for directory in self._catalog.partitions(self._generation.number):
            for key in directory.keys:
                if key not in self._directories and self._waker is not None:
                    self._waker.watch(key)
                self._directories[key] = directory
            self._list(directory)
        now_s = self._clock.monotonic_s()
        pause_s = _POLL_S_MAX if self._waker is not None else _POLL_S_MIN * 10
        if self._is_far:
            is_new = known != (len(self._directories), len(self._chains))
            least_s, most_s = _FAR_LISTING_S
            self._listing_s = least_s if is_new else min(self._listing_s * 1.5, most_s)
            pause_s = self._listing_s
        self._list_at_s = now_s + max(pause_s, (now_s - began_s) / _LISTING_SHARE)

    def _list(self, directory: PartitionDirectory) -> None:
        if self._interval.is_disjoint(directory.partition.start_ms, directory.partition.end_ms):
            return
        for segment in segments_of(self._view, self._generation, directory, self._on_corrupt):
            chain_id = ChainId(directory.partition, segment.writer_id)
            followed = self._chains.get(chain_id)
            if followed is None:
                chain = Chain(self._view.storage, [], on_corrupt=self._on_corrupt)
                followed = self._chains[chain_id] = _Followed(chain)
            newest = self._newest.get(segment.writer_id)
            if newest is None or newest < directory.partition:
                self._newest[segment.writer_id] = directory.partition
            if not followed.chain.knows(segment):
                followed.chain.learn(segment)
                followed.look_at_s = 0.0

    def _take_changes(self, timeout_s: float) -> None:
        assert self._waker is not None
        tops = {"", *self._catalog_keys()}
        for key, has_names in self._waker.wait(timeout_s).items():
            directory = self._directories.get(key)
            if directory is None:
                self._changed.add(key)
                if key in tops and has_names:
                    self._list_at_s = 0.0
                continue
            if has_names:
                self._list_at_s = 0.0
            for chain_id, followed in self._chains.items():
                if chain_id.partition == directory.partition:
                    followed.look_at_s = 0.0

    def _catalog_keys(self) -> set[str]:
        return {key.split("/")[0] for key in self._directories} | {f"{self._generation.number:05d}"}
