"""Places in chains as JSON, short: shared by the states of groups and by Spark's offsets. Pure.

    [[start_s, partitions, duration_s, {"file.0": [1], "file.1": [0, 4096]}], ...]

A place is ``[sequence]``, before that segment, ``[sequence, position]``, before the block at that
byte, or ``[sequence, position, index]``, before an event of that block. Partitions that follow each
other without a gap and whose writers stand at the same places, which is what finished partitions look
like, share one entry: a year of daily partitions of four writers takes one line, not 1460.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from filestream.partitions.chain import ChainId, Place
from filestream.partitions.layout import Partition

__all__ = ["decode_place", "decode_places", "encode_place", "encode_places"]


def encode_place(place: Place) -> list[int]:
    """A place without its trailing zeros."""
    short = list(place)
    while len(short) > 1 and not short[-1]:
        short.pop()
    return short


def decode_place(raw: Iterable[int]) -> Place:
    """The place that ``encode_place`` wrote.

    Raises:
        TypeError, ValueError: it wrote no such thing.
    """
    numbers = list(raw)
    if not 1 <= len(numbers) <= 3 or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(f"no place: {numbers!r:.100}")
    return Place(*numbers)


def encode_places(places: Mapping[ChainId, Place]) -> list[list[Any]]:
    """Equal places give equal text."""
    return [list(run) for run in _runs(places)]


def decode_places(raw: Iterable[Any], generation: int) -> dict[ChainId, Place]:
    """The places that ``encode_places`` wrote.

    Raises:
        TypeError, ValueError, AttributeError: it wrote no such thing.
    """
    places: dict[ChainId, Place] = {}
    for start_s, count, duration_s, writers in raw:
        for number in range(count):
            partition = Partition(generation, start_s + number * duration_s, duration_s)
            for writer_id, place in writers.items():
                places[ChainId(partition, writer_id)] = decode_place(place)
    return places


def _runs(places: Mapping[ChainId, Place]) -> Iterator[tuple[int, int, int, dict[str, list[int]]]]:
    by_partition: dict[Partition, dict[str, list[int]]] = {}
    for chain in sorted(places):
        by_partition.setdefault(chain.partition, {})[chain.writer_id] = encode_place(places[chain])
    run: tuple[int, int, int, dict[str, list[int]]] | None = None
    for partition, writers in by_partition.items():
        start_s, duration_s = partition.start_s, partition.duration_s
        if run is not None:
            first, count, length, same = run
            if (start_s, duration_s, writers) == (first + count * length, length, same):
                run = (first, count + 1, length, same)
                continue
            yield run
        run = (start_s, 1, duration_s, writers)
    if run is not None:
        yield run
