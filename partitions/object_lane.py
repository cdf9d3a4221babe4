"""The row of segments of one writer where files do not grow: each commit is one closed segment.

``begin`` lays events into segments of the next sequences, one caller at a time, and returns a flight;
``Flight.finish`` puts them and may run on any thread, so that several flights are in the air while
each waits for the store. They are acknowledged in the order in which they began: a flight whose
predecessor failed has failed too, although its segments may be in the stream.

What is put once cannot be put twice: whoever else writes under this writer's id, awake again after
it was taken for dead, meets our segment under the name that it wants, and is fenced by that.

A flight that failed may leave a gap behind it in the sequences. Each segment says in its head up to
where the chain was settled when it was written; readers stop before a gap that was not settled, as
nothing behind it was acknowledged, and the writer fills it with an empty segment before it goes on.
"""

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from filestream.errors import ConflictError, FilestreamError, UnavailableError
from filestream.partitions.appended import Placed, Run
from filestream.partitions.arrange import Batch, Portion, arrange, blocks_of, encode_run
from filestream.partitions.gaps import following_sequence
from filestream.partitions.generations import Generation
from filestream.partitions.lane import Lane, LaneSite
from filestream.partitions.layout import Partition, Segment
from filestream.partitions.segment_heads import SegmentHeads
from filestream.segment_encoder import SegmentEncoder

__all__ = ["ObjectLane"]

logger = logging.getLogger(__name__)

_REWRITES_MAX: Final = 100
# Late events may go back to old partitions; of more than these the next sequence is looked up anew.
_PARTITIONS_MAX: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class _Commit:
    """One segment to be put."""

    segment: Segment
    data: bytes


class ObjectFlight:
    """Events on their way to the store; made by ``ObjectLane.begin``."""

    def __init__(
        self,
        lane: "ObjectLane",
        generation: Generation,
        batches: Sequence[Batch],
        before: "ObjectFlight | None",
    ) -> None:
        self._lane = lane
        self._batches = batches
        self._before = before
        self._is_over = threading.Event()
        # Somebody will call ``finish``; an interrupt may keep it from that.
        self.is_sent = False
        self.generation = generation
        self.commits: list[_Commit] = []
        self.placed = Placed((), None)
        self.has_failed = True

    def finish(self) -> Placed:
        """Put, and return when everything is acknowledged; the flight is over then, however it ends.

        Raises:
            UnavailableError: the events may be in the stream.
            ConflictError: another process writes under this id.
            NotFoundError: the stream was deleted.
        """
        try:
            placed = self._finish()
        except BaseException:
            self._lane.stall()
            raise
        else:
            self.has_failed = False
            return placed
        finally:
            self.end()

    def end(self) -> None:
        """Over, one way or another: those behind need not wait any more."""
        # What came before is settled: the chain of flights must not be kept alive.
        self._before = None
        self._is_over.set()

    def _finish(self) -> Placed:
        failure: FilestreamError | None = None
        try:
            self._lane.put(self.commits)
        except FilestreamError as error:
            failure = error
            self._lane.stall()
        before = self._before
        if before is not None:
            before.wait()
            if before.has_failed:
                raise UnavailableError(
                    "an earlier commit of this writer failed: the events may be in the stream."
                ) from failure
        if failure is not None:
            raise failure
        # Asked last: while others were waited for, the stream may have been truncated.
        if self._lane.is_current(self.generation):
            return self.placed
        return self._lane.rewrite(self._batches)

    def wait(self) -> None:
        """Return when it is over."""
        self._is_over.wait()

    def land(self) -> None:
        """See ``Flight``."""
        self._lane.land(self)


