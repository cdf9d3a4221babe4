"""Which writer id a process holds: the one asked for, or the first that is free.

A claim lasts as long as its process, so the id of a dead writer is free again, and that of one that
is merely stopped is not. Where claims hang on a session with a server, one may be lost in between:
``is_held`` tells, and ``renew`` takes the id back, or another.
"""

import re
from collections.abc import Callable
from typing import Final

from filestream.coordination.base import PropertyStore
from filestream.errors import ConflictError
from filestream.partitions.layout import check_writer_id
from filestream.storage.base import Lock

__all__ = ["WriterClaim", "is_automatic"]

_WRITER_IDS_MAX: Final = 10_000
_AUTOMATIC: Final = re.compile(r"file\.[0-9]+")


def is_automatic(writer_id: str) -> bool:
    """Whether this is what writers get that ask for no id."""
    return bool(_AUTOMATIC.fullmatch(writer_id))


class WriterClaim:
    """Holds an id among all living processes, from its birth to ``close``.

    Args:
        store: of the stream.
        wanted: the id; None takes the first ``file.N`` that is free.
        may_use: says of an id that is free, and was not asked for, whether to take it.

    Attributes:
        writer_id: what is held, or was when the session was lost.

    Raises:
        ConflictError: another living process holds the id.
    """

    def __init__(
        self,
        store: PropertyStore,
        wanted: str | None,
        may_use: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._store = store
        self._may_use = may_use
        self._is_wanted = wanted is not None
        self.writer_id = check_writer_id(wanted) if wanted is not None else ""
        self._lock = self._claim(self.writer_id) if wanted is not None else self._claim_any()

    @property
    def is_held(self) -> bool:
        """Whether no other process can have the id."""
        return self._lock.is_held

    @property
    def can_be_lost(self) -> bool:
        """Whether the id may be lost, and taken by another, while this process lives."""
        return self._store.lease_s > 0

    def insist(self) -> None:
        """From now on only this id will do."""
        self._is_wanted = True

    def renew(self) -> bool:
        """Take the id again after it was lost, or another where none was asked for.

        Returns:
            Whether it is the same id.

        Raises:
            ConflictError: another living process holds the id that was asked for.
            UnavailableError: the store does not answer.
        """
        before = self.writer_id
        self._lock.close()
        try:
            self._lock = self._claim(before)
        except ConflictError:
            if self._is_wanted:
                raise
            self._lock = self._claim_any()
        return self.writer_id == before

    def close(self) -> None:
        """Give the id back; may be called twice."""
        self._lock.close()

    def _claim(self, writer_id: str) -> Lock:
        try:
            return self._store.claim(f"writers/{writer_id}")
        except ConflictError as error:
            raise ConflictError(
                f"another living process writes as {writer_id!r}: give each its own writer_id"
            ) from error

    def _claim_any(self) -> Lock:
        for number in range(_WRITER_IDS_MAX):
            try:
                lock = self._store.claim(f"writers/file.{number}")
            except ConflictError:
                continue
            try:
                if self._may_use(f"file.{number}"):
                    self.writer_id = f"file.{number}"
                    return lock
            except BaseException:
                lock.close()
                raise
            lock.close()
        raise ConflictError(f"all writer ids are taken. count={_WRITER_IDS_MAX}")
