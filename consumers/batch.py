"""Events that a consumer was handed together: a sequence, or an Arrow record batch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from filestream.partitions.columns import check_columns, schema_of
from filestream.partitions.event import Event

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Batch"]


class Batch(Sequence[Event]):
    """Frozen; empty when nothing came in time.

    Attributes:
        deliveries: how often these events were handed out, this time included; 1 where nobody
            counts (see ``max_deliver``).
    """

    __slots__ = ("_events", "deliveries")

    def __init__(self, events: Sequence[Event], deliveries: int = 1) -> None:
        self._events = tuple(events)
        self.deliveries = deliveries

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Event, ...]: ...
    def __getitem__(self, index: int | slice) -> Event | tuple[Event, ...]:
        """One event, or several."""
        return self._events[index]

    def to_arrow(self, columns: Sequence[str] | None = None) -> "pa.RecordBatch":
        """The same as a record batch.

        Args:
            columns: as ``Stream.scan``; default timestamp, headers, body.
        """
        import pyarrow as pa

        wanted = check_columns(columns)
        schema = schema_of(wanted)
        arrays = [pa.array(_values(self._events, name), schema.field(name).type) for name in wanted]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def __repr__(self) -> str:
        return f"Batch({len(self)} events)"


def _values(events: Sequence[Event], column: str) -> list[object]:
    match column:
        case "timestamp":
            return [event.timestamp_ms * 1000 for event in events]
        case "offset":
            return [str(event.offset) for event in events]
        case "headers":
            return [list(event.headers.items()) for event in events]
        case "body":
            return [event.body for event in events]
        case "generation":
            return [event.segment.partition.generation for event in events]
        case "partition":
            return [event.segment.partition.name for event in events]
        case "writer":
            return [event.segment.writer_id for event in events]
        case "sequence":
            return [event.segment.sequence for event in events]
        case "position":
            return [event.position for event in events]
        case _:
            return [event.index_in_block for event in events]
