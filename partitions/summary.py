"""What is in a stream, in numbers, without reading events."""

from dataclasses import dataclass

from filestream.errors import NotFoundError
from filestream.partitions.layout import Segment
from filestream.partitions.snapshot import StreamView, take_snapshot
from filestream.segment_map import segment_end
from filestream.segment_reader import SegmentReader

__all__ = ["Summary", "summarise"]


@dataclass(slots=True)
class Summary:
    """Numbers of the current generation.

    Attributes:
        events: in blocks that are whole; E1 and E2 files keep no counts and add none.
        open_segments: segments without an end record: live, or of writers that died.
        first_timestamp_ms, last_timestamp_ms: 0 where there is no event.
    """

    generation: int
    partitions: int = 0
    segments: int = 0
    open_segments: int = 0
    events: int = 0
    size_bytes: int = 0
    writers: int = 0
    first_timestamp_ms: int = 0
    last_timestamp_ms: int = 0


def summarise(view: StreamView) -> Summary:
    """Look at every segment's end."""
    snapshot = take_snapshot(view)
    summary = Summary(snapshot.generation.number, partitions=len(snapshot.partitions()))
    summary.writers = len({chain.writer_id for chain in snapshot.chains})
    for chain, segments in snapshot.chains.items():
        for segment in segments:
            try:
                _add(summary, view, segment)
            except NotFoundError as error:
                failure = view.explain_missing(snapshot.generation, error, chain.partition)
                if failure is not None:
                    raise failure from error
    return summary


def _add(summary: Summary, view: StreamView, segment: Segment) -> None:
    end = segment_end(view.storage, segment.data_key)
    summary.segments += 1
    summary.open_segments += not end.is_sealed
    summary.events += max(0, end.boundary.events)
    summary.size_bytes += end.size_bytes
    reader = SegmentReader(view.storage, segment.data_key)
    footer = reader.footer()
    if footer is not None:
        if not footer.events:
            return
        first_ms, last_ms = footer.first_timestamp_ms, footer.last_timestamp_ms
    else:
        header = reader.open_header()
        block = reader.block_at(header.size) if header is not None else None
        if block is None:
            return
        first_ms = last_ms = block.timestamp_ms
        reader.seek_ordinal(1 << 62)
        while blocks := reader.read_blocks(finished=True):
            last_ms = max(last_ms, blocks[-1].timestamp_ms + blocks[-1].span_ms)
    if not summary.first_timestamp_ms or first_ms < summary.first_timestamp_ms:
        summary.first_timestamp_ms = first_ms
    summary.last_timestamp_ms = max(summary.last_timestamp_ms, last_ms)
