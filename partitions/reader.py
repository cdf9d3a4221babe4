"""The two ways of reading a stream, side by side."""

from filestream.partitions.scan import Scan
from filestream.partitions.tail import Tail

__all__ = ["Scan", "Tail"]
