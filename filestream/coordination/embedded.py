"""The property store without a server: versioned documents beside the stream.

Layout below the root key::

    <name>/<version %010d>      one whole, durable file a version; the highest is the document
    _claims/<name>              locked by the process that holds the claim; where the storage has no
                                locks, a document with a lease: see ``claims.py``

Compare-and-set of version n is ``put_if_absent`` of version n + 1: whoever is second gets a
conflict from the storage itself. Old versions are deleted lowest first and the highest is never,
so a version only grows. A setter who finds others ahead of him looks for his mark in what stands
there now: either they built on his version, or its slot was free only because it had been cleaned up.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from filestream.clock import since_boot_s
from filestream.coordination.base import Document, PropertyStore, Watch
from filestream.coordination.belief import BELIEVED_S, Beliefs
from filestream.coordination.claims import LEASE_S, LeasedClaims
from filestream.coordination.marks import MARKS_MAX, Marks, new_mark, split_marks, with_marks
from filestream.coordination.polling import PollingWatch
from filestream.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from filestream.storage.base import Lock, LockingStorage, Storage

__all__ = ["EmbeddedPropertyStore"]

# As long as so many are kept, a setter who was held up meets the version that was set instead of
# his. Where setting takes several requests, others get further ahead of him in the meantime.
_VERSIONS_KEPT: Final = 8
_VERSIONS_KEPT_FAR: Final = 64
_VALUE_SIZE_MAX: Final = 1 << 20
_FILE_SIZE_MAX: Final = _VALUE_SIZE_MAX + 1024
_READ_TRIES: Final = 100


class EmbeddedPropertyStore(PropertyStore):
    """Documents in the stream's own storage.

    Args:
        storage: where the stream lives.
        root: key below which the documents are kept.
        lease_s: of claims, where the storage has no locks.
    """

    def __init__(self, storage: Storage, root: str, *, lease_s: float = LEASE_S) -> None:
        self._storage = storage
        self._root = root
        self._claims = LeasedClaims(self, lease_s)
        self._is_near = isinstance(storage, LockingStorage)
        self._versions_kept = _VERSIONS_KEPT if self._is_near else _VERSIONS_KEPT_FAR
        self._beliefs = Beliefs()
        # The keys that is_current looks at, of the documents that are asked for all the time.
        self._looked_at: dict[tuple[str, int], tuple[str, str]] = {}

    def _key(self, name: str, version: int) -> str:
        return f"{self._root}/{name}/{version:010d}"

    def _versions(self, name: str) -> list[int]:
        entries = self._storage.list(f"{self._root}/{name}")
        return sorted(
            int(e.name)
            for e in entries
            if e.name.isascii() and e.name.isdigit() and not e.is_directory
        )

    def get(self, name: str) -> Document:
        """See ``PropertyStore``."""
        return self._read(name)[0]

    def _read(self, name: str) -> tuple[Document, Marks]:
        for _ in range(_READ_TRIES):
            versions = self._versions(name)
            if not versions:
                return Document(b"", 0), ()
            with contextlib.suppress(NotFoundError):
                value, marks = self._read_version(name, versions[-1])
                return Document(value, versions[-1]), marks
            # Cleaned up between listing and reading: there is a newer one.
        raise ConflictError(f"the document changes faster than it can be read. name={name}")

    def _read_version(self, name: str, version: int) -> tuple[bytes, Marks]:
        return split_marks(self._storage.read(self._key(name, version), 0, _FILE_SIZE_MAX))

    def compare_and_set(self, name: str, value: bytes, *, version: int) -> Document:
        """See ``PropertyStore``."""
        if len(value) > _VALUE_SIZE_MAX:
            raise InvalidRequestError(f"document is too large. name={name} size={len(value)}")
        conflict = ConflictError(f"the document has changed. name={name} version={version}")
        versions = self._versions(name)
        if version != (versions[-1] if versions else 0):
            raise conflict
        try:
            before = self._read_version(name, version)[1] if version else ()
        except NotFoundError:
            raise conflict from None
        own = new_mark()
        self._storage.put_if_absent(self._key(name, version + 1), with_marks(value, own, before))
        versions = self._versions(name)
        if versions and versions[-1] != version + 1 and not self._counted(name, own, version + 1):
            raise conflict
        self._beliefs.forget(name)
        for old in versions[: -self._versions_kept]:
            self._storage.delete(self._key(name, old))
        return Document(value, version + 1)

    def _counted(self, name: str, own: str, version: int) -> bool:
        """Others are ahead: did they build on the version that was set with this mark?

        Raises:
            UnavailableError: so many came after that nobody knows.
        """
        document, marks = self._read(name)
        if own in marks:
            return True
        if 0 < document.version - version < MARKS_MAX:
            return False
        raise UnavailableError(
            f"the document was set, or was not: too many others set it since. name={name} "
            f"version={version} now={document.version}"
        )

    @property
    def lease_s(self) -> float:
        """See ``PropertyStore``: every look at a disk of this machine is fresh."""
        return 0.0 if self._is_near else BELIEVED_S

    def settle(self, name: str, version: int) -> None:
        """See ``PropertyStore``."""
        del name, version
        if not self._is_near:
            self._beliefs.outlive()

    def is_current(self, name: str, version: int) -> bool:
        """See ``PropertyStore``: two looks at the directory, no listing.

        Versions are deleted lowest first, so where the next one is missing because it was
        deleted, this one is missing too.
        """
        if self._is_near or version == 0:
            return self._look(name, version)
        if self._beliefs.holds(name, version):
            return True
        asked_s = since_boot_s()
        is_current = self._look(name, version)
        if is_current:
            self._beliefs.hear(name, version, asked_s)
        return is_current

    def _look(self, name: str, version: int) -> bool:
        if version == 0:
            return not self._versions(name)
        keys = self._looked_at.get((name, version))
        if keys is None:
            keys = self._key(name, version + 1), self._key(name, version)
            self._looked_at = {(name, version): keys}
        return not self._storage.exists(keys[0]) and self._storage.exists(keys[1])

    def list(self, prefix: str) -> Sequence[str]:
        """See ``PropertyStore``."""
        place = f"{self._root}/{prefix}" if prefix else self._root
        names = [
            e.name for e in self._storage.list(place) if e.is_directory and e.name[0] not in "_."
        ]
        return sorted(f"{prefix}/{name}" if prefix else name for name in names)

    def delete(self, name: str) -> None:
        """See ``PropertyStore``."""
        self._storage.delete_tree(f"{self._root}/{name}")
        self._beliefs.forget(name)

    def delete_all(self) -> None:
        """See ``PropertyStore``; returns when nobody can believe any more that it is there."""
        self._storage.delete_tree(self._root)
        self.settle("", 0)

    def watch(self, name: str, tell: Callable[[Document], None]) -> Watch:
        """See ``PropertyStore``."""
        return PollingWatch(self, name, tell)

    def claim(self, name: str) -> Lock:
        """See ``PropertyStore``."""
        if isinstance(self._storage, LockingStorage):
            return self._storage.lock(f"{self._root}/_claims/{name}")
        return self._claims.claim(name)

    def holders(self, prefix: str) -> Sequence[str]:
        """See ``PropertyStore``."""
        storage = self._storage
        if not isinstance(storage, LockingStorage):
            return self._claims.holders(prefix)
        place = f"{self._root}/_claims/{prefix}"
        names = sorted(e.name for e in storage.list(place) if not e.is_directory)
        return [f"{prefix}/{n}" for n in names if storage.is_locked(f"{place}/{n}")]
