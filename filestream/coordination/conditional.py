r"""The property store on a bucket: one object a document, replaced if nobody else did (``If-Match``).

Layout below the root key::

    <name>.doc                  value, b"version:<n> crc32c:<8 hex digits>\n", the line of marks
    _claims/<name>.doc          who holds a claim, and since when: see ``claims.py``

The store compares tags, we compare versions: a tag is read with its version and never leaves this room.
A replacement whose answer was lost is found again by its mark.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from filestream.clock import since_boot_s
from filestream.codec import crc32c
from filestream.coordination.base import Document, PropertyStore, Watch
from filestream.coordination.belief import BELIEVED_S, Beliefs
from filestream.coordination.claims import LEASE_S, LeasedClaims
from filestream.coordination.marks import MARKS_MAX, Marks, new_mark, split_marks, with_marks
from filestream.coordination.polling import PollingWatch
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from filestream.storage.base import Lock, ReplacingStorage

__all__ = ["ConditionalPropertyStore"]


_SUFFIX: Final = ".doc"
_VALUE_SIZE_MAX: Final = 1 << 20
_VERSION: Final = re.compile(rb"(version:([0-9]{1,18})) crc32c:([0-9a-f]{8})\n\Z")
_TRIES: Final = 4
# Each look is a request that costs money.
_WATCH_INTERVAL_S: Final = 1.0


class ConditionalPropertyStore(PropertyStore):
    """Documents as objects beside the stream.

    Args:
        storage: where the stream lives.
        root: key below which the documents are kept.
        lease_s: of claims.
    """

    def __init__(self, storage: ReplacingStorage, root: str, *, lease_s: float = LEASE_S) -> None:
        self._storage = storage
        self._root = root
        self._claims = LeasedClaims(self, lease_s)
        self._beliefs = Beliefs()
        # Tags of the versions that ``is_current`` asks about all the time.
        self._tags: dict[str, tuple[int, str]] = {}

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}{_SUFFIX}"

    def get(self, name: str) -> Document:
        """See ``PropertyStore``."""
        return self._read(name)[0]

    def _read(self, name: str) -> tuple[Document, Marks, str]:
        key = self._key(name)
        asked_s = since_boot_s()
        try:
            data, tag = self._storage.get(key)
        except NotFoundError:
            return Document(b"", 0), (), ""
        value, marks = split_marks(data)
        match = _VERSION.search(value)
        if match is None or not marks or match[3] != b"%08x" % crc32c(match[1]):
            raise CorruptDataError("a document is damaged.", url=self._storage.url_of(key))
        document = Document(value[: match.start()], int(match[2]))
        self._tags[name] = (document.version, tag)
        self._beliefs.hear(name, document.version, asked_s)
        return document, marks, tag

    def compare_and_set(self, name: str, value: bytes, *, version: int) -> Document:
        """See ``PropertyStore``."""
        if len(value) > _VALUE_SIZE_MAX:
            raise InvalidRequestError(f"document is too large. name={name} size={len(value)}")
        own = new_mark()
        failure = UnavailableError(f"the document was not set. name={name}")
        for tries in range(_TRIES):
            document, marks, tag = self._read(name)
            if tries and own in marks:
                break  # The answer to an earlier try was lost.
            if document.version != version:
                if tries and not 0 < document.version - version < MARKS_MAX:
                    raise failure
                raise ConflictError(f"the document has changed. name={name} version={version}")
            data = with_marks(value + _version_line(version + 1), own, marks)
            try:
                if version:
                    self._storage.replace(self._key(name), data, tag)
                else:
                    self._storage.put_if_absent(self._key(name), data)
            except (UnavailableError, ConflictError) as error:
                # It may be there all the same, also after a conflict: the store may have tried
                # again by itself. The next look tells.
                failure = UnavailableError(str(error))
                continue
            break
        else:
            raise failure
        self._beliefs.forget(name)
        return Document(value, version + 1)

    @property
    def lease_s(self) -> float:
        """See ``PropertyStore``."""
        return BELIEVED_S

    def settle(self, name: str, version: int) -> None:
        """See ``PropertyStore``."""
        del name, version
        self._beliefs.outlive()

    def is_current(self, name: str, version: int) -> bool:
        """See ``PropertyStore``: one conditional look a second."""
        if self._beliefs.holds(name, version):
            return True
        known, tag = self._tags.get(name, (-1, ""))
        if known == version:
            asked_s = since_boot_s()
            if self._storage.is_unchanged(self._key(name), tag):
                self._beliefs.hear(name, version, asked_s)
                return True
        return self._read(name)[0].version == version

    def list(self, prefix: str) -> Sequence[str]:
        """See ``PropertyStore``."""
        place = f"{self._root}/{prefix}" if prefix else self._root
        names = {
            entry.name if entry.is_directory else entry.name.removesuffix(_SUFFIX)
            for entry in self._storage.list(place)
            if entry.name[0] not in "_." and (entry.is_directory or entry.name.endswith(_SUFFIX))
        }
        return sorted(f"{prefix}/{name}" if prefix else name for name in names)

    def delete(self, name: str) -> None:
        """See ``PropertyStore``."""
        self._storage.delete(self._key(name))
        self._beliefs.forget(name)

    def delete_all(self) -> None:
        """See ``PropertyStore``; returns when nobody can believe any more that it is there."""
        self._storage.delete_tree(self._root)
        self._beliefs.outlive()

    def watch(self, name: str, tell: Callable[[Document], None]) -> Watch:
        """See ``PropertyStore``."""
        return PollingWatch(self, name, tell, interval_s=_WATCH_INTERVAL_S)

    def claim(self, name: str) -> Lock:
        """See ``PropertyStore``."""
        return self._claims.claim(name)

    def holders(self, prefix: str) -> Sequence[str]:
        """See ``PropertyStore``."""
        return self._claims.holders(prefix)


def _version_line(version: int) -> bytes:
    said = b"version:%d" % version
    return b"%s crc32c:%08x\n" % (said, crc32c(said))
