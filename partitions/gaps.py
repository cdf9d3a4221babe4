"""Fills the gaps that failed commits left in a chain, where segments are put whole."""

import logging

from filestream.errors import ConflictError
from filestream.partitions.catalog import Catalog
from filestream.partitions.layout import Partition, Segment
from filestream.partitions.segment_heads import SegmentHeads
from filestream.segment_encoder import SegmentEncoder
from filestream.storage.base import Storage

__all__ = ["following_sequence"]

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
            _fill(storage, heads, Segment(partition, writer_id, sequence), now_ms)
    return following


def _fill(storage: Storage, heads: SegmentHeads, segment: Segment, now_ms: int) -> None:
    """An empty segment where a commit never arrived; if it did meanwhile, all the better."""
    head = heads.head(segment, segment.sequence)
    empty = SegmentEncoder(head, heads.options).whole(now_ms)
    try:
        storage.put_if_absent(segment.data_key, empty)
    except ConflictError:
        return
    logger.info("filled a gap that a failed commit left: %s", segment.key)
