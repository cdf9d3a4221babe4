"""Which lane a writer gets, and under which id: the one room that knows all lanes."""

import logging
from collections.abc import Callable

from filestream.coordination.base import PropertyStore
from filestream.errors import ConflictError, CorruptDataError, FilestreamError
from filestream.partitions.file_lane import FileLane
from filestream.partitions.journal import Journal, Journals
from filestream.partitions.journal_lane import JournalLane
from filestream.partitions.lane import Lane, LaneSite
from filestream.partitions.object_lane import ObjectLane
from filestream.partitions.shipper import Shipper, Shipping
from filestream.partitions.writer_ids import WriterClaim, is_automatic

__all__ = ["claim_id", "open_lane"]

logger = logging.getLogger(__name__)


def claim_id(
    store: PropertyStore,
    wanted: str | None,
    journals: Journals,
    ship: Callable[[Journal], None],
    *,
    takeover: bool,
) -> WriterClaim:
    """Hold a writer id, once what an earlier writer left under it is in the store.

    Whatever the stream's level is now: it may have changed.

    Args:
        wanted: the id; None takes the first that is free, and has no journal that is in the way.
        ship: brings all segments of a journal to the store.
        takeover: give up what a journal somewhere else holds.

    Raises:
        ConflictError: another living process holds the id, or its journal is not here.
        CorruptDataError: its journal is damaged.
        UnavailableError: the store failed.
    """
    in_the_way: set[str] = set()

    def may_use(writer_id: str) -> bool:
        return writer_id not in in_the_way and not journals.is_elsewhere(writer_id)

    while True:
        claim = WriterClaim(store, wanted, may_use)
        try:
            journals.recover(claim.writer_id, ship, takeover=takeover)
        except (ConflictError, CorruptDataError) as error:
            claim.close()
            if wanted is not None:
                raise
            logger.warning("taking another writer id than %s: %s", claim.writer_id, error)
            in_the_way.add(claim.writer_id)
        except BaseException:
            claim.close()
            raise
        else:
            return claim


def open_lane(site: LaneSite, store: PropertyStore, journals: Journals, shipping: Shipping) -> Lane:
    """The lane for a storage and a level of acknowledgement.

    Args:
        store: of the stream.

    Raises:
        UnavailableError: the store or the disk failed.
    """
    if site.storage.can_append:
        return FileLane(site)
    _recover_others(site.claim.writer_id, store, journals, shipping)
    if site.properties.acknowledgement != "journal":
        return ObjectLane(site)
    journal = journals.begin(site.claim.writer_id, site.chance)
    try:
        return JournalLane(site, journals, journal, Shipper(shipping, journal))
    except BaseException:
        journal.close()
        raise


def _recover_others(own: str, store: PropertyStore, journals: Journals, shipping: Shipping) -> None:
    """Writers of this machine that died, and that nobody may open again: ``file.3`` of four.

    Those that were asked for by name come back by name, and must not find it taken by a helper.
    """
    for writer_id in filter(is_automatic, journals.writers_here()):
        place = journals.named(writer_id) if writer_id != own else None
        if place is None or not journals.is_here(place):
            continue
        try:
            claim = WriterClaim(store, writer_id)
        except ConflictError:
            continue  # It lives.
        try:
            journals.recover(writer_id, shipping.ship_all)
        except FilestreamError as error:
            logger.warning("events stay in the journal of a writer that died: %s", error)
        finally:
            claim.close()
