"""Reads what lies behind places, live, and parts of chains once more. Knows no groups.

Not thread-safe; close it to give its watches back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from filestream.consumers.layers import Span
from filestream.errors import CorruptDataError, FilestreamError, NotFoundError
from filestream.partitions.catalog import Catalog
from filestream.partitions.chain import Chain, ChainId, Place
from filestream.partitions.event import Event
from filestream.partitions.filters import Piece, select
from filestream.partitions.follower import Follower
from filestream.partitions.generations import Generation
from filestream.partitions.layout import Partition, Segment
from filestream.partitions.merge import Source, merge_events
from filestream.partitions.snapshot import StreamView, segments_of
from filestream.segment_map import boundary_at
from filestream.segment_reader import SegmentReader

__all__ = ["LaneReader", "partitions_of", "read_spans", "sealed_ends"]


class LaneReader:
    """Events behind places, in the merged order of what is there, and then as they come.

    Args:
        view: of the stream.
        places: where to begin in each chain; others begin at their beginning.
    """

    def __init__(self, view: StreamView, places: Mapping[ChainId, Place]) -> None:
        self._follower = Follower(view, places)
        self._events: Iterator[Event] = iter(())
        self._is_in_round = False
        self._ahead: Event | None = None

    @property
    def generation(self) -> int:
        """The generation that is read now."""
        return self._follower.generation

    def next(self) -> Event | None:
        """The next event; None when there is none now.

        Raises:
            CorruptDataError: damage.
            NotFoundError: the stream was deleted.
        """
        event, self._ahead = self._ahead, None
        if event is not None:
            return event
        if not self._is_in_round:
            self._events = self._round()
            self._is_in_round = True
        event = next(self._events, None)
        if event is None:
            self._is_in_round = False
        return event

    def put_back(self, event: Event) -> None:
        """Give it again with the next ``next``."""
        self._ahead = event

    def take_changes(self) -> None:
        """Learn what changed, without waiting."""
        self._follower.take_changes()

    def look_everywhere(self) -> None:
        """Make the next round look at everything."""
        self._follower.look_everywhere()

    def wait(self, timeout_s: float) -> None:
        """Block until something changed, or the time ran out."""
        self._follower.wait(min(timeout_s, self._follower.wait_s()))

    def close(self) -> None:
        """Give the watches back; may be called twice."""
        self._follower.close()

    def _round(self) -> Iterator[Event]:
        for sources in self._follower.round():
            yield from merge_events(sources)


def read_spans(
    view: StreamView,
    generation: Generation,
    spans: Iterable[Span],
    wanted: Callable[[Event], bool],
) -> list[Event]:
    """Events of parts of chains, in the merged order.

    Raises:
        FencedError: the stream was truncated.
        CorruptDataError: damage, or a file is gone that should be there.
    """
    by_partition: dict[Partition, list[Span]] = {}
    for span in spans:
        by_partition.setdefault(span.chain.partition, []).append(span)
    directories = {
        directory.partition: directory
        for directory in Catalog(view.storage).partitions(generation.number)
    }
    found: list[Event] = []
    for partition in sorted(by_partition):
        segments: dict[str, list[Segment]] = {}
        if partition in directories:
            for segment in segments_of(view, generation, directories[partition]):
                segments.setdefault(segment.writer_id, []).append(segment)
        sources = [
            Source(
                partition.start_ms,
                (span.chain.writer_id, number),
                _pieces(view, generation, span, segments.get(span.chain.writer_id, [])),
            )
            for number, span in enumerate(by_partition[partition])
        ]
        found += [event for event in merge_events(sources) if wanted(event)]
    return found


def partitions_of(view: StreamView, generation: int) -> set[Partition]:
    """Partitions that are there."""
    return {directory.partition for directory in Catalog(view.storage).partitions(generation)}


def sealed_ends(
    view: StreamView, places: Mapping[ChainId, Place]
) -> dict[tuple[ChainId, Place], Place]:
    """Places behind the last event of a sealed segment, as places before the next segment.

    Both mean the same, but finished chains that are written like this all look alike, so that the
    state of a group stays small; and nobody opens those segments again.
    """
    found: dict[tuple[ChainId, Place], Place] = {}
    for chain, place in places.items():
        if not place.position:
            continue
        key = Segment(chain.partition, chain.writer_id, place.sequence).data_key
        try:
            footer = SegmentReader(view.storage, key).footer()
            if footer is None:
                continue
            before = boundary_at(view.storage, key, place.position).events + place.index
        except (NotFoundError, CorruptDataError):
            continue  # Reading will say so.
        if before == footer.events:
            found[chain, place] = Place(place.sequence + 1)
    return found


def _pieces(
    view: StreamView, generation: Generation, span: Span, segments: list[Segment]
) -> Iterator[Piece]:
    """Pieces of a span; expired events are left out, and nothing else."""
    chain = Chain(view.storage, segments, start=span.start)
    interval = view.alive
    try:
        while pieces := chain.read():
            for piece in pieces:
                cut = _cut(piece, span)
                if cut is None:
                    return
                yield from select(cut, interval)
    except NotFoundError as error:
        failure: FilestreamError | None = view.explain_missing(
            generation, error, span.chain.partition
        )
        if failure is not None:
            raise failure from error


def _cut(piece: Piece, span: Span) -> Piece | None:
    """What of a piece lies before the end of a span; None when nothing does."""
    start = Place(piece.segment.sequence, piece.block.position, piece.first)
    if start >= span.end:
        return None
    if (piece.segment.sequence, piece.block.position) == span.end[:2]:
        return piece._replace(stop=span.end.index)
    return piece
