"""A journal: segments on a disk of this machine that are not in the store yet.

    <root>/<stream id>/<writer>.<journal id>/journal.json    it exists
                                             lock            held while it is used
                                             <generation>/<partition>/<writer>.<sequence>.dat

While a journal may hold events, the stream says where it is: the document ``journals/<writer>`` names
its id, host and directory. So a writer that is opened somewhere else finds out that acknowledged events
are missing there, and does not begin. A journal that the stream does not name was given up, and is never
brought to the store; its files stay until somebody removes them.
"""

import logging
import os
import random
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filestream.coordination.base import Document, PropertyStore
from filestream.documents import decode_document, encode_document
from filestream.errors import ConflictError, CorruptDataError
from filestream.partitions.catalog import Catalog
from filestream.partitions.layout import Segment
from filestream.partitions.packed_storage import PackedStorage
from filestream.storage.base import Lock
from filestream.storage.local import LocalStorage

__all__ = ["Journal", "JournalPlace", "Journals", "default_root", "journals_of"]

logger = logging.getLogger(__name__)

_DOCUMENTS: Final = "journals"
_MARKER: Final = "journal.json"
_NAME: Final = re.compile(r"(.+)\.([0-9a-f]{32})")


def default_root(environment: Mapping[str, str]) -> str:
    """Where journals are kept when nobody says: the user's place for what programs must not lose."""
    given = environment.get("FILESTREAM_JOURNAL")
    if given:
        return given
    state = environment.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return f"{state}/filestream/journals"


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """Where a journal that may hold events is.

    Attributes:
        directory: on that host.
    """

    writer_id: str
    journal_id: str
    host: str
    directory: str


class Journal:
    """The files of one journal, held by this process until ``release``.

    Raises:
        ConflictError: another living process holds it.
    """

    def __init__(self, folder: LocalStorage, writer_id: str) -> None:
        self._folder = folder
        self.writer_id = writer_id
        self.id = folder.url.rpartition(".")[2]
        self.storage = PackedStorage(folder)
        self._lock: Lock = folder.lock("lock")

    @property
    def url(self) -> str:
        """Of its directory."""
        return self._folder.url

    def segments(self) -> list[Segment]:
        """What it holds, in the order of time."""
        catalog = Catalog(self.storage)
        return sorted(
            segment
            for generation in catalog.generations()
            for directory in catalog.partitions(generation)
            for segment in catalog.survey(directory).segments
        )

    def remove(self, segment: Segment) -> None:
        """A segment is in the store now."""
        self._folder.delete(segment.index_key)
        self._folder.delete(segment.data_key)

    def delete(self) -> None:
        """Remove the journal with everything in it, and release it."""
        self._folder.delete_tree("")
        self.release()

    def release(self) -> None:
        """Let another process have it; may be called twice."""
        self._lock.close()


