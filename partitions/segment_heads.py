"""What stands in the head of a stream's segments."""

import random
from typing import Final

from filestream import transforms
from filestream.partitions.layout import Segment
from filestream.segment_encoder import SegmentOptions
from filestream.settings import StreamProperties

__all__ = ["SETTLED", "SegmentHeads"]

# Where segments are put whole: all of the chain below this sequence was acknowledged or given up
# when this one was written, so one of them that is missing was lost.
SETTLED: Final = "chain.settled"


class SegmentHeads:
    """Makes heads; each has an id of its own, by which a writer knows its files again."""

    def __init__(
        self, stream_name: str, properties: StreamProperties, chance: random.Random
    ) -> None:
        self._stream_name = stream_name
        self._properties = properties
        self._chance = chance
        self._transforms = transforms.file_properties(properties.compression)
        self.options = SegmentOptions(
            format=properties.format,
            acknowledgement=properties.acknowledgement,
            index_interval_bytes=properties.index_interval_bytes,
            codec=self._transforms.get("block.codec", ""),
        )

    def head(self, segment: Segment, settled: int | None = None) -> dict[str, str]:
        """Properties of a segment's file header."""
        properties = dict(self._transforms)
        if self._properties.format == "E3":
            properties |= {
                "file.id": f"{self._chance.getrandbits(128):032x}",
                "stream": self._stream_name,
                "generation": str(segment.partition.generation),
                "partition": segment.partition.name,
                "writer": segment.writer_id,
                "sequence": str(segment.sequence),
            }
        if settled is not None:
            properties[SETTLED] = str(settled)
        return properties
