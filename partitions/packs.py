"""One pack as files: put it, check it, find its segments, with its index or without."""

import logging
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from filestream.errors import ConflictError, CorruptDataError, NotFoundError
from filestream.packfile import PackIndex, encode_index, parse_index, walk
from filestream.partitions.layout import Pack, Partition
from filestream.storage.base import Storage

__all__ = [
    "check_pack",
    "check_segments",
    "index_problem",
    "put_pack",
    "read_index",
    "rebuild_index",
]

logger = logging.getLogger(__name__)

_INDEX_SIZE_BYTES_MAX: Final = 8 << 20


def put_pack(storage: Storage, pack: Pack, parts: Sequence[bytes], now_ms: int) -> None:
    """Put a pack, then its index; fine when another process just did the same.

    Raises:
        ConflictError: other bytes have this name.
        UnavailableError: the store failed; the pack may be there.
    """
    data = b"".join(parts)
    try:
        storage.put_if_absent(pack.data_key, data)
    except ConflictError:
        if storage.read(pack.data_key, 0, len(data) + 1) != data:
            raise
    else:
        # Of a pack that was lost: it would say that this one is older than it is.
        storage.delete(pack.index_key)
    _put_index(storage, pack, PackIndex(now_ms, pack.first, [len(part) for part in parts]))
    logger.info("packed %d segments: %s", len(parts), storage.url_of(pack.data_key))


def read_index(storage: Storage, pack: Pack) -> PackIndex:
    """Where the segments of a pack begin: from its index, or from itself where that is of no use.

    Returns:
        ``packed_at_ms`` is 0 when there was no index to say.

    Raises:
        NotFoundError: the pack is gone.
        CorruptDataError: there is no index, and the pack is damaged.
    """
    try:
        return _parse_index(storage, pack)
    except (NotFoundError, CorruptDataError) as error:
        logger.warning("reading a pack without its index: %s", error)
    data = _read(storage, pack)
    try:
        sizes = [size for _, size, _ in walk(data)]
        if len(sizes) != pack.last - pack.first + 1:
            raise CorruptDataError("a pack holds another number of segments than its name says.")
    except CorruptDataError as error:
        raise _at(storage, pack, error) from error
    return PackIndex(0, pack.first, sizes)


def index_problem(storage: Storage, pack: Pack) -> str:
    """What is wrong with the index of a pack; empty when nothing is."""
    try:
        index = _parse_index(storage, pack)
    except NotFoundError:
        return "missing index"
    except CorruptDataError:
        return "wrong index"
    return "" if sum(index.sizes) == storage.size(pack.data_key) else "wrong index"


def rebuild_index(storage: Storage, pack: Pack, now_ms: int) -> PackIndex:
    """Make the index of a pack anew.

    Args:
        now_ms: the pack will count as made then.

    Raises:
        CorruptDataError: the pack is damaged.
    """
    storage.delete(pack.index_key)
    found = read_index(storage, pack)
    index = PackIndex(now_ms, found.first, found.sizes)
    _put_index(storage, pack, index)
    return index


def check_pack(storage: Storage, pack: Pack, partition: Partition) -> None:
    """Read a pack whole: its segments are those that its name says, and every checksum holds.

    Raises:
        CorruptDataError: they are not, or it does not.
    """
    try:
        sequences = range(pack.first, pack.last + 1)
        check_segments(_read(storage, pack), partition, pack.writer_id, sequences)
    except CorruptDataError as error:
        raise _at(storage, pack, error) from error


def check_segments(
    data: bytes, partition: Partition, writer_id: str, sequences: Sequence[int]
) -> None:
    """That these bytes are exactly those closed segments, and every checksum holds.

    Raises:
        CorruptDataError: they are not, or it does not.
        UnsupportedVersionError: they need what this release lacks.
    """
    found = [properties for _, _, properties in walk(data)]
    for sequence, properties in zip_longest(sequences, found):
        expected = {
            "generation": str(partition.generation),
            "partition": partition.name,
            "writer": writer_id,
            "sequence": str(sequence),
        }
        if properties is None or any(properties.get(n) != v for n, v in expected.items()):
            raise CorruptDataError(f"the segment is not there, or another. sequence={sequence}")


def _parse_index(storage: Storage, pack: Pack) -> PackIndex:
    index = parse_index(storage.read(pack.index_key, 0, _INDEX_SIZE_BYTES_MAX))
    if (index.first, len(index.sizes)) != (pack.first, pack.last - pack.first + 1):
        raise CorruptDataError("the index belongs to another pack.")
    return index


def _put_index(storage: Storage, pack: Pack, index: PackIndex) -> None:
    try:
        storage.put_if_absent(pack.index_key, encode_index(index))
    except ConflictError:
        logger.info("another process indexed a pack: %s", pack.index_key)


def _read(storage: Storage, pack: Pack) -> bytes:
    return storage.read(pack.data_key, 0, storage.size(pack.data_key))


def _at(storage: Storage, pack: Pack, error: CorruptDataError) -> CorruptDataError:
    url = storage.url_of(pack.data_key)
    return CorruptDataError(error.message, url=url, position=error.position)