class Journals:
    """The journals of one stream.

    Args:
        store: of the stream.
        root: directory of all journals on this machine.
        stream_id: of the stream.
        url: of the stream, for errors.
    """

    def __init__(
        self, store: PropertyStore, root: str | os.PathLike[str], stream_id: str, url: str
    ) -> None:
        self._store = store
        self._root = Path(root).expanduser().absolute() / stream_id
        self._url = url

    def named(self, writer_id: str) -> JournalPlace | None:
        """The journal that the stream names for a writer, here or elsewhere."""
        return _parse(writer_id, self._store.get(f"{_DOCUMENTS}/{writer_id}"), self._url)

    def is_here(self, place: JournalPlace) -> bool:
        """Whether this machine has it, below our root."""
        return self._folder(place.writer_id, place.journal_id).exists(_MARKER)

    def is_elsewhere(self, writer_id: str) -> bool:
        """Whether the stream names a journal of this writer that is not here."""
        place = self.named(writer_id)
        return place is not None and not self.is_here(place)

    def writers_here(self) -> Sequence[str]:
        """Writers of which there are journals below our root, named by the stream or not."""
        return sorted({writer_id for writer_id, _ in self._here()})

    def recover(
        self, writer_id: str, ship: Callable[[Journal], None], *, take_over: bool = False
    ) -> None:
        """Bring what a journal holds to the store, if there is one; the writer id must be held.

        Args:
            ship: brings all segments of a journal to the store.
            take_over: give up what a journal holds that is not here.

        Raises:
            ConflictError: the journal is not here, or another living process holds it.
            CorruptDataError: it is damaged.
            UnavailableError: the store failed.
        """
        place = self.named(writer_id)
        if place is not None:
            if self.is_here(place):
                journal = Journal(self._folder(writer_id, place.journal_id), writer_id)
                try:
                    ship(journal)
                    self._name(writer_id, None)
                    journal.delete()
                finally:
                    journal.release()
            elif take_over:
                logger.warning("gave up the events in a journal: %s", place)
                self._name(writer_id, None)
            else:
                raise ConflictError(
                    f"writer {writer_id!r} has a journal that may hold events which are not in the "
                    f"store yet. It is on {place.host} in {place.directory}: open the writer there "
                    f"once, or give those events up with take_over. url={self._url}"
                )
        for here, journal_id in self._here():
            if here == writer_id:
                self._look_at_given_up(Journal(self._folder(writer_id, journal_id), writer_id))

    def begin(self, writer_id: str, chance: random.Random) -> Journal:
        """A new journal, which the stream names; ``recover`` was called before.

        Raises:
            UnavailableError: the disk or the store failed.
        """
        journal_id = f"{chance.getrandbits(128):032x}"
        folder = self._folder(writer_id, journal_id)
        # First the files, then the name: what the stream names is there.
        folder.put_if_absent(_MARKER, encode_document({"stream": self._url, "writer": writer_id}))
        journal = Journal(folder, writer_id)
        directory = str(self._root / f"{writer_id}.{journal_id}")
        try:
            self._name(
                writer_id, JournalPlace(writer_id, journal_id, socket.gethostname(), directory)
            )
        except BaseException:
            journal.release()
            raise
        return journal

    def end(self, journal: Journal) -> None:
        """Remove a journal whose segments are all in the store."""
        self._name(journal.writer_id, None)
        journal.delete()

    def _look_at_given_up(self, journal: Journal) -> None:
        """The stream does not name it: died before it was, or given up while it held something."""
        try:
            if journal.segments():
                logger.warning("a journal was given up with events in it: %s", journal.url)
            else:
                journal.delete()
        finally:
            journal.release()

    def _folder(self, writer_id: str, journal_id: str) -> LocalStorage:
        return LocalStorage(self._root / f"{writer_id}.{journal_id}")

    def _here(self) -> Sequence[tuple[str, str]]:
        entries = LocalStorage(self._root).list("")
        found = (_NAME.fullmatch(entry.name) for entry in entries if entry.is_directory)
        return sorted((match[1], match[2]) for match in found if match)

    def _name(self, writer_id: str, place: JournalPlace | None) -> None:
        """Have the stream name a journal, or none; only who holds the writer id does."""
        value = {"journal": ""}
        if place is not None:
            value = {
                "journal": place.journal_id,
                "host": place.host,
                "directory": place.directory,
            }
        self._store.update(f"{_DOCUMENTS}/{writer_id}", lambda _: encode_document(value))


def journals_of(store: PropertyStore, url: str) -> list[JournalPlace]:
    """All journals that a stream names, on whatever machine."""
    found = (_parse(name, store.get(f"{_DOCUMENTS}/{name}"), url) for name in _names(store))
    return [place for place in found if place is not None]


def _names(store: PropertyStore) -> Sequence[str]:
    return [name.removeprefix(f"{_DOCUMENTS}/") for name in store.list(_DOCUMENTS)]


def _parse(writer_id: str, document: Document, url: str) -> JournalPlace | None:
    if document.version == 0:
        return None
    raw = decode_document(document.value, url=url)
    if not raw.get("journal"):
        return None
    try:
        return JournalPlace(writer_id, str(raw["journal"]), str(raw["host"]), str(raw["directory"]))
    except KeyError as error:
        raise CorruptDataError("the document of a journal is damaged.", url=url) from error
