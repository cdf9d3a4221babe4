"""The row of segments of one writer that acknowledges after a local sync, and ships soon after.

Segments grow in a journal on this machine, under the sequences that they will have in the store, so
that offsets are known at once; every so often the open one is closed and shipped.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from filestream.errors import UnavailableError
from filestream.partitions.appended import Placed
from filestream.partitions.arrange import Batch
from filestream.partitions.file_lane import FileLane
from filestream.partitions.gaps import following_sequence
from filestream.partitions.journal import Journal, Journals
from filestream.partitions.lane import LaneSite
from filestream.partitions.layout import Partition, Segment
from filestream.partitions.segment_heads import SegmentHeads
from filestream.partitions.shipper import Shipper
from filestream.segment_writer import SegmentWriter

__all__ = ["JournalLane"]

# Late events may go back to old partitions; of more than these the next sequence is looked up anew.
_PARTITIONS_MAX: Final = 64


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

    def write(self, batches: Sequence[Batch]) -> Placed:
        """See ``Lane``."""
        self._shipper.wait_for_room()
        return super().write(batches)

    def seal(self, reason: str) -> None:
        """See ``Lane``."""
        segment = self._segment if self.is_open else None
        super().seal(reason)
        if segment is not None:
            self._shipper.add(segment)

    def abandon(self) -> None:
        """Let go of the file; what is whole in it is shipped."""
        segment = self._segment if self.is_open else None
        super().abandon()
        if segment is not None:
            self._shipper.add(segment)

    def close(self) -> None:
        """Return when everything is in the store.

        Raises:
            UnavailableError: it is not, and stays in the journal.
        """
        try:
            self._shipper.finish()
            self._journals.end(self._journal)
        finally:
            self._journal.release()

    def forget_parent(self) -> None:
        """See ``Lane``."""
        super().abandon()
        self._shipper.forget_parent()
        self._journal.release()

    def _next_sequence(self, partition: Partition, writer_id: str) -> int:
        following = self._next.get(partition)
        if following is None:
            # First what is here: meanwhile it may go there, and is seen at least once.
            own = frozenset(self._catalog.sequences(partition, writer_id))
            following = following_sequence(
                self._site.storage,
                self._far_heads,
                partition,
                writer_id,
                now_ms=self._clock.now_ms(),
                own=own,
            )
        return following

    def _open(self, segment: Segment) -> SegmentWriter:
        known = self._next.pop(segment.partition, None)
        try:
            file = super()._open(segment)
        except BaseException:
            # A file that has no head yet keeps its place in the row.
            self._shipper.add(segment)
            raise
        if known is None and len(self._next) > _PARTITIONS_MAX:
            self._next.clear()
        self._next[segment.partition] = segment.sequence + 1
        return file

    def _hold_on(self) -> None:
        """The claim was lost for a while: did somebody write under our id, or give our journal up?"""
        self._next.clear()
        super()._hold_on()
        place = self._journals.named(self._journal.writer_id)
        if place is None or place.journal_id != self._journal.id:
            self.abandon()
            raise UnavailableError(
                "another process gave up what is in this journal: the events may be in the stream. "
                f"journal={self._journal.url}"
            )

    def _was_packed(self, segment: Segment) -> bool:
        # Asked of the store by whoever ships it.
        return False
