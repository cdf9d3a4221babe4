"""Fills the gaps that failed commits left in a chain, where segments are put whole."""

import contextlib
import logging

from filestream.errors import ConflictError
from filestream.partitions.catalog import Catalog
from filestream.partitions.layout import Partition, Segment
from filestream.partitions.segment_heads import SegmentHeads
from filestream.segment_encoder import SegmentEncoder
from filestream.storage.base import Storage

__all__ = ["following_sequence", "put_empty"]

logger = logging.getLogger(__name__)


def following_sequence(
    storage: Storage,
    heads: SegmentHeads,
    partition: Partition,
    writer_id: str,
    *,
    now_ms: int,
    own: frozenset[int] = frozenset(),
) -> int:
    """The sequence to go on with, once nothing is missing before it.

    Args:
        own: sequences that are taken although they are not in the storage yet.

    Raises:
        UnavailableError: the store failed.
    """
    taken = Catalog(storage).sequences(partition, writer_id) | own
    following = max(taken, default=-1) + 1
    for sequence in range(following):
        if sequence not in taken:
            # If what was to be there arrives meanwhile, all the better.
            with contextlib.suppress(ConflictError):
                put_empty(storage, heads, Segment(partition, writer_id, sequence), None, now_ms)
                logger.info("filled a gap that a failed commit left: %d of %s", sequence, writer_id)
    return following


def put_empty(
    storage: Storage, heads: SegmentHeads, segment: Segment, settled: int | None, now_ms: int
) -> None:
    """Put a segment without events.

    Args:
        settled: see ``SETTLED``; None when everything before it is.

    Raises:
        ConflictError: the name is taken.
        UnavailableError: the store failed.
    """
    head = heads.head(segment, segment.sequence if settled is None else settled)
    storage.put_if_absent(segment.data_key, SegmentEncoder(head, heads.options).whole(now_ms))
