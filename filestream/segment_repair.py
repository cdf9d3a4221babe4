"""Ends a segment that its writer did not end: what was acknowledged in it, and an end record."""

from filestream import eventfile
from filestream.blocks import Block, Chunk, End
from filestream.errors import InvalidRequestError
from filestream.segment_reader import SegmentReader
from filestream.storage.base import Storage

__all__ = ["whole_segment"]


def whole_segment(storage: Storage, key: str) -> bytes | None:
    """The bytes of a closed E3 segment; as they are when it is closed already.

    Always the same for the same file: the end record says that it was closed at its last event.

    Args:
        key: of an event file to which nobody adds any more.

    Returns:
        None when not even the head is whole: nothing in it was acknowledged.

    Raises:
        CorruptDataError: damage, which is more than a torn end.
        NotFoundError: there is no such file.
    """
    reader = SegmentReader(storage, key)
    while not reader.is_over:
        reader.read_blocks(finished=True)
    header = reader.header
    if header is None:
        return None
    if not isinstance(header, eventfile.E3Header):
        raise InvalidRequestError(f"only E3 segments can be ended later. url={reader.url}")
    if reader.end is not None:
        return storage.read(key, 0, reader.end.end)
    data = storage.read(key, 0, reader.position)
    first_ms = last_ms = events = blocks = 0
    at = header.size
    while at < len(data):
        found = header.parse(data, at, 0)
        assert isinstance(found, Block | Chunk), "checked a moment ago"
        block = found.block if isinstance(found, Chunk) else found
        first_ms = first_ms or block.timestamp_ms
        last_ms = block.timestamp_ms + block.span_ms
        events = block.first_ordinal + block.event_count
        blocks += 1
        at = block.end
    end = End(at, 0, blocks, events, first_ms, last_ms, last_ms)
    return data + eventfile.encode_end(header.file_crc, end)
