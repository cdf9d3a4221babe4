"""A journal: segments on a disk of this machine that are not in the store yet.

    <root>/<stream id>/<writer>.<journal id>/journal.json    it exists
                                             lock            held while it is used
                                             <generation>/<partition>/<writer>.<sequence>.dat

While a journal may hold events, the stream says where it is: the document ``journals/<writer>`` names
its id, host and directory. So a writer that is opened somewhere else finds out that acknowledged events
are missing there, and does not begin. A journal that the stream does not name was given up, and is never
brought to the store; its files stay until somebody removes them.
"""

import contextlib
import logging
import os
import random
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from filestream.coordination.base import Document, PropertyStore
from filestream.documents import decode_document, encode_document
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    FilestreamError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
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
        directory: on that host; what to give as ``journal``.
    """

    writer_id: str
    journal_id: str
    host: str
    directory: str


class Journal:
    """The files of one journal, held by this process until ``close``.

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

    def size(self, segment: Segment) -> int:
        """Bytes of a segment's events; 0 when it is gone."""
        try:
            return self._folder.size(segment.data_key)
        except NotFoundError:
            return 0

    def delete(self) -> None:
        """Remove the journal, and release it.

        Raises:
            ConflictError: there are segments in it.
        """
        if segments := self.segments():
            raise ConflictError(f"{len(segments)} segments are in the journal. url={self.url}")
        self._folder.delete_tree("")
        self.close()

    def close(self) -> None:
        """Let another process have it; may be called twice."""
        self._lock.close()


