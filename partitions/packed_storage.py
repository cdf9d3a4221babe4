"""A storage in which packed segments still seem to stand where they were written.

Compaction puts the segments of one writer into a pack and removes them; all other rooms go on asking for
``<writer>.<sequence>.dat``. This is the one place that knows better: it shows the segments of a pack
in listings instead of what may be left of them, and reads them from it. So offsets, the states
of groups and checkpoints mean what they meant, and whoever listed before, and finds a file gone,
gets it from the pack.
"""

import os
import threading
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Final

from filestream.errors import CorruptDataError, NotFoundError
from filestream.packfile import PackIndex
from filestream.partitions.layout import Pack, Segment, parse_pack_file, parse_segment_name
from filestream.partitions.packs import read_index
from filestream.storage.base import Appender, Entry, Storage, Waker

__all__ = ["PackedStorage"]

# What is read of a pack at once, and kept: chains are read forward, each from one pack at a time.
_PAGE_SIZE_BYTES_MAX: Final = 4 << 20
_PAGE_SIZE_BYTES_MIN: Final = 256 << 10
_PAGES_SIZE_BYTES: Final = 32 << 20
_INDEXES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class _Page:
    start: int
    data: bytes


class _Index:
    """Where the segments of one pack begin, for quick questions."""

    __slots__ = ("pack", "starts")

    def __init__(self, pack: Pack, index: PackIndex) -> None:
        self.pack = pack
        self.starts = array("Q", accumulate(index.sizes, initial=0))

    def range_of(self, sequence: int) -> tuple[int, int]:
        """First byte of a segment in the pack, and the one behind its last."""
        at = sequence - self.pack.first
        return self.starts[at], self.starts[at + 1]


