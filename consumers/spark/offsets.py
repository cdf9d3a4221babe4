"""Offsets of the Spark source: how far each writer's chain was read. Pure; JSON in and out.

    {"v": 1, "at": "earliest", "from": 0}          symbolic, also "latest": where a query begins
    {"v": 1, "gen": 3, "from": 0, "records": 12345, "places": [[start_s, partitions, duration_s,
        {"file.0": [1], "file.1": [0, 4096]}], ...]}

``from`` is a time in milliseconds before which events are left out; it is carried from offset to
offset, because "ten minutes ago" must not mean something else after a restart. A place is
``[sequence]``, before that segment, ``[sequence, position]``, before the block at that byte, or
``[sequence, position, index]``, before an event of that block.

Partitions that follow each other without a gap and whose writers stand at the same places, which is
what finished partitions look like, share one entry: a year of daily partitions of four writers takes
one line, not 1460. ``records`` only grows, so that lag can be seen in the progress.

The initial offset is symbolic because Spark asks for it twice: a position resolved twice would
differ, and the first batch would begin behind its own end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from filestream.errors import CorruptDataError, UnsupportedVersionError
from filestream.partitions.chain import ChainId, Place
from filestream.partitions.layout import Partition

__all__ = ["StreamOffset", "Symbol", "parse_offset"]

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Symbol:
    """Where a query begins, not resolved yet: ``earliest`` or ``latest``, and not before a time."""

    at: str
    from_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """For Spark."""
        return {"v": _VERSION, "at": self.at, "from": self.from_ms}


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in every chain of one generation.

    Attributes:
        places: chains that were read at all; the others stand at their beginning.
        records: events read since the query began, as far as the files say.
        from_ms: events before it are left out.
    """

    generation: int
    places: Mapping[ChainId, Place] = field(default_factory=dict)
    records: int = 0
    from_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """For Spark; equal offsets give equal text."""
        return {
            "v": _VERSION,
            "gen": self.generation,
            "from": self.from_ms,
            "records": self.records,
            "places": [list(run) for run in _runs(self.places)],
        }


def parse_offset(raw: Mapping[str, Any]) -> "StreamOffset | Symbol":
    """An offset that Spark gives back, from this run or from a checkpoint.

    Raises:
        UnsupportedVersionError: written by a later release.
        CorruptDataError: no offset of this source.
    """
    try:
        if raw["v"] > _VERSION:
            raise UnsupportedVersionError(
                f"the checkpoint was written by a later release. v={raw['v']}"
            )
        if "at" in raw:
            if raw["at"] not in ("earliest", "latest"):
                raise CorruptDataError(f"no offset of a filestream source. at={raw['at']!r:.50}")
            return Symbol(raw["at"], int(raw["from"]))
        places: dict[ChainId, Place] = {}
        for start_s, count, duration_s, writers in raw["places"]:
            for number in range(count):
                partition = Partition(raw["gen"], start_s + number * duration_s, duration_s)
                for writer_id, place in writers.items():
                    places[ChainId(partition, writer_id)] = Place(*place)
        return StreamOffset(int(raw["gen"]), places, int(raw["records"]), int(raw["from"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(f"no offset of a filestream source: {raw!r:.300}") from error


def _runs(places: Mapping[ChainId, Place]) -> Iterator[tuple[int, int, int, dict[str, list[int]]]]:
    by_partition: dict[Partition, dict[str, list[int]]] = {}
    for chain in sorted(places):
        place = places[chain]
        short = [place.sequence, place.position, place.index]
        while len(short) > 1 and not short[-1]:
            short.pop()
        by_partition.setdefault(chain.partition, {})[chain.writer_id] = short
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
