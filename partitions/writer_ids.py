"""Which writer id a process holds: the one asked for, or the first that is free.

A claim lasts as long as its process, so the id of a dead writer is free again, and that of one that
is merely stopped is not.
"""

from typing import Final

from filestream.coordination.base import PropertyStore
from filestream.errors import ConflictError
from filestream.partitions.layout import check_writer_id
from filestream.storage.base import Lock

__all__ = ["claim_writer_id"]

_WRITER_IDS_MAX: Final = 10_000


def claim_writer_id(store: PropertyStore, writer_id: str | None) -> tuple[Lock, str]:
    """Hold an id among all living processes: the one asked for, or the first ``file.N`` free."""
    if writer_id is not None:
        try:
            return store.claim(f"writers/{check_writer_id(writer_id)}"), writer_id
        except ConflictError as error:
            raise ConflictError(
                f"another living process writes as {writer_id!r}: give each its own writer_id"
            ) from error
    for number in range(_WRITER_IDS_MAX):
        try:
            return store.claim(f"writers/file.{number}"), f"file.{number}"
        except ConflictError:
            continue
    raise ConflictError(f"all writer ids are taken. count={_WRITER_IDS_MAX}")