class PackedStorage(Storage):
    """A ``Storage`` around another; safe for threads, small enough to pickle.

    Args:
        inner: where the files are.

    Attributes:
        inner: for those who must see packs as files: compaction, and the documents of coordination.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.url = inner.url
        self.is_durable = inner.is_durable
        self.can_append = inner.can_append
        self.fences = inner.fences
        self.levels = inner.levels
        # Guards all below; never held over a request.
        self._mutex = threading.Lock()
        # As the last listing of each directory showed them; directories without are not in it.
        self._packs: dict[str, dict[str, list[Pack]]] = {}
        self._indexes: OrderedDict[Pack, _Index] = OrderedDict()
        self._pages: OrderedDict[Pack, _Page] = OrderedDict()
        self._pages_size = 0
        _all.add(self)

    def __reduce__(self) -> tuple[type["PackedStorage"], tuple[Storage]]:
        return PackedStorage, (self.inner,)

    @property
    def reads_open_files(self) -> bool:  # type: ignore[override]
        """See ``Storage``; asked anew, as a store may have to ask a server."""
        return self.inner.reads_open_files

    def forget_parent(self) -> None:
        """In a forked child: a thread of the parent may have held the lock."""
        self._mutex = threading.Lock()

    def is_packed(self, key: str) -> bool:
        """Whether a pack that is there now holds this event file; always asks.

        Raises:
            UnavailableError: the store failed.
        """
        self.list(key.rpartition("/")[0])
        return self.holds(key)

    def was_packed(self, segment: Segment, now_ms: int) -> bool:
        """Whether a segment that was made just now took a name that had been packed and removed.

        Only partitions that have ended are compacted, so for live events nobody is asked.

        Raises:
            UnavailableError: the store failed.
        """
        return now_ms >= segment.partition.end_ms and self.is_packed(segment.data_key)

    def holds(self, key: str) -> bool:
        """Whether a pack that was listed holds this file; asks nobody."""
        return self._pack_of(key) is not None

    def packs_in(self, directory: str) -> Sequence[Pack]:
        """Packs of a directory, as it was listed last."""
        return [pack for packs in self._packs.get(directory, {}).values() for pack in packs]

    def forget(self, pack: Pack) -> None:
        """What is known of where its segments begin holds no more."""
        with self._mutex:
            self._indexes.pop(pack, None)

    # -- what packs change -------------------------------------------------------------------

    def list(self, prefix: str) -> Sequence[Entry]:
        """Names below a directory, those of packed segments among them."""
        entries = self.inner.list(prefix)
        packs = _packs_among(prefix, entries)
        with self._mutex:
            if not packs:
                self._packs.pop(prefix, None)
                return entries
            self._packs[prefix] = {
                writer_id: list(group)
                for writer_id, group in groupby(packs, key=lambda pack: pack.writer_id)
            }
        folder = f"{prefix}/" if prefix else ""
        loose = [entry for entry in entries if self._pack_of(f"{folder}{entry.name}") is None]
        held = {name for pack in packs for name in pack.segment_names()}
        return [*loose, *(Entry(name, False) for name in held)]

    def read(self, key: str, position: int, size: int) -> bytes:
        """See ``Storage``.

        Raises:
            CorruptDataError: a pack is shorter than it was, or its index does not fit it.
        """
        pack = self._pack_of(key)
        if pack is None:
            try:
                return self.inner.read(key, position, size)
            except NotFoundError:
                pack = self._found_packed(key)
                if pack is None:
                    raise
        first, stop = self._range(pack, key)
        start = min(first + position, stop)
        return self._read_pack(pack, start, min(size, stop - start))

    def size(self, key: str) -> int:
        """See ``Storage``."""
        pack = self._pack_of(key)
        if pack is None:
            try:
                return self.inner.size(key)
            except NotFoundError:
                pack = self._found_packed(key)
                if pack is None:
                    raise
        first, stop = self._range(pack, key)
        return stop - first

    def exists(self, key: str) -> bool:
        """See ``Storage``; of packs that nobody listed yet this does not know."""
        pack = self._pack_of(key)
        return key.endswith(".dat") if pack is not None else self.inner.exists(key)

    def delete_tree(self, prefix: str) -> None:
        """See ``Storage``."""
        self.inner.delete_tree(prefix)
        with self._mutex:
            for directory in [d for d in self._packs if f"{d}/".startswith(f"{prefix}/")]:
                del self._packs[directory]

    def _pack_of(self, key: str) -> Pack | None:
        """The pack that holds a file, as far as is known."""
        directory, _, name = key.rpartition("/")
        by_writer = self._packs.get(directory)
        found = parse_segment_name(name) if by_writer is not None else None
        if by_writer is None or found is None:
            return None
        packs = by_writer.get(found[0], ())
        return next((pack for pack in reversed(packs) if pack.covers(int(found[1]))), None)

    def _found_packed(self, key: str) -> Pack | None:
        """The pack that holds a file which is gone; indexes are not kept."""
        return self._pack_of(key) if key.endswith(".dat") and self.is_packed(key) else None

    def _range(self, pack: Pack, key: str) -> tuple[int, int]:
        found = parse_segment_name(key.rpartition("/")[2])
        if found is None or found[2] != "dat":
            raise NotFoundError(f"no such file. url={self.url_of(key)}")
        return self._index_of(pack).range_of(int(found[1]))

    def _index_of(self, pack: Pack) -> _Index:
        with self._mutex:
            index = self._indexes.get(pack)
            if index is not None:
                self._indexes.move_to_end(pack)
                return index
        index = _Index(pack, read_index(self.inner, pack))
        with self._mutex:
            self._indexes[pack] = index
            while len(self._indexes) > _INDEXES_MAX:
                self._indexes.popitem(last=False)
        return index

    def _read_pack(self, pack: Pack, start: int, size: int) -> bytes:
        with self._mutex:
            page = self._pages.get(pack)
            if page is not None and page.start <= start <= start + size <= page.start + len(
                page.data
            ):
                self._pages.move_to_end(pack)
                return page.data[start - page.start : start - page.start + size]
            # The more packs are read side by side, the less is kept of each.
            wanted = _PAGES_SIZE_BYTES // (len(self._pages) + 1)
        wanted = max(size, min(_PAGE_SIZE_BYTES_MAX, max(_PAGE_SIZE_BYTES_MIN, wanted)))
        data = self.inner.read(pack.data_key, start, wanted)
        if len(data) < size:
            raise CorruptDataError(
                "a pack is shorter than its segments are.",
                url=self.inner.url_of(pack.data_key),
                position=start + len(data),
            )
        self._keep(pack, _Page(start, data))
        return data[:size]

    def _keep(self, pack: Pack, page: _Page) -> None:
        with self._mutex:
            before = self._pages.pop(pack, None)
            self._pages[pack] = page
            self._pages_size += len(page.data) - (len(before.data) if before else 0)
            while self._pages_size > _PAGES_SIZE_BYTES and len(self._pages) > 1:
                _, oldest = self._pages.popitem(last=False)
                self._pages_size -= len(oldest.data)

    # -- what they do not --------------------------------------------------------------------

    def url_of(self, key: str) -> str:
        """See ``Storage``."""
        return self.inner.url_of(key)

    def create(self, key: str, *, durable_name: bool = True) -> Appender:
        """See ``Storage``; see ``was_packed`` for names in a partition that has ended."""
        return self.inner.create(key, durable_name=durable_name)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See ``Storage``; see ``was_packed`` for names in a partition that has ended."""
        self.inner.put_if_absent(key, data)

    def delete(self, key: str) -> None:
        """See ``Storage``; what a pack holds stays."""
        self.inner.delete(key)

    def remove_if_empty(self, prefix: str) -> None:
        """See ``Storage``."""
        self.inner.remove_if_empty(prefix)

    def fence(self, key: str) -> None:
        """See ``Storage``."""
        self.inner.fence(key)

    def waker(self) -> Waker | None:
        """See ``Storage``."""
        return self.inner.waker()

    def close(self) -> None:
        """See ``Storage``."""
        self.inner.close()


def _packs_among(directory: str, entries: Sequence[Entry]) -> list[Pack]:
    """Packs that count: not one of which nothing but an index is left, beside all that it held.

    An index comes after its pack, so one alone proves a loss, which whoever reads will meet.
    """
    found = (parse_pack_file(directory, e.name) for e in entries if "-" in e.name[-14:])
    files = list(filter(None, found))
    there = {pack for pack, suffix in files if suffix == "seg"}
    if alone := {pack for pack, _ in files} - there:
        names = {entry.name for entry in entries}
        there |= {pack for pack in alone if not names.issuperset(pack.segment_names())}
    return sorted(there)


_all: Final["weakref.WeakSet[PackedStorage]"] = weakref.WeakSet()


def _renew_locks() -> None:
    for storage in list(_all):
        storage.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
