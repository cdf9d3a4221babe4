"""What lies in a stream's directories: generations, partitions, segments.

Only listing; what is in the files is read elsewhere. A name that does not parse is not part of the
stream. Directories padded in another way than ours count as the same generation or partition.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from filestream.partitions.layout import (
    Partition,
    Segment,
    parse_generation,
    parse_segment_file,
)
from filestream.storage.base import Storage

__all__ = ["Catalog", "PartitionDirectory"]


@dataclass(frozen=True, slots=True, order=True)
class PartitionDirectory:
    """A partition, and the path under which it was listed."""

    partition: Partition
    key: str


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
        found = []
        for key in self.generation_keys(generation):
            for entry in self._storage.list(key):
                partition = Partition.parse(generation, entry.name) if entry.is_directory else None
                if partition is not None:
                    path = f"{key}/{entry.name}" if key else entry.name
                    found.append(PartitionDirectory(partition, path))
        return sorted(found)

    def segments(self, directory: PartitionDirectory) -> list[Segment]:
        """Segments of a partition that have an event file, by writer and sequence."""
        return sorted(s for s, suffix in self._files(directory) if suffix == "dat")

    def indexes_alone(self, directory: PartitionDirectory) -> list[Segment]:
        """Segments of which there is an index file only."""
        files = list(self._files(directory))
        with_data = {segment for segment, suffix in files if suffix == "dat"}
        return sorted(s for s, suffix in files if suffix == "idx" and s not in with_data)

    def next_sequence(self, partition: Partition, writer_id: str) -> int:
        """The sequence after the highest of exactly this writer; either suffix counts."""
        directories = [PartitionDirectory(partition, partition.key)]
        directories += [
            d
            for d in self.partitions(partition.generation)
            if d.partition == partition and d.key != partition.key
        ]
        taken = [
            segment.sequence
            for directory in directories
            for segment, _ in self._files(directory)
            if segment.writer_id == writer_id
        ]
        return max(taken, default=-1) + 1

    def _files(self, directory: PartitionDirectory) -> Iterable[tuple[Segment, str]]:
        for entry in self._storage.list(directory.key):
            if not entry.is_directory:
                found = parse_segment_file(directory.partition, directory.key, entry.name)
                if found is not None:
                    yield found
