"""The segments of a partition that count: without those that nobody acknowledged; and what was lost."""

from filestream.errors import CorruptDataError, NotFoundError
from filestream.partitions.catalog import Catalog, PartitionDirectory, Survey
from filestream.partitions.layout import Segment, parse_segment_file
from filestream.partitions.segment_heads import SETTLED
from filestream.segment_reader import SegmentReader
from filestream.storage.base import Storage

__all__ = ["survey_settled"]


def survey_settled(storage: Storage, directory: PartitionDirectory) -> Survey:
    """What a partition holds, without doubts that a second look removes.

    A listing that ran beside creations may show a later file and not an earlier one; but what is
    there when it is asked for by name is not missing. And where segments are put whole, several at
    once, those behind a gap that was not settled when the newest was written are still on their way,
    or those of a writer that died before they were acknowledged: no part of the stream yet.
    """
    survey = Catalog(storage).survey(directory)
    if survey.missing:
        # What was packed and removed while it was listed shows as its pack now.
        survey = Catalog(storage).survey(directory)
    if not survey.missing:
        return survey
    present = list(survey.segments)
    missing: list[Segment] = []
    for key in survey.missing:
        folder, _, name = key.rpartition("/")
        parsed = parse_segment_file(directory.partition, folder, name)
        assert parsed is not None
        if storage.exists(key):
            present.append(parsed[0])
        else:
            missing.append(parsed[0])
    if storage.can_append:
        return Survey(sorted(present), survey.problems, sorted(s.data_key for s in missing))
    lost: list[str] = []
    unsettled: dict[str, int] = {}
    for gap in missing:
        if gap.sequence < _settled_until(storage, present, gap.writer_id):
            lost.append(gap.data_key)
        else:
            least = unsettled.get(gap.writer_id, gap.sequence)
            unsettled[gap.writer_id] = min(least, gap.sequence)
    kept = [s for s in present if s.sequence < unsettled.get(s.writer_id, s.sequence + 1)]
    return Survey(sorted(kept), survey.problems, sorted(lost))


def _settled_until(storage: Storage, present: list[Segment], writer_id: str) -> int:
    """Below this sequence everything of a chain was acknowledged or given up, says its newest head."""
    newest = max(
        (s for s in present if s.writer_id == writer_id), key=lambda s: s.sequence, default=None
    )
    if newest is None:
        return 1 << 62  # Something else proves that there was a segment.
    try:
        header = SegmentReader(storage, newest.data_key).open_header()
    except NotFoundError:
        return 1 << 62  # Truncated or expired meanwhile: who asks why a file is missing will see.
    except CorruptDataError:
        return newest.sequence
    settled = header.properties.get(SETTLED, "") if header is not None else ""
    return int(settled) if settled.isascii() and settled.isdigit() else newest.sequence
