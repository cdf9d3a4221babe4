"""First looks at many segments: side by side where each is a request to a store far away.

There the first look brings all of a small segment, so its reader is kept, and nothing is asked twice.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from filestream.errors import FilestreamError
from filestream.partitions.layout import Segment
from filestream.partitions.packed_storage import PackedStorage
from filestream.segment_reader import SegmentReader

__all__ = ["Look", "first_looks"]

_THREADS: Final = 16
# In all readers that are kept.
_HELD_BYTES_MAX: Final = 32 << 20


class Look(NamedTuple):
    """What a first look at a segment found.

    Attributes:
        first_ms: no event is older. A bad value costs order only, because the block is checked later.
        reader: to go on with; None when another is to be opened.
    """

    first_ms: int
    reader: SegmentReader | None


def first_looks(
    storage: PackedStorage, segments: Sequence[Segment], open_reader: Callable[[int], SegmentReader]
) -> Iterator[Look]:
    """A look at each segment, in order.

    Args:
        open_reader: a new reader of the segment with this place among them.
    """
    # With one there is nothing to merge, and no first time to look up.
    if len(segments) == 1:
        yield Look(0, None)
        return

    def look(number: int) -> tuple[int, SegmentReader]:
        reader, start_ms = open_reader(number), segments[number].partition.start_ms
        try:
            stamp = reader.first_timestamp_ms()
        except FilestreamError:
            stamp = None
        is_in = stamp is not None and start_ms <= stamp < segments[number].partition.end_ms
        return (stamp if stamp is not None and is_in else start_ms), reader

    held = 0
    for first_ms, reader in _ordered(storage, segments, look):
        keeps = bool(reader.held_size) and held + reader.held_size <= _HELD_BYTES_MAX
        held += reader.held_size if keeps else 0
        yield Look(first_ms, reader if keeps else None)


def _ordered(
    storage: PackedStorage,
    segments: Sequence[Segment],
    look: Callable[[int], tuple[int, SegmentReader]],
) -> Iterator[tuple[int, SegmentReader]]:
    # What lies in packs comes many segments at a time, when it is asked for in order.
    if storage.can_append or any(storage.holds(segment.data_key) for segment in segments[:1]):
        yield from map(look, range(len(segments)))
        return
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="filestream-look") as threads:
        # A few at a time: each may bring a MiB.
        for at in range(0, len(segments), _THREADS):
            yield from threads.map(look, range(at, min(at + _THREADS, len(segments))))