class ObjectLane(Lane):
    """Args:
    site: where and as whom.
    """

    can_fly = True

    def __init__(self, site: LaneSite) -> None:
        self._storage = site.storage
        self._generations = site.generations
        self._claim = site.claim
        self._properties = site.properties
        self.batch_size_max = site.properties.commit_size_bytes_max
        self._heads = SegmentHeads(site.stream_name, site.properties, site.chance)
        self._clock = site.clock
        self._begun_s = float("-inf")
        # Guards all below, and tells when a flight is over.
        self._air = threading.Condition()
        self._flying: deque[ObjectFlight] = deque()
        # Something went wrong: those in the air end, in order, and then all is looked up anew.
        self._is_stalled = True
        self._has_lost_id = False
        self._generation: Generation | None = None
        self._next: dict[Partition, int] = {}
        # Keys of PUTs that were given up, and may arrive late.
        self._doubtful: set[str] = set()

    def pause_s(self) -> float:
        """Seconds until the next commit should begin, so that commits do not cost too much."""
        linger_s = self._properties.linger_ms / 1000
        return self._begun_s + linger_s - self._clock.monotonic_s()

    def begin(self, batches: Sequence[Batch]) -> ObjectFlight:
        """Lay events into segments; one caller at a time. Waits while too many are in the air.

        Raises:
            UnavailableError: the store or the coordination failed; nothing was written.
            ConflictError: another process writes under this id; nothing was written.
            NotFoundError: the stream was deleted.
        """
        with self._air:
            self._drop_unsent()
            self._air.wait_for(self._may_begin)
            if not self._is_stalled and not self._is_current_still():
                # Truncated or deleted: nothing is to be put there any more.
                self._is_stalled = True
                self._air.wait_for(self._may_begin)
            if self._is_stalled:
                self._look_anew()
            generation = self._generation
            assert generation is not None
            flight = ObjectFlight(
                self, generation, batches, self._flying[-1] if self._flying else None
            )
            flight.placed, flight.commits = self._lay(batches, generation)
            self._flying.append(flight)
        self._begun_s = self._clock.monotonic_s()
        return flight

    def write(self, batches: Sequence[Batch]) -> Placed:
        """See ``Lane``."""
        flight = self.begin(batches)
        flight.is_sent = True
        try:
            return flight.finish()
        finally:
            flight.land()

    def flush(self) -> None:
        """Return when nothing is in the air."""
        with self._air:
            self._air.wait_for(lambda: not self._flying)

    def stall(self) -> None:
        """Begin no more before all that is in the air is over."""
        with self._air:
            self._is_stalled = True

    def land(self, flight: ObjectFlight) -> None:
        """A flight is over: somebody may wait for that."""
        with self._air:
            if flight in self._flying:
                self._flying.remove(flight)
            self._air.notify_all()

    def forget_parent(self) -> None:
        """In a forked child: what is in the air is the parent's."""
        self._air = threading.Condition()
        self._flying.clear()

    def put(self, commits: Sequence[_Commit]) -> None:
        """Put segments, in order.

        Raises:
            UnavailableError: some may be there.
            ConflictError: a segment of another process stands where one should go.
        """
        for number, commit in enumerate(commits):
            key = commit.segment.data_key
            try:
                self._storage.put_if_absent(key, commit.data)
            except UnavailableError:
                self._doubtful.add(key)
                raise
            except ConflictError as error:
                # Or an earlier try of ours arrived after all.
                is_doubtful = number > 0 or key in self._doubtful
                raise self._overtaken(commit.segment, is_doubtful=is_doubtful) from error
            if self._storage.was_packed(commit.segment, self._clock.now_ms()):
                # We slept while our heir's segment of this name was packed and removed. The pack
                # stands for it, also for those who have not heard of it yet.
                self._storage.delete(key)
                raise self._overtaken(commit.segment, is_doubtful=number > 0)

    def _overtaken(self, segment: Segment, *, is_doubtful: bool) -> FilestreamError:
        if is_doubtful:
            # Some of it is there.
            return UnavailableError(
                f"a commit was overtaken: the events may be in the stream. "
                f"url={self._storage.url_of(segment.data_key)}"
            )
        self._has_lost_id = True
        return ConflictError(
            f"another process writes as {segment.writer_id!r}: give each its own "
            f"writer_id. url={self._storage.url_of(segment.data_key)}"
        )

    def is_current(self, generation: Generation) -> bool:
        """Whether what was put may be acknowledged; False when the stream was truncated."""
        return self._generations.is_current(generation)

    def rewrite(self, batches: Sequence[Batch]) -> Placed:
        """Write again in the generation that is now; called in the order of flights, one at a time.

        Raises:
            UnavailableError: as ``put``.
        """
        self.stall()
        for _ in range(_REWRITES_MAX):
            generation = self._generations.current()
            logger.info("generation changed, writing again: %s", self._storage.url)
            with self._air:
                placed, commits = self._lay(batches, generation)
            self.put(commits)
            if self.is_current(generation):
                return placed
        raise UnavailableError(
            f"the stream is truncated faster than it can be written. url={self._storage.url}"
        )

    def _drop_unsent(self) -> None:
        """What an interrupted leader laid and nobody will put."""
        for flight in [flight for flight in self._flying if not flight.is_sent]:
            self._flying.remove(flight)
            flight.end()
            self._is_stalled = True

    def _may_begin(self) -> bool:
        limit = 1 if self._is_stalled else self._properties.commits_in_flight_max
        return len(self._flying) < limit

    def _is_current_still(self) -> bool:
        return self._generation is not None and self.is_current(self._generation)

    def _look_anew(self) -> None:
        """Nothing is in the air: forget what was believed of the stream, and of our id."""
        if self._has_lost_id or not self._claim.is_held:
            self._claim.renew()
        self._generation = self._generations.current()
        self._next = {}
        self._is_stalled = self._has_lost_id = False

    def _lay(
        self, batches: Sequence[Batch], generation: Generation
    ) -> tuple[Placed, list[_Commit]]:
        arranged = arrange(
            batches,
            generation.number,
            self._clock.now_ms(),
            self._properties.partition_duration_ms,
        )
        runs: list[Run] = []
        commits: list[_Commit] = []
        # Taken when all are laid: after a failure half way nothing has happened.
        following: dict[Partition, int] = {}
        for portion in arranged.portions:
            sequence = self._next_of(portion.partition)
            settled = self._settled(portion.partition, sequence)
            for part in self._parts(portion):
                segment = Segment(portion.partition, self._claim.writer_id, sequence)
                encoder = SegmentEncoder(self._heads.head(segment, settled), self._heads.options)
                for start, end, _ in blocks_of(part.events, self._properties.block_size_bytes_max):
                    runs += encode_run(encoder, segment, part.part(start, end), self._properties)
                closed_at_ms = max(self._clock.now_ms(), encoder.last_timestamp_ms)
                commits.append(_Commit(segment, encoder.whole(closed_at_ms)))
                sequence += 1
            following[portion.partition] = sequence
        self._next |= following
        # What is in the air is not in a listing yet, so it must not be looked up anew.
        if not self._flying and len(self._next) > _PARTITIONS_MAX:
            self._next = dict(following)
        return Placed(runs, arranged.order), commits

    def _parts(self, portion: Portion) -> list[Portion]:
        """Pieces of about the size that one commit may have."""
        return [
            portion.part(start, end)
            for start, end, _ in blocks_of(portion.events, self._properties.commit_size_bytes_max)
        ]

    def _settled(self, partition: Partition, following: int) -> int:
        """Below this, all of the chain is acknowledged or given up."""
        in_air = (
            commit.segment.sequence
            for flight in self._flying
            for commit in flight.commits
            if commit.segment.partition == partition
        )
        return min(in_air, default=following)

    def _next_of(self, partition: Partition) -> int:
        """The sequence to go on with; fills the gaps that were left before it."""
        known = self._next.get(partition)
        if known is not None:
            return known
        return following_sequence(
            self._storage,
            self._heads,
            partition,
            self._claim.writer_id,
            now_ms=self._clock.now_ms(),
        )
