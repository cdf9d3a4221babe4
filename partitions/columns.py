"""Events as Arrow columns: which there are, blocks into record batches, and rows out of tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from filestream.codec import ColumnDecoder
from filestream.errors import CorruptDataError, FilestreamError, InvalidRequestError
from filestream.partitions.filters import Piece
from filestream.partitions.layout import Segment

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ALL_COLUMNS",
    "DEFAULT_COLUMNS",
    "batches_of",
    "check_columns",
    "rows_of_table",
    "schema_of",
]

DEFAULT_COLUMNS: Final = ("timestamp", "headers", "body")
# What each block holds, then what its place says.
_DECODED: Final = ("timestamp", "body", "headers", "position", "index")
ALL_COLUMNS: Final = (
    "timestamp", "offset", "headers", "body",
    "generation", "partition", "writer", "sequence", "position", "index",
)  # fmt: skip

_ROWS_MAX: Final = 65_536
_SIZE_BYTES_MAX: Final = 4 << 20


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns asked for, ``*`` for all, None for timestamp, headers and body.

    Raises:
        InvalidRequestError: no such column, one twice, or none at all.
    """
    if columns is None:
        return DEFAULT_COLUMNS
    if isinstance(columns, str):
        columns = [name.strip() for name in columns.split(",")]
    try:
        wanted = tuple(columns)
    except TypeError as error:
        raise InvalidRequestError(f"columns must be names. columns={columns!r:.100}") from error
    if wanted == ("*",):
        return ALL_COLUMNS
    unknown = [name for name in wanted if name not in ALL_COLUMNS]
    if unknown or not wanted or len(set(wanted)) != len(wanted):
        raise InvalidRequestError(
            f"columns must be some of {', '.join(ALL_COLUMNS)}, each once. columns={list(wanted)!r:.300}"
        )
    return wanted


def schema_of(columns: Sequence[str]) -> "pa.Schema":
    """Arrow schema of the columns, in the order asked for.

    ``timestamp`` is ``timestamp[us, UTC]`` (events have milliseconds; Spark, Polars and DuckDB take
    microseconds as they are), ``offset`` the text form, ``partition`` the directory's name.
    """
    import pyarrow as pa

    types = {
        "timestamp": pa.timestamp("us", "UTC"),
        "offset": pa.string(),
        "headers": pa.map_(pa.string(), pa.string()),
        "body": pa.binary(),
        "generation": pa.int32(),
        "partition": pa.string(),
        "writer": pa.string(),
        "sequence": pa.int32(),
        "position": pa.int64(),
        "index": pa.int32(),
    }
    return pa.schema([pa.field(name, types[name], nullable=False) for name in columns])


def batches_of(
    pieces: Iterable[Piece],
    columns: Sequence[str],
    *,
    rows_max: int = _ROWS_MAX,
    size_bytes_max: int = _SIZE_BYTES_MAX,
) -> "Iterator[pa.RecordBatch]":
    """Record batches of about ``rows_max`` rows or ``size_bytes_max`` bytes, whichever is first.

    Raises:
        CorruptDataError: a block cannot be decoded.
    """
    builder = _Builder(columns, rows_max, size_bytes_max)
    try:
        for piece in pieces:
            if piece.first == 0 and piece.stop < 0:
                builder.add(piece)
                if builder.is_full:
                    yield builder.finish()
                continue
            # Part of a block: decoded whole, in a batch of its own, and sliced without a copy.
            if builder.rows:
                yield builder.finish()
            builder.add(piece)
            batch = builder.finish()
            stop = piece.stop if piece.stop >= 0 else batch.num_rows
            if piece.first < stop:
                yield batch.slice(piece.first, stop - piece.first)
    except FilestreamError:
        # What came before the error is sound, and was not delivered yet.
        if builder.rows:
            yield builder.finish()
        raise
    if builder.rows:
        yield builder.finish()


