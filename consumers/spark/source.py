"""``format("filestream")``: the Python data source, batch and stream. Arrow batches only.

What runs where: ``partitions`` and the offsets on the driver, once per query or per micro-batch;
``read`` in the tasks, on a pickled copy. So partitions are small values, nothing open is kept in the
objects, and every decision is in ``plan`` and ``frontier``, which know no Spark.

Errors begin with a code (``FS_TRUNCATED``, ``FS_DATA_LOSS``, ``FS_CORRUPT``, ...), because Spark turns
them into text on the way.
"""

import json
import logging
import os
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from filestream import codec
from filestream.clock import SystemClock
from filestream.consumers.spark.frontier import Frontier, Limit
from filestream.consumers.spark.offsets import StreamOffset, Symbol, parse_offset
from filestream.consumers.spark.options import SourceOptions, parse_options
from filestream.consumers.spark.plan import DataLossError, Split, batch_splits, pack, read_splits
from filestream.errors import (
    CorruptDataError,
    FencedError,
    FilestreamError,
    InvalidRequestError,
    NotFoundError,
    UnsupportedVersionError,
)
from filestream.partitions.chain import ChainId, Place, place_at_time
from filestream.partitions.columns import ALL_COLUMNS, batches_of, schema_of
from filestream.partitions.layout import Offset
from filestream.partitions.positions import At, End, Last, Position, Start
from filestream.partitions.snapshot import Bounds, StreamView, take_snapshot
from filestream.partitions.streams import open as open_stream

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FilestreamDataSource"]

logger = logging.getLogger(__name__)

_TYPES: Final = {
    "timestamp": "timestamp",
    "offset": "string",
    "headers": "map<string,string>",
    "body": "binary",
    "generation": "int",
    "partition": "string",
    "writer": "string",
    "sequence": "int",
    "position": "bigint",
    "index": "int",
}
_CODES: Final = (
    (DataLossError, "FS_DATA_LOSS"),
    (CorruptDataError, "FS_CORRUPT"),
    (FencedError, "FS_TRUNCATED"),
    (NotFoundError, "FS_NOT_FOUND"),
    (UnsupportedVersionError, "FS_UNSUPPORTED"),
    (InvalidRequestError, "FS_INVALID"),
)
_TASKS_PER_CORE: Final = 2