class Journals:
    """The journals of one stream.

    Args:
        store: of the stream.
        root: directory of all journals on this machine; None for that of ``default_root``.
        stream_id: of the stream.
        url: of the stream, for errors.
    """

    def __init__(
        self, store: PropertyStore, root: str | os.PathLike[str] | None, stream_id: str, url: str
    ) -> None:
        self._store = store
        self._given_root = root
        self._stream_id = stream_id
        self._url = url

    @cached_property
    def _root(self) -> Path:
        # Looked up late: most streams have no journal, and some processes no home.
        try:
            given = default_root(os.environ) if self._given_root is None else self._given_root
            if not os.fspath(given) or "://" in os.fspath(given):
                raise InvalidRequestError(
                    f"a journal lies in a directory of this machine. journal={os.fspath(given)!r}"
                )
            root = Path(given).expanduser().absolute()
        except RuntimeError as error:
            raise InvalidRequestError(
                f"no place for journals: {error} Give journal=, or set FILESTREAM_JOURNAL."
            ) from error
        return root / self._stream_id

    def named(self, writer_id: str) -> JournalPlace | None:
        """The journal that the stream names for a writer, here or elsewhere."""
        return _parse(writer_id, self._store.get(f"{_DOCUMENTS}/{writer_id}"), self._url)

    def is_here(self, place: JournalPlace) -> bool:
        """Whether this machine has it, below our root."""
        try:
            return self._folder(place.writer_id, place.journal_id).exists(_MARKER)
        except InvalidRequestError:
            return False

    def is_elsewhere(self, writer_id: str) -> bool:
        """Whether the stream names a journal of this writer that is not here."""
        place = self.named(writer_id)
        return place is not None and not self.is_here(place)

    def writers_here(self) -> Sequence[str]:
        """Writers of which there are journals below our root, named by the stream or not."""
        return sorted({writer_id for writer_id, _ in self._here()})

    def recover(
        self, writer_id: str, ship: Callable[[Journal], None], *, takeover: bool = False
    ) -> None:
        """Bring what a journal holds to the store, if there is one; the writer id must be held.

        Args:
            ship: brings all segments of a journal to the store.
            takeover: give up what a journal holds that is not here, or cannot be brought there.

        Raises:
            ConflictError: the journal is not here, or another living process holds it, or another
                one has written what it holds.
            CorruptDataError: it is damaged.
            UnavailableError: the store failed.
        """
        place = self.named(writer_id)
        if place is not None:
            if self.is_here(place):
                self._recover_here(place, ship, takeover=takeover)
            elif takeover:
                self._give_up(place)
            else:
                raise ConflictError(
                    f"writer {writer_id!r} has a journal that may hold events which are not in the "
                    f"store yet. It is on host {place.host}: open the writer there once, with the "
                    f"journal {place.directory}, or give those events up with takeover. "
                    f"url={self._url}"
                )
        for here, journal_id in self._here():
            if here == writer_id:
                # Nobody waits for what is in it, so nothing about it is in the way.
                with contextlib.suppress(FilestreamError):
                    self._look_at_given_up(Journal(self._folder(writer_id, journal_id), writer_id))

    def begin(self, writer_id: str, chance: random.Random) -> Journal:
        """A new journal, which the stream names; ``recover`` was called before.

        Raises:
            UnavailableError: the disk or the store failed.
        """
        journal_id = f"{chance.getrandbits(128):032x}"
        folder = self._folder(writer_id, journal_id)
        # First the files, then the name: what the stream names is there.
        marker = encode_document({"stream": self._url, "writer": writer_id})
        try:
            folder.put_if_absent(_MARKER, marker)
            journal = Journal(folder, writer_id)
        except FilestreamError as error:
            kind = UnavailableError if isinstance(error, UnavailableError) else InvalidRequestError
            raise kind(f"no journal can be kept here, give another directory: {error}") from error
        directory = str(self._root.parent)
        try:
            place = JournalPlace(writer_id, journal_id, socket.gethostname(), directory)
            self._name(writer_id, place, "")
        except BaseException:
            journal.close()
            raise
        return journal

    def end(self, journal: Journal) -> None:
        """Remove a journal whose segments are all in the store."""
        try:
            self._name(journal.writer_id, None, journal.id)
        except FencedError as error:
            # Given up by another process, and nothing was in it.
            logger.info("%s", error)
        journal.delete()

    def _recover_here(
        self, place: JournalPlace, ship: Callable[[Journal], None], *, takeover: bool
    ) -> None:
        folder = self._folder(place.writer_id, place.journal_id)
        try:
            with contextlib.closing(Journal(folder, place.writer_id)) as journal:
                ship(journal)
                self.end(journal)
        except (ConflictError, CorruptDataError) as error:
            if takeover:
                self._give_up(place)
            elif isinstance(error, CorruptDataError):
                raise CorruptDataError(
                    f"the journal of writer {place.writer_id!r} is damaged: {error.message} What is "
                    "before that place is in the store, or can be read; mend the file, or give up "
                    "what is not in the store with takeover: its files stay.",
                    url=error.url,
                    position=error.position,
                ) from error
            else:
                raise

    def _give_up(self, place: JournalPlace) -> None:
        logger.warning(
            "gave up the events in the journal of %s on host %s, below %s",
            place.writer_id,
            place.host,
            place.directory,
        )
        self._name(place.writer_id, None, place.journal_id)

    def _look_at_given_up(self, journal: Journal) -> None:
        """The stream does not name it: died before it was, or given up while it held something."""
        try:
            if journal.segments():
                logger.warning(
                    "a journal was given up with events in it; remove it when nobody wants them: %s",
                    journal.url,
                )
            else:
                journal.delete()
        finally:
            journal.close()

    def _folder(self, writer_id: str, journal_id: str) -> LocalStorage:
        return LocalStorage(self._root / f"{writer_id}.{journal_id}")

    def _here(self) -> Sequence[tuple[str, str]]:
        try:
            entries = LocalStorage(self._root).list("")
        except InvalidRequestError:
            return []
        found = (_NAME.fullmatch(entry.name) for entry in entries if entry.is_directory)
        return sorted((match[1], match[2]) for match in found if match)

    def _name(self, writer_id: str, place: JournalPlace | None, instead_of: str) -> None:
        """Have the stream name a journal, or none, unless it names another by now."""
        value = {"journal": ""}
        if place is not None:
            value = {
                "journal": place.journal_id,
                "host": place.host,
                "directory": place.directory,
            }

        def change(before: Document) -> bytes:
            named = _parse(writer_id, before, self._url)
            if (named.journal_id if named else "") != instead_of:
                raise FencedError(
                    f"another process has a journal of writer {writer_id!r} by now. url={self._url}"
                )
            return encode_document(value)

        self._store.update(f"{_DOCUMENTS}/{writer_id}", change)


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
