"""The row of segments of one writer that acknowledges after a local sync, and ships soon after.

Segments grow in a journal on this machine, under the sequences that they will have in the store, so
that offsets are known at once; every so often the open one is closed and shipped.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from filestream.errors import ConflictError, FencedError
from filestream.partitions.appended import Placed, Run
from filestream.partitions.arrange import Batch, Portion, blocks_of
from filestream.partitions.file_lane import FileLane
from filestream.partitions.gaps import following_sequence, put_empty
from filestream.partitions.journal import Journal, Journals
from filestream.partitions.lane import LaneSite
from filestream.partitions.layout import Partition, Segment
from filestream.partitions.segment_heads import SegmentHeads
from filestream.partitions.shipper import Shipper
from filestream.segment_writer import SegmentWriter

__all__ = ["JournalLane"]

# Late events may go back to old partitions; of more than these the next sequence is looked up anew.
_PARTITIONS_MAX: Final = 64
_TRIES: Final = 10


class JournalLane(FileLane):
    """Args:
    site: where segments go in the end, and as whom.
    journal: where they go first; ``close`` ends it.
    """

    def __init__(
        self, site: LaneSite, journals: Journals, journal: Journal, shipper: Shipper
    ) -> None:
        properties = site.properties
        local = replace(
            properties,
            acknowledgement="disk",
            segment_size_bytes_max=min(
                properties.segment_size_bytes_max, properties.commit_size_bytes_max
            ),
            segment_age_ms_max=properties.ship_interval_ms_max,
            segment_idle_ms_max=properties.ship_interval_ms_max,
        )
        super().__init__(replace(site, storage=journal.storage, properties=local))
        self._site = site
        self._journals = journals
        self._journal = journal
        self._shipper = shipper
        self._far_heads = SegmentHeads(site.stream_name, properties, site.chance)
        self._next: dict[Partition, int] = {}
        # Why nothing can be acknowledged any more.
        self._given_up = ""
        # Segments carry the id that the journal is named after, for good.
        site.claim.insist()

    def write(self, batches: Sequence[Batch]) -> Placed:
        """See ``Lane``."""
        if self._given_up:
            raise FencedError(self._given_up)
        self._shipper.wait_for_room()
        return super().write(batches)

    def seal(self, reason: str) -> None:
        """See ``Lane``."""
        try:
            super().seal(reason)
        finally:
            self._hand_over()

    def abandon(self) -> None:
        """Let go of the file; what is whole in it is shipped."""
        try:
            super().abandon()
        finally:
            self._hand_over()

    def close(self) -> None:
        """Return when everything is in the store.

        Raises:
            UnavailableError: it is not, and stays in the journal.
        """
        try:
            self._shipper.finish()
            self._journals.end(self._journal)
        finally:
            self._journal.close()

    def forget_parent(self) -> None:
        """See ``Lane``."""
        super().abandon()
        self._shipper.forget_parent()
        self._journal.close()

    def _hand_over(self) -> None:
        if not self.is_open:
            self._shipper.grows(None)

    def _place_in(self, portion: Portion) -> list[Run]:
        """Write events of one partition, in segments that can be put."""
        runs: list[Run] = []
        size_max = self._properties.segment_size_bytes_max
        for start, end, size in blocks_of(portion.events, size_max):
            file = self._file
            if file is not None and file.events and file.position + size > size_max:
                self.seal("size")
            runs += super()._place_in(portion.part(start, end))
        return runs

    def _next_sequence(self, partition: Partition, writer_id: str) -> int:
        # First what is here: meanwhile it may go there, and is seen at least once.
        own = frozenset(self._catalog.sequences(partition, writer_id))
        return following_sequence(
            self._site.storage,
            self._far_heads,
            partition,
            writer_id,
            now_ms=self._clock.now_ms(),
            own=own,
        )

    def _take_sequence(self, partition: Partition, writer_id: str) -> int:
        """The next one; the first of a row is taken in the store as well.

        Exclusive creation guards a row where segments are put, and here events are acknowledged before
        that. So an empty segment goes first: whoever else still writes under this id, awake after it
        was taken for dead, puts in order, and meets it.
        """
        known = self._next.get(partition)
        if known is not None:
            return known
        if len(self._next) > _PARTITIONS_MAX:
            self._next.clear()
        for _ in range(_TRIES):
            settled = min(self._catalog.sequences(partition, writer_id), default=None)
            fence = Segment(partition, writer_id, self._next_sequence(partition, writer_id))
            # On a conflict somebody put his last there, at this moment.
            with contextlib.suppress(ConflictError):
                put_empty(self._site.storage, self._far_heads, fence, settled, self._clock.now_ms())
                self._next[partition] = fence.sequence + 1
                return fence.sequence + 1
        raise ConflictError(
            f"another process writes as {writer_id!r}: give each its own writer_id. "
            f"url={self._site.storage.url}"
        )

    def _open(self, segment: Segment) -> SegmentWriter:
        # Before it is there, so that it is never taken for one that is closed.
        self._shipper.grows(segment)
        # If it fails, the row is looked at anew: the name may be used now, or not.
        self._next.pop(segment.partition, None)
        try:
            file = super()._open(segment)
        except BaseException:
            self._shipper.grows(None)
            raise
        self._next[segment.partition] = segment.sequence + 1
        return file

    def _renew(self) -> bool:
        """Take the id again: is what is in the journal still wanted?"""
        self._next.clear()
        is_same = super()._renew()
        place = self._journals.named(self._journal.writer_id)
        if place is None or place.journal_id != self._journal.id:
            self._given_up = (
                "another process took this writer over, and gave up what was in its journal then: "
                f"open another writer. journal={self._journal.url}"
            )
            raise ConflictError(self._given_up)
        return is_same

    def _was_packed(self, segment: Segment) -> bool:
        # Asked of the store by whoever ships it.
        return False
