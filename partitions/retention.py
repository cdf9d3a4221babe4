"""Clean-up: removes what no reader can see any more, and nothing else.

That is: generations below the current one, once they have been over for ``retention``, and
partitions of the current one that ended more than ``ttl`` ago. May run at any time, in any number of
processes, and be killed at any point.
"""

import logging
from dataclasses import dataclass

from filestream.partitions.catalog import Catalog
from filestream.partitions.generations import Generation
from filestream.settings import StreamProperties
from filestream.storage.base import Storage

__all__ = ["Removal", "apply_retention"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Removal:
    """One directory that went, or would go.

    Attributes:
        key: below the stream.
        reason: ``"truncated"`` or ``"expired"``.
    """

    key: str
    reason: str


def apply_retention(
    storage: Storage,
    current: Generation,
    properties: StreamProperties,
    *,
    now_ms: int,
    dry_run: bool,
) -> list[Removal]:
    """Remove what has had its time; returns what that was.

    Args:
        current: the generation that stays.
        dry_run: remove nothing.
    """
    catalog = Catalog(storage)
    removals: list[Removal] = []
    if now_ms - current.since_ms >= properties.retention_ms:
        for generation in catalog.generations():
            if generation < current.number:
                keys = catalog.generation_keys(generation)
                removals += [Removal(key, "truncated") for key in keys]
    if properties.ttl_ms:
        for directory in catalog.partitions(current.number):
            if directory.partition.end_ms < now_ms - properties.ttl_ms:
                removals += [Removal(key, "expired") for key in directory.keys]
    for removal in removals:
        if not dry_run:
            storage.delete_tree(removal.key)
            logger.info("removed %s: %s", removal.reason, storage.url_of(removal.key))
    return removals
