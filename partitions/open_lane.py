"""Which lane a writer gets: the one room that knows them all, and what must happen before one begins."""

import logging

from filestream.coordination.base import PropertyStore
from filestream.errors import ConflictError, FilestreamError
from filestream.partitions.file_lane import FileLane
from filestream.partitions.journal import Journals
from filestream.partitions.journal_lane import JournalLane
from filestream.partitions.lane import Lane, LaneSite
from filestream.partitions.object_lane import ObjectLane
from filestream.partitions.shipper import Shipper, Shipping
from filestream.partitions.writer_ids import WriterClaim

__all__ = ["open_lane"]

logger = logging.getLogger(__name__)


def open_lane(site: LaneSite, store: PropertyStore, journals: Journals, *, take_over: bool) -> Lane:
    """The lane for a storage and a level of acknowledgement.

    What an earlier writer with this id left in a journal goes to the store first, also when the stream
    has another level by now.

    Args:
        store: of the stream.
        take_over: give up what a journal on another machine holds.

    Raises:
        ConflictError: there is such a journal.
        UnavailableError: the store failed.
    """
    if site.storage.can_append:
        return FileLane(site)
    shipping = Shipping(
        site.storage, site.generations, site.stream_name, site.properties, site.clock
    )
    writer_id = site.claim.writer_id
    journals.recover(writer_id, shipping.ship_all, take_over=take_over)
    if site.properties.acknowledgement != "journal":
        return ObjectLane(site)
    _recover_others(writer_id, store, journals, shipping)
    journal = journals.begin(writer_id, site.chance)
    return JournalLane(site, journals, journal, Shipper(shipping, journal, site.clock))


def _recover_others(own: str, store: PropertyStore, journals: Journals, shipping: Shipping) -> None:
    """Writers of this machine that died, and that nobody may open again: ``file.3`` of four."""
    for writer_id in journals.writers_here():
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