class _Builder:
    def __init__(self, columns: Sequence[str], rows_max: int, size_bytes_max: int) -> None:
        self._columns = columns
        self._schema = schema_of(columns)
        self._rows_max = rows_max
        self._size_bytes_max = size_bytes_max
        wanted = set(columns)
        if "offset" in wanted:
            wanted |= {"position", "index"}
        self._decoded = [name for name in _DECODED if name in wanted]
        self._decoder = ColumnDecoder(
            **{name: name in wanted for name in _DECODED},
            rows=min(rows_max, _ROWS_MAX) + 4096,
            size_bytes=min(size_bytes_max, 16 << 20) + (1 << 20),
        )
        # Which segment the rows come from, as (segment, rows).
        self._runs: list[tuple[Segment, int]] = []

    @property
    def rows(self) -> int:
        return self._decoder.rows

    @property
    def is_full(self) -> bool:
        return (
            self._decoder.rows >= self._rows_max or self._decoder.size_bytes >= self._size_bytes_max
        )

    def add(self, piece: Piece) -> None:
        block = piece.block
        try:
            count = self._decoder.add(
                block.data,
                block.start,
                block.stop,
                block.event_count,
                block.timestamp_ms,
                block.position,
                block.has_delta,
            )
        except CorruptDataError as error:
            raise CorruptDataError(error.message, url=piece.url, position=block.position) from error
        runs = self._runs
        if runs and runs[-1][0] is piece.segment:
            runs[-1] = (piece.segment, runs[-1][1] + count)
        else:
            runs.append((piece.segment, count))

    def finish(self) -> "pa.RecordBatch":
        import pyarrow as pa

        found = dict(zip(self._decoded, self._decoder.finish(), strict=True))
        runs, self._runs = self._runs, []
        arrays = []
        for name in self._columns:
            if name not in found:
                found[name] = _place_column(name, runs, found)
            arrays.append(found[name])
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _place_column(
    name: str, runs: Sequence[tuple[Segment, int]], found: "Mapping[str, pa.Array]"
) -> "pa.Array":
    """A column that only the place of a block says: one value for a whole run of rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def repeated(values: list[object], kind: "pa.DataType") -> "pa.Array":
        parts = [
            pa.repeat(pa.scalar(value, kind), rows)
            for value, (_, rows) in zip(values, runs, strict=True)
        ]
        return pa.concat_arrays(parts)

    if name == "generation":
        return repeated([s.partition.generation for s, _ in runs], pa.int32())
    if name == "partition":
        return repeated([s.partition.name for s, _ in runs], pa.string())
    if name == "writer":
        return repeated([s.writer_id for s, _ in runs], pa.string())
    if name == "sequence":
        return repeated([s.sequence for s, _ in runs], pa.int32())
    assert name == "offset"
    paths = [
        f"{s.partition.generation:05d}/{s.partition.name}/{s.writer_id}.{s.sequence:06d}:"
        for s, _ in runs
    ]
    # By its registered name: the compute module makes its functions at run time.
    join = pc.get_function("binary_join_element_wise")
    dot, nothing = pa.scalar("."), pa.scalar("")
    position, index = (found[part].cast(pa.string()) for part in ("position", "index"))
    places = join.call([position, index, dot])
    return join.call([repeated(list(paths), pa.string()), places, nothing])


Rows = tuple[list[bytes], list[dict[str, str | None] | None] | None, list[int] | None]


def rows_of_table(table: object) -> Rows:
    """Bodies, headers and timestamps in milliseconds of Arrow data with these columns.

    Raises:
        InvalidRequestError: no Arrow data, a column missing or of another type, or a null body.
    """
    import pyarrow as pa

    if not hasattr(table, "__arrow_c_stream__"):
        raise InvalidRequestError(f"no Arrow data. type={type(table).__name__}")
    try:
        rows: pa.Table = table if isinstance(table, pa.Table) else pa.table(table)
    except Exception as error:
        # Whatever a foreign __arrow_c_stream__ raises.
        raise InvalidRequestError(f"no Arrow table. {error!s:.200}") from error
    names = rows.column_names
    if "body" not in names or len(set(names)) != len(names):
        raise InvalidRequestError(
            f"the table needs a column 'body', each name once. columns={names}"
        )
    if unknown := sorted(set(names) - {"body", "headers", "timestamp"}):
        raise InvalidRequestError(
            f"columns may be body, headers and timestamp; drop the others. unknown={unknown}"
        )
    try:
        kind = rows["body"].type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            raise TypeError(f"body is {kind}")
        bodies = rows["body"].cast(pa.binary() if rows.nbytes < 2**31 else pa.large_binary())
        headers = None
        if "headers" in names:
            kind = rows["headers"].type
            if not (pa.types.is_map(kind) or pa.types.is_struct(kind) or pa.types.is_null(kind)):
                raise TypeError(f"headers are {kind}")
            headers = [_header_row(row) for row in rows["headers"].to_pylist()]
        stamps = _milliseconds(rows["timestamp"]) if "timestamp" in names else None
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequestError(
            "columns must be body: binary or string; headers: map or struct of strings; "
            f"timestamp: timestamp or integer milliseconds. {error!s:.200}"
        ) from error
    known = None if stamps is None else [stamp for stamp in stamps if stamp is not None]
    if bodies.null_count or (stamps is not None and known is not None and len(known) < len(stamps)):
        raise InvalidRequestError("body and timestamp must not be null.")
    return bodies.to_pylist(), headers, known


def _milliseconds(column: "pa.ChunkedArray") -> list[int | None]:
    import pyarrow as pa

    kind = column.type
    values: list[int | None] = column.cast(pa.int64()).to_pylist()
    if pa.types.is_integer(kind):
        return values
    if not pa.types.is_timestamp(kind):
        raise TypeError(f"timestamp is {kind}")
    # In Python's numbers, which do not wrap round.
    if kind.unit == "s":
        return [value * 1000 if value is not None else value for value in values]
    per_ms = {"ms": 1, "us": 1000, "ns": 1_000_000}[kind.unit]
    return [value // per_ms if value is not None else value for value in values]


def _header_row(row: object) -> dict[str, str | None] | None:
    if row is None or isinstance(row, dict):
        return row
    if isinstance(row, list):
        return dict(row)
    raise TypeError(f"headers must be a map. type={type(row).__name__}")