class FilestreamDataSource(DataSource):
    """Streams as tables: ``spark.read.format("filestream").load("file:///data/clicks")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "filestream"

    def schema(self) -> str:
        """DDL of the columns asked for by options."""
        options = self._options()
        return ", ".join(f"`{name}` {_TYPES[name]}" for name in options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return _BatchReader(self._options(), _columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        return _StreamReader(self._options(), _columns_of(schema))

    def _options(self) -> SourceOptions:
        given: MutableMapping[str, str] = self.options
        with _coded():
            return parse_options(dict(given), now_ms=SystemClock().now_ms())


class _Task(InputPartition):
    """What one task reads."""

    def __init__(self, generation: int, splits: Sequence[Split]) -> None:
        self.generation = generation
        self.splits = list(splits)


class _Reading:
    """What both readers do in a task."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._asked = options
        self._columns = columns

    def _view(self) -> StreamView:
        return open_stream(
            self._asked.url, storage_options=self._asked.storage_options or None
        ).view()

    def _tasks(self, generation: int, splits: Sequence[Split]) -> list[InputPartition]:
        tasks_min = self._asked.partitions_min or _TASKS_PER_CORE * _cores()
        packed = pack(
            splits, tasks_min=tasks_min, size_bytes_max=self._asked.partition_size_bytes_max
        )
        return [_Task(generation, task) for task in packed]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Record batches of one task; runs on an executor."""
        if not isinstance(partition, _Task):
            return  # Spark's stand-in for "no partitions at all".
        asked = self._asked
        if codec.kernel() != "compiled":
            logger.warning("filestream runs its pure codec here, which is much slower")
        wanted = _spark_schema(self._columns)
        with _coded():
            pieces = read_splits(
                self._view(),
                partition.splits,
                generation=partition.generation,
                on_corrupt=asked.on_corrupt,
                skips_truncated=not asked.fails_on_truncate,
                skips_expired=not asked.fails_on_loss,
            )
            for batch in batches_of(
                pieces,
                self._columns,
                rows_max=asked.batch_rows,
                size_bytes_max=asked.batch_size_bytes,
            ):
                yield batch.from_arrays(batch.columns, schema=wanted)


class _BatchReader(_Reading, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        asked = self._asked
        with _coded():
            if asked.start_json:
                raise InvalidRequestError("startingOffsets as JSON is for streaming queries only.")
            start, end = asked.start or Start(), asked.end or End()
            snapshot = take_snapshot(self._view(), asked.interval, asked.on_corrupt)
            splits = batch_splits(
                snapshot,
                Bounds(snapshot, start, end, asked.on_corrupt),
                asked.partition_size_bytes_max,
                asked.interval,
            )
            return self._tasks(snapshot.generation.number, splits)


class _StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    # Driver-side state; a copy that travels to a task begins without it.
    _frontier: Frontier | None = None
    _target: StreamOffset | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_asked": self._asked, "_columns": self._columns}

    def initialOffset(self) -> dict[str, Any]:
        """Symbolic: Spark asks twice, and both answers must mean the same."""
        with _coded():
            if self._asked.start_json:
                return parse_offset(json.loads(self._asked.start_json)).to_json()
            start: Position = self._asked.start or End()
            from_ms = max(0, self._asked.interval.from_ms)
            if isinstance(start, At):
                return Symbol("earliest", max(from_ms, start.timestamp_ms)).to_json()
            if isinstance(start, Start | End):
                at = "earliest" if isinstance(start, Start) else "latest"
                return Symbol(at, from_ms).to_json()
            return replace(self._offset_at(start), from_ms=from_ms).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """One limit object at the most; the others are kept in ``latestOffset``."""
        limit = self._asked.limit
        if limit.size_bytes:
            return ReadMaxBytes(limit.size_bytes)
        if limit.events:
            return ReadMaxRows(limit.events)
        if limit.segments:
            return ReadMaxFiles(limit.segments)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run."""
        with _coded():
            frontier = self._ahead()
            self._target = frontier.now(StreamOffset(frontier.generation()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends."""
        with _coded():
            frontier = self._ahead()
            before = parse_offset(start)
            if isinstance(before, Symbol):
                empty = StreamOffset(frontier.generation(), from_ms=before.from_ms)
                if before.at == "latest":
                    # Begin here: nothing before is counted as read.
                    resolved = self._target or frontier.now(empty)
                    return replace(resolved, records=0, from_ms=before.from_ms).to_json()
                before = empty
            before = self._in_current_generation(before)
            end = frontier.now(before)
            if self._target is not None and self._target.generation == end.generation:
                end = frontier.until(before, _earlier(end, self._target, before))
            allowed = Limit() if isinstance(limit, ReadAllAvailable) else self._asked.limit
            return frontier.limited(before, end, allowed).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress: what could be read without limits."""
        with _coded():
            frontier = self._ahead()
            return frontier.now(StreamOffset(frontier.generation())).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks of one micro-batch; depends on the two offsets alone."""
        with _coded():
            before, until = parse_offset(start), parse_offset(end)
            if isinstance(until, Symbol) or (isinstance(before, Symbol) and before.at == "latest"):
                return []
            if isinstance(before, Symbol) or before.generation != until.generation:
                before = StreamOffset(until.generation, from_ms=until.from_ms)
            try:
                splits = self._ahead().splits(before, until, self._asked.partition_size_bytes_max)
            except FencedError:
                if self._asked.fails_on_truncate:
                    raise
                logger.warning("the stream was truncated; the rest of a batch was skipped")
                return []
            return self._tasks(until.generation, splits)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint holds the position, and it comes too late to be of use."""

    def stop(self) -> None:
        """Nothing is held."""

    def _ahead(self) -> Frontier:
        if self._frontier is None:
            self._frontier = Frontier(
                self._view(), self._asked.interval.until_ms, self._asked.on_corrupt
            )
        return self._frontier

    def _offset_at(self, position: Position) -> StreamOffset:
        """A position that names an event, as a place in each chain."""
        assert isinstance(position, Offset | Last)
        snapshot = take_snapshot(self._view())
        bounds = Bounds(snapshot, position, End())
        if isinstance(bounds.start, Start):
            return StreamOffset(snapshot.generation.number)
        assert isinstance(bounds.start, Offset)
        named = ChainId(bounds.start.partition, bounds.start.writer_id)
        places: dict[ChainId, Place] = {}
        for chain_id, segments in snapshot.chains.items():
            if chain_id == named:
                start = bounds.start
                places[chain_id] = Place(start.sequence, start.position, start.index)
            else:
                from_ms = bounds.start_ms + (chain_id.writer_id < named.writer_id)
                places[chain_id] = place_at_time(snapshot.view.storage, segments, from_ms)
        return StreamOffset(snapshot.generation.number, places)

    def _in_current_generation(self, before: StreamOffset) -> StreamOffset:
        """The same offset, or the start of a newer generation if the query may skip."""
        frontier = self._ahead()
        current = frontier.generation()
        if before.generation != current:
            if self._asked.fails_on_truncate:
                raise FencedError(
                    "the stream was truncated; what was not read of the old generation is lost. "
                    "Set onTruncate=skip to go on in the new one. "
                    f"generation={before.generation} current={current} url={self._asked.url}"
                )
            logger.warning("the stream was truncated: going on in generation %d", current)
            return StreamOffset(current, {}, before.records, before.from_ms)
        lost = frontier.lost(before)
        if lost and self._asked.fails_on_loss:
            raise DataLossError(
                "unread files expired or were removed. Set failOnDataLoss=false to "
                f"go on without them. first={lost[0].partition.name}/{lost[0].writer_id} "
                f"count={len(lost)} url={self._asked.url}"
            )
        return before


def _earlier(end: StreamOffset, target: StreamOffset, before: StreamOffset) -> dict[ChainId, Place]:
    """What of ``end`` was there when the run began; chains that are newer wait for the next run."""
    places = dict(before.places)
    for chain_id, place in end.places.items():
        if chain_id in target.places:
            start = before.places.get(chain_id, Place())
            places[chain_id] = max(start, min(place, target.places[chain_id]))
    return places


def _columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that the user may have given to choose some.

    Raises:
        InvalidRequestError: a column that does not exist, or of another type.
    """
    for field in schema.fields:
        if _TYPES.get(field.name) != field.dataType.simpleString():
            known = ", ".join(f"{name} {_TYPES[name]}" for name in ALL_COLUMNS)
            with _coded():
                raise InvalidRequestError(
                    f"no such column: {field.simpleString()!r:.100}. Choose from {known}"
                )
    return tuple(field.name for field in schema.fields)


def _spark_schema(columns: tuple[str, ...]) -> "pa.Schema":
    """Exactly what Spark compares the first batch with: everything nullable."""
    import pyarrow as pa

    return pa.schema([field.with_nullable(True) for field in schema_of(columns)])


def _cores() -> int:
    return os.cpu_count() or 2


@contextmanager
def _coded() -> Iterator[None]:
    """Put a code in front of the message, which is all that survives Spark's wrapping."""
    try:
        yield
    except FilestreamError as error:
        text = str(error)
        if text.startswith("FS_"):
            raise  # Coded by an inner room already.
        code = next((code for kind, code in _CODES if isinstance(error, kind)), "FS_UNAVAILABLE")
        if isinstance(error, CorruptDataError):
            raise CorruptDataError(f"{code}: {text}") from error
        raise type(error)(f"{code}: {text}") from error
