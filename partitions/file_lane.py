"""The row of segments that one writer fills where files grow. Knows no threads.

Events come in with or without a timestamp; they are stamped, sorted, laid into the segment of
their partition, committed, and then, after the sync and before anybody hears of it, the generation is
looked at. If the stream was truncated meanwhile, the events lie in a past where nobody reads:
they are written again in the new generation before they are acknowledged.

Only the leader of the writer's drain calls this room, so nothing in it is locked; ``is_look_due``
and ``next_look_s`` alone may be asked by any thread, and answer as well as they can.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from typing import Final

from filestream.errors import ConflictError, FilestreamError, UnavailableError
from filestream.partitions.appended import Placed, Run
from filestream.partitions.arrange import Batch, Portion, arrange, blocks_of, encode_run
from filestream.partitions.catalog import Catalog
from filestream.partitions.generations import Generation
from filestream.partitions.lane import Lane, LaneSite
from filestream.partitions.layout import Partition, Segment
from filestream.partitions.rotation import SegmentAge, next_look_s, roll_reason
from filestream.partitions.segment_heads import SegmentHeads
from filestream.segment_writer import SegmentWriter

__all__ = ["COMMIT_SIZE_BYTES", "FileLane"]

logger = logging.getLogger(__name__)

# Larger drains are committed in pieces: beyond this a sync only takes longer.
COMMIT_SIZE_BYTES: Final = 4 << 20
_REWRITES_MAX: Final = 100
_UNSEEN_AGE_MS_MAX: Final = 5000
_UNSEEN_IDLE_MS_MAX: Final = 1000
# A timestamp that is older than the newest in its segment by no more than this is raised to it:
# threads that stamp their own events race by that much. An older one rolls the segment.
_LATENESS_MS_MAX: Final = 1000


class _GenerationChangedError(Exception):
    """Found out before a segment was created; never leaves this room."""


class FileLane(Lane):
    """Args:
    site: where and as whom.
    """

    batch_size_max = COMMIT_SIZE_BYTES

    def __init__(self, site: LaneSite) -> None:
        storage, properties = site.storage, site.properties
        self._storage = storage
        self._generations = site.generations
        self._catalog = Catalog(storage)
        self._claim = site.claim
        if not storage.reads_open_files:
            # Readers see a segment once it is closed, so that is when they hear of its events.
            properties = dataclasses.replace(
                properties,
                segment_age_ms_max=min(properties.segment_age_ms_max, _UNSEEN_AGE_MS_MAX),
                segment_idle_ms_max=min(properties.segment_idle_ms_max, _UNSEEN_IDLE_MS_MAX),
            )
        self._properties = properties
        self._heads = SegmentHeads(site.stream_name, properties, site.chance)
        self._clock = site.clock
        self._generation: Generation | None = None
        self._segment: Segment | None = None
        self._file: SegmentWriter | None = None
        # The claim was lost, and it is not known yet what happened meanwhile.
        self._is_in_doubt = False
        # The last that we ended ourselves: nobody else can add to it.
        self._sealed_key = ""
        self._age = SegmentAge(0.0, 0.0, 0)

    @property
    def is_open(self) -> bool:
        """Whether a segment is open."""
        return self._file is not None

    def write(self, batches: Sequence[Batch]) -> Placed:
        """Write and sync the events of several calls; they are acknowledged when it returns.

        Raises:
            UnavailableError: the store failed: the events may be in the stream.
            NotFoundError: the stream was deleted.
        """
        for _ in range(_REWRITES_MAX):
            if self._generation is None:
                self._generation = self._generations.current()
            with contextlib.suppress(_GenerationChangedError):
                placed = self._place(batches, self._generation)
                if self._is_confirmed(self._generation):
                    return placed
            logger.info("generation changed, writing again: %s", self._storage.url)
            self.seal("generation")
            self._generation = None
        raise UnavailableError(
            f"the stream is truncated faster than it can be written. url={self._storage.url}"
        )

    def _is_confirmed(self, generation: Generation) -> bool:
        """Whether what was just synced may be acknowledged; False when the stream was truncated.

        Raises:
            UnavailableError: nobody can say.
        """
        try:
            is_current = self._generations.is_current(generation)
            if is_current:
                if self._is_in_doubt or not self._claim.is_held:
                    self._hold_on()
                elif self._claim.can_be_lost and not self._storage.fences:
                    self._check_last()
        except UnavailableError:
            # The next batch asks first, so that no more is written while nobody answers.
            self._generation = None
            raise
        return is_current

    def _check_last(self) -> None:
        """No file of our name behind ours: another process, stopped while it held our id, may have
        made one when it woke, and readers go on to it.
        """
        segment = self._segment
        assert segment is not None
        following = dataclasses.replace(segment, sequence=segment.sequence + 1)
        if self._storage.exists(following.data_key) or self._was_packed(following):
            self.abandon()
            raise UnavailableError(
                "another process made a file of this writer's: the events may be in the stream. "
                f"url={self._storage.url_of(following.data_key)}"
            )

    def _hold_on(self) -> None:
        """The session that held the writer id was lost: did another process write under it since?

        If one did, readers may have left our segment for its; then what we synced last may have
        been passed over, and must not be acknowledged.
        """
        segment = self._segment
        assert segment is not None
        # Until every question is answered: a failure half way must not pass for a yes.
        self._is_in_doubt = True
        try:
            is_same = self._renew()
        except ConflictError as error:
            self.abandon()
            raise UnavailableError(
                f"the writer id was lost with the session, and taken by another process; the events "
                f"may be in the stream. {error}"
            ) from error
        followed = self._next_sequence(segment.partition, segment.writer_id)
        if not is_same or followed != segment.sequence + 1:
            self.abandon()
            raise UnavailableError(
                "another process wrote under this writer id after the session was lost: the events "
                f"may be in the stream. writer_id={segment.writer_id!r} url={self._storage.url}"
            )
        self._is_in_doubt = False
        logger.info("writer id held again after a lost session: %s", segment.key)

    def flush(self) -> None:
        """Hand on what acknowledgement level ``memory`` holds back."""
        if self._file is not None:
            try:
                self._file.flush()
            except BaseException:
                self.abandon()
                raise

    def seal(self, reason: str) -> None:
        """End the open segment, if there is one; the next event begins another."""
        # Level "memory": what cannot be written must be reported, so before anything is let go.
        self.flush()
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.seal(max(self._clock.now_ms(), file.last_timestamp_ms))
        except FilestreamError as error:
            # Nothing acknowledged is lost; readers leave the file when they see the next one.
            logger.warning("segment was not sealed: %s %s", file.key, error)
        else:
            self._sealed_key = f"{file.key}.dat"
            logger.debug("segment sealed: %s reason=%s", file.key, reason)

    def look(self) -> None:
        """See to what is due without traffic: truncation, age, idle time, end of partition."""
        if self._file is None:
            return
        # While nobody answers, a segment is closed in time all the same: readers may wait for that.
        with contextlib.suppress(UnavailableError):
            if self._generation and not self._generations.is_current(self._generation):
                self.seal("generation")
                self._generation = None
                return
        self.flush()
        if reason := self._roll_reason():
            self.seal(reason)

    def is_look_due(self) -> bool:
        """Whether ``look`` would do something."""
        generation = self._generation
        if self._file is None:
            return False
        if self._properties.acknowledgement == "memory" or self._roll_reason() is not None:
            return True
        if generation is None:
            return False
        with contextlib.suppress(UnavailableError):  # An append will say so, if one comes.
            return not self._generations.is_current(generation)
        return False

    def next_look_s(self) -> float:
        """Seconds until ``is_look_due`` should be asked; at most 1, to notice a truncation."""
        if self._file is None:
            return 1.0
        due_s = next_look_s(
            self._age,
            properties=self._properties,
            now_s=self._clock.monotonic_s(),
            now_ms=self._clock.now_ms(),
        )
        return min(1.0, due_s)

    def abandon(self) -> None:
        """Let go of the file without another byte: after a failure, or in a forked child."""
        file, self._file = self._file, None
        if file is not None:
            file.abandon()

    def forget_parent(self) -> None:
        """See ``Lane``."""
        self.abandon()

    def _roll_reason(self) -> str | None:
        file = self._file
        if file is None:
            return None
        return roll_reason(
            self._age,
            size_bytes=file.position,
            properties=self._properties,
            now_s=self._clock.monotonic_s(),
            now_ms=self._clock.now_ms(),
        )

    def _place(self, batches: Sequence[Batch], generation: Generation) -> Placed:
        arranged = arrange(
            batches,
            generation.number,
            self._clock.now_ms(),
            self._properties.partition_duration_ms,
        )
        runs: list[Run] = []
        for portion in arranged.portions:
            runs += self._place_in(portion)
        return Placed(runs, arranged.order)

    def _place_in(self, portion: Portion) -> list[Run]:
        """Write and sync events of one partition."""
        file, segment = self._file_for(portion.partition, portion.first_ms)
        portion = portion.not_before(file.last_timestamp_ms)
        runs: list[Run] = []
        try:
            uncommitted = 0
            for start, end, size in blocks_of(
                portion.events, self._properties.block_size_bytes_max
            ):
                runs += encode_run(file, segment, portion.part(start, end), self._properties)
                uncommitted += size
                if uncommitted > COMMIT_SIZE_BYTES:
                    file.commit()
                    uncommitted = 0
            if uncommitted:
                file.commit()
        except BaseException:
            # Whatever it was, also an interrupt between two lines: what is in the file and what
            # this writer believes of it may differ, so not one byte more goes there.
            logger.warning("segment given up after a failed write: %s", file.url)
            self.abandon()
            raise
        self._age.appended_s = self._clock.monotonic_s()
        return runs

    def _file_for(self, partition: Partition, timestamp_ms: int) -> tuple[SegmentWriter, Segment]:
        """The open segment if it can take the event, else a new one."""
        file, segment = self._file, self._segment
        if file is not None and segment is not None:
            if segment.partition != partition:
                reason: str | None = "partition"
            elif file.last_timestamp_ms - timestamp_ms > _LATENESS_MS_MAX:
                reason = "late event"
            else:
                reason = self._roll_reason()
            if reason is None:
                return file, segment
            self.seal(reason)
        if self._generation is None or not self._generations.is_current(self._generation):
            # Truncated or deleted: nothing is to be created there any more.
            raise _GenerationChangedError
        if self._is_in_doubt or not self._claim.is_held:
            self._is_in_doubt = True
            self._renew()
            self._is_in_doubt = False
        writer_id = self._claim.writer_id
        sequence = self._take_sequence(partition, writer_id)
        segment = Segment(partition, writer_id, sequence)
        file = self._open(segment)
        self._file, self._segment = file, segment
        now_s = self._clock.monotonic_s()
        self._age = SegmentAge(now_s, now_s, partition.end_ms)
        return file, segment

    def _next_sequence(self, partition: Partition, writer_id: str) -> int:
        return self._catalog.next_sequence(partition, writer_id)

    def _take_sequence(self, partition: Partition, writer_id: str) -> int:
        return self._next_sequence(partition, writer_id)

    def _renew(self) -> bool:
        return self._claim.renew()

    def _open(self, segment: Segment) -> SegmentWriter:
        logger.debug("segment opened: %s", segment.key)
        before = dataclasses.replace(segment, sequence=max(segment.sequence - 1, 0))
        if before != segment and before.data_key != self._sealed_key:
            # Readers will leave the file before this one, so nobody may add to it any more.
            self._storage.fence(before.data_key)
        taken = ConflictError(
            f"another process writes as {segment.writer_id!r}: give each its own writer_id. "
            f"url={self._storage.url_of(segment.data_key)}"
        )
        try:
            file = SegmentWriter(
                self._storage, segment.key, self._heads.head(segment), self._heads.options
            )
        except ConflictError as error:
            raise taken from error
        try:
            if self._was_packed(segment):
                # We slept while our heir's segment of this name was packed and removed. The pack
                # stands for it, also for those who have not heard of it yet.
                self._storage.delete(segment.data_key)
                raise taken
        except BaseException:
            file.abandon()
            raise
        return file

    def _was_packed(self, segment: Segment) -> bool:
        return self._storage.was_packed(segment, self._clock.now_ms())
