"""What lies in a stream's directories: generations, partitions, segments.

Only listing; what is in the files is read elsewhere. A name that does not parse is not part of the
stream. Directories padded in another way than ours count as the same generation or partition.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from filestream.partitions.layout import (
    Partition,
    Segment,
    parse_generation,
    parse_segment_file,
)
from filestream.storage.base import Storage

__all__ = ["Catalog", "PartitionDirectory", "Survey"]

# Of a wider gap only so many names are listed: it is damage in any case.
_GAP_MAX: Final = 100


@dataclass(frozen=True, slots=True, order=True)
class PartitionDirectory:
    """A partition, and the paths under which it was listed: one, unless names were padded anew."""

    partition: Partition
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """What a partition's directory holds.

    Attributes:
        segments: those that have an event file, by writer and sequence.
        problems: why not all of them can be believed.
        missing: event files of which something else proves that they were there.
    """

    segments: list[Segment]
    problems: list[str]
    missing: list[str]


class Catalog:
    """Looks anew on each call and remembers nothing.

    Args:
        storage: of the stream.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def generations(self) -> list[int]:
        """Generations that have a directory, ascending."""
        found = (parse_generation(e.name) for e in self._storage.list("") if e.is_directory)
        return sorted({generation for generation in found if generation is not None})

    def generation_keys(self, generation: int) -> list[str]:
        """Paths of the directories of one generation: one, normally."""
        if generation == 0:
            return [""]
        entries = [e for e in self._storage.list("") if e.is_directory]
        return sorted(e.name for e in entries if parse_generation(e.name) == generation)

    def partitions(self, generation: int) -> list[PartitionDirectory]:
        """Partitions of a generation, in the order of time."""
        found: dict[Partition, list[str]] = {}
        for key in self.generation_keys(generation):
            for entry in self._storage.list(key):
                partition = Partition.parse(generation, entry.name) if entry.is_directory else None
                if partition is not None:
                    path = f"{key}/{entry.name}" if key else entry.name
                    found.setdefault(partition, []).append(path)
        return [PartitionDirectory(p, tuple(sorted(keys))) for p, keys in sorted(found.items())]

    def survey(self, directory: PartitionDirectory) -> "Survey":
        """Segments of a partition, and what of them is missing or there twice."""
        files = list(self._files(directory))
        segments = sorted(segment for segment, suffix in files if suffix == "dat")
        present = {(s.writer_id, s.sequence) for s in segments}
        problems = [
            f"two files claim one place: {segment.data_key}"
            for before, segment in pairwise(segments)
            if (before.writer_id, before.sequence) == (segment.writer_id, segment.sequence)
        ]
        # An index is created after its event file, so one alone proves a loss.
        missing = {
            segment.data_key
            for segment, suffix in files
            if suffix == "idx" and (segment.writer_id, segment.sequence) not in present
        }
        for segment in segments:
            for sequence in range(segment.sequence - 1, segment.sequence - 1 - _GAP_MAX, -1):
                if sequence < 0 or (segment.writer_id, sequence) in present:
                    break
                missing.add(replace(segment, sequence=sequence).data_key)
        return Survey(segments, problems, sorted(missing))

    def next_sequence(self, partition: Partition, writer_id: str) -> int:
        """The sequence after the highest of exactly this writer; either suffix counts."""
        return max(self.sequences(partition, writer_id), default=-1) + 1

    def sequences(self, partition: Partition, writer_id: str) -> set[int]:
        """Sequences of exactly this writer that are taken; either suffix counts."""
        directories = [PartitionDirectory(partition, (partition.key,))]
        if self.generation_keys(partition.generation) != [f"{partition.generation:05d}"]:
            listed = self.partitions(partition.generation)
            directories += [d for d in listed if d.partition == partition]
        return {
            segment.sequence
            for directory in directories
            for segment, _ in self._files(directory)
            if segment.writer_id == writer_id
        }

    def _files(self, directory: PartitionDirectory) -> Iterable[tuple[Segment, str]]:
        for key in directory.keys:
            for entry in self._storage.list(key):
                if not entry.is_directory:
                    found = parse_segment_file(directory.partition, key, entry.name)
                    if found is not None:
                        yield found
