"""A bounded read: everything between two positions, as record batches or as events.

The end is fixed when the read begins, so it ends even while writers go on. Partitions follow in
the order of time; in a partition, record batches hold whole blocks in the order of their first
events, and events are merged one by one.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from filestream.errors import InvalidRequestError
from filestream.partitions.columns import batches_of, check_columns, schema_of
from filestream.partitions.event import Event
from filestream.partitions.filters import ALWAYS, Interval, Piece
from filestream.partitions.merge import Source, merge_events, merge_pieces
from filestream.partitions.positions import At, Position, PositionLike, parse_position
from filestream.partitions.snapshot import Bounds, StreamView, sources_between, take_snapshot
from filestream.segment_reader import OnCorrupt, check_on_corrupt

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Scan"]

# A large event of up to 1 GiB may come on top; 2 GiB is what a column of Arrow can hold.
_BATCH_SIZE_BYTES_MAX = 512 << 20


class Scan:
    """What a stream holds between two positions. Can be read any number of times.

    pyarrow, Polars and DuckDB take it as it is (``pyarrow.table(scan)``, ``polars.from_arrow(scan)``,
    ``duckdb.sql("from scan")``), because it speaks the Arrow C stream interface. Each read sees what
    is there when it begins, in constant memory.

    Args:
        view: of the stream.
        start, end: from, included, and to, excluded.
        columns: see ``Stream.scan``.
    """

    def __init__(
        self,
        view: StreamView,
        start: PositionLike,
        end: PositionLike,
        *,
        columns: Sequence[str] | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        now_ms = view.clock.now_ms()
        self._view = view
        self._start: Position = parse_position(start, now_ms=now_ms)
        self._end: Position = parse_position(end, now_ms=now_ms)
        self._columns = check_columns(columns)
        self._on_corrupt: OnCorrupt = check_on_corrupt(on_corrupt)

    @property
    def schema(self) -> "pa.Schema":
        """Arrow schema of the record batches."""
        return schema_of(self._columns)

    def batches(
        self, *, rows: int = 65_536, size_bytes: int = 4 << 20
    ) -> "Iterator[pa.RecordBatch]":
        """Record batches of at most about so many rows or bytes.

        Raises:
            CorruptDataError: damage; what came before it was delivered.
            FencedError: the stream was truncated meanwhile and its files are gone.
            NotFoundError: the stream was deleted meanwhile.
        """
        _check_count("rows", rows)
        _check_count("size_bytes", size_bytes)
        size_bytes = min(size_bytes, _BATCH_SIZE_BYTES_MAX)
        return batches_of(self.pieces(), self._columns, rows_max=rows, size_bytes_max=size_bytes)

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        return self.batches()

    def to_reader(self) -> "pa.RecordBatchReader":
        """A reader that holds one batch at a time."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def to_table(self) -> "pa.Table":
        """All of it in memory."""
        return self.to_reader().read_all()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow PyCapsule interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def events(self) -> Iterator[Event]:
        """Events in the merged order; errors as ``batches``."""
        for sources in self._sources():
            yield from merge_events(sources)

    def pieces(self) -> Iterator[Piece]:
        """Checked blocks, cut to the bounds, undecoded."""
        for sources in self._sources():
            yield from merge_pieces(sources)

    def _sources(self) -> Iterator[list[Source]]:
        """For each partition, in the order of time, the pieces of its segments."""
        interval = ALWAYS
        # Positions in time say which partitions to look at; others need the whole listing.
        if isinstance(self._start, At):
            interval = interval.both(Interval(from_ms=self._start.timestamp_ms))
        if isinstance(self._end, At):
            interval = interval.both(Interval(until_ms=self._end.timestamp_ms))
        snapshot = take_snapshot(self._view, interval.both(self._view.alive), self._on_corrupt)
        bounds = Bounds(snapshot, self._start, self._end, self._on_corrupt)
        for segments in snapshot.by_partition().values():
            sources = sources_between(snapshot, bounds, segments, self._on_corrupt)
            if sources:
                yield sources

    def __repr__(self) -> str:
        return f"Scan({self._view.storage.url!r}, {self._start} .. {self._end})"


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequestError(f"{name} must be a whole number above 0. {name}={value!r:.50}")
