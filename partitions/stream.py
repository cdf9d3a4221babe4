"""A stream: describe, append, read, truncate, compact. Thin assembly of the rooms around it."""

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from filestream.clock import Clock
from filestream.coordination.base import Document, PropertyStore
from filestream.documents import decode_document, encode_document
from filestream.errors import InvalidRequestError, NotFoundError
from filestream.partitions.catalog import Catalog
from filestream.partitions.compaction import Chore, Compaction, CompactionSettings, compact
from filestream.partitions.description import Description, read_description
from filestream.partitions.event import Event
from filestream.partitions.generations import Generations
from filestream.partitions.growth import GrowthWatch
from filestream.partitions.janitor import Janitor
from filestream.partitions.journal import JournalPlace, Journals, journals_of
from filestream.partitions.layout import DESCRIPTION_KEY, store_key
from filestream.partitions.packed_storage import PackedStorage
from filestream.partitions.positions import PositionLike
from filestream.partitions.retention import Removal, apply_retention
from filestream.partitions.scan import Scan
from filestream.partitions.site import check_level
from filestream.partitions.snapshot import StreamView
from filestream.partitions.summary import Summary, summarise
from filestream.partitions.tail import Tail
from filestream.partitions.verify import Finding, verify
from filestream.partitions.writer import StreamWriter
from filestream.segment_reader import OnCorrupt
from filestream.settings import StreamProperties
from filestream.storage.base import Storage
from filestream.units import parse_size_bytes

__all__ = ["Stream", "Truncation"]

_PROPERTIES: Final = "properties"


@dataclass(frozen=True, slots=True)
class Truncation:
    """What ``Stream.truncate`` did."""

    generation_before: int
    generation: int


class Stream:
    """One stream; cheap to open, safe to share between threads, holds no file open.

    Made by ``filestream.create`` and ``filestream.open``.
    """

    def __init__(
        self,
        storage: Storage,
        store: PropertyStore,
        description: "Description",
        *,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        # All but what is beside it: documents, and the description, are never packed.
        self._storage = PackedStorage(storage)
        self._store = store
        self._description = description
        self._clock = clock
        self._chance = chance
        self._generations = Generations(store, storage.url)

    @property
    def url(self) -> str:
        """Of the stream's directory."""
        return self._storage.url

    @property
    def name(self) -> str:
        """Last part of the URL."""
        return self._storage.url.rstrip("/").rpartition("/")[2]

    @property
    def id(self) -> str:
        """32 hex digits; a stream that is deleted and created again has another."""
        return self._description.id

    @property
    def coordination(self) -> str:
        """Where generations, properties and groups are kept: as it was given to ``create``."""
        return self._description.coordination

    @property
    def acknowledged_survives(self) -> str:
        """What an acknowledged event survives here, at the level of now; for people."""
        return self._storage.levels.get(self.properties.acknowledgement, "unknown")

    @property
    def generation(self) -> int:
        """The current generation, 1-based; read from the property store on each look.

        Raises:
            NotFoundError: the stream was deleted.
        """
        return self._generations.current().number

    @property
    def properties(self) -> StreamProperties:
        """The properties as they are now."""
        document = self._store.get(_PROPERTIES)
        return self._parse_properties(document)

    def update_properties(self, /, **changes: object) -> StreamProperties:
        """Change some properties: ``ttl="30d"``, ``segment_size="256MiB"``; see ``StreamProperties``.

        Writers that are open go on with what they were opened with.

        Raises:
            InvalidRequestError: an unknown name, a bad value, or one that is fixed at creation.
        """
        self._generations.current()  # Raises when the stream was deleted.

        def change(before: Document) -> bytes:
            changed = self._parse_properties(before).changed(changes)
            check_level(self._storage, changed)
            return encode_document(changed.to_json())

        return self._parse_properties(self._store.update(_PROPERTIES, change))

    def writer(
        self,
        writer_id: str | None = None,
        *,
        retention_every: str | float | None = None,
        journal: str | os.PathLike[str] | None = None,
        takeover: bool = False,
    ) -> StreamWriter:
        """Open a writer; use it with ``with``, share it among the threads of the process.

        Args:
            writer_id: names the writer's files. None takes the first of ``file.0``,
                ``file.1``, ... that no living process holds.
            retention_every: apply retention and ttl so often (``"10m"``), if no other process does;
                see ``janitor``.
            journal: directory for journals, at level ``journal``; on a disk of this machine that is
                there after a restart. None takes ``FILESTREAM_JOURNAL`` from the environment, or
                ``~/.local/state/filestream/journals``. Events that an earlier writer with this id
                left in it go to the store before this returns.
            takeover: give up the events of a journal that is somewhere else, such as on a machine
                that was lost.

        Raises:
            ConflictError: another living process writes under this id, or its journal is not here.
            NotFoundError: the stream was deleted.
        """
        self._generations.current()
        if self._storage.can_append and (journal is not None or takeover):
            raise InvalidRequestError(
                "journals are for streams in a bucket: here segments grow where they stay. "
                f"url={self.url}"
            )
        return StreamWriter(
            self._storage,
            self._store,
            stream_name=self.name,
            properties=self.properties,
            clock=self._clock,
            chance=self._chance,
            journals=Journals(self._store, journal, self.id, self.url),
            writer_id=writer_id,
            takeover=takeover,
            janitor=None if retention_every is None else self.janitor(every=retention_every),
        )

    def read(
        self,
        start: PositionLike = "start",
        end: PositionLike = "end",
        *,
        on_corrupt: OnCorrupt = "raise",
    ) -> Iterator[Event]:
        """Events from ``start``, included, to ``end``, excluded, in the merged order.

        Args:
            start, end: ``"start"``, ``"end"``, ``"-100"``, ``"@2026-11-20T10:00Z"``,
                ``"@-10m"``, an ``Offset`` or its text, a ``datetime``. A time without a zone
                is UTC, so that a program means the same on every machine.
            on_corrupt: ``"skip"`` steps over damaged blocks and logs what was lost.

        Raises:
            InvalidRequestError: no such position.
            CorruptDataError: damage; what came before it was delivered.
            FencedError: the stream was truncated meanwhile; read it again.
            NotFoundError: the stream was deleted.
        """
        return self.scan(start, end, on_corrupt=on_corrupt).events()

    def tail(
        self,
        start: PositionLike = "end",
        *,
        timeout: str | float | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> Tail:
        """Events from ``start`` on, and then whatever comes, for ever.

        Args:
            start: as ``read``.
            timeout: end when nothing came for so long (``"5s"``, or seconds).
            on_corrupt: as ``read``.
        """
        return Tail(self.view(), start, timeout=timeout, on_corrupt=on_corrupt)

    def scan(
        self,
        start: PositionLike = "start",
        end: PositionLike = "end",
        *,
        columns: Sequence[str] | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> Scan:
        """The same as ``read`` for Arrow: hand it to pyarrow, Polars or DuckDB.

        Args:
            start, end, on_corrupt: as ``read``.
            columns: some of timestamp, offset, headers, body, generation, partition, writer,
                sequence, position, index; ``"*"`` for all; default timestamp, headers, body.
                What is not asked for costs nothing.
        """
        return Scan(self.view(), start, end, columns=columns, on_corrupt=on_corrupt)

    def truncate(self) -> Truncation:
        """Start the next generation: every event so far is gone for readers.

        When this returns, no append that begins later can be acknowledged in the old generation,
        by any process. With ZooKeeper that takes as long as every writer needs to hear of it: some
        milliseconds, or the lease of a writer that is stopped or cut off (three quarters of the
        session timeout). The files stay until ``retention`` removes them.

        Raises:
            NotFoundError: the stream was deleted.
        """
        return Truncation(*self._generations.advance(self._clock.now_ms()))

    def apply_retention(self, *, dry_run: bool = False) -> list[Removal]:
        """Remove what no reader can see any more: truncated generations, expired partitions.

        Args:
            dry_run: only say what would go.

        Returns:
            What was removed.
        """
        return apply_retention(
            self._storage,
            self._generations.current(),
            self.properties,
            now_ms=self._clock.now_ms(),
            dry_run=dry_run,
        )

    def compact(
        self,
        *,
        after: str | float = "10m",
        grace: str | float = "1h",
        pack_size: str | int = "64MiB",
        dry_run: bool = False,
        work: Callable[[Sequence[Chore]], Iterable[Compaction]] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Compaction:
        """Put the small segments of finished partitions into packs, and remove what was packed before.

        Nothing changes for readers, groups and checkpoints: every offset goes on to hold. May be
        interrupted or killed at any point, and run at any time.

        Args:
            after: a partition is finished so long after its end; at least ``"1m"``.
            grace: segments are removed by a later call, so long after they were packed; at least
                ``"1m"``, longer than any listing that may be under way.
            pack_size: about so large; 1 MiB to 1 GiB, and read into memory at once.
            dry_run: read everything, change nothing.
            work: does the chores somewhere else; see ``filestream.consumers.spark.compaction``.
            progress: told how many chores of how many are done.

        Raises:
            ConflictError: another process compacts the stream.
            InvalidRequestError: a bad value.
        """
        settings = CompactionSettings.parse(after, grace, pack_size, dry_run=dry_run)
        return compact(self.view(), self._store, settings, work=work, progress=progress)

    def janitor(
        self,
        *,
        every: str | float = "10m",
        tell: Callable[[Sequence[Removal]], None] | None = None,
    ) -> Janitor:
        """What applies retention from time to time, in one process of many.

        Args:
            every: how often.
            tell: is called with what was removed, and with nothing when this process is elected.

        Returns:
            ``start()`` it on a thread or ``run()`` it on this one; ``close()`` ends both.
        """
        return Janitor(self._store, self.apply_retention, clock=self._clock, every=every, tell=tell)

    def watch_size(
        self,
        threshold: str | int,
        *,
        since: PositionLike = "end",
        timeout: str | float | None = None,
    ) -> GrowthWatch:
        """Tell each time the stream has grown by so much: ``for growth in stream.watch_size("64MB")``.

        Args:
            threshold: in bytes, of event files.
            since: what lies behind this position has grown already; see ``read``.
            timeout: end when there was nothing to tell for so long.
        """
        size = parse_size_bytes(threshold)
        return GrowthWatch(self.view(), size, since=since, timeout=timeout)

    def journals(self) -> list[JournalPlace]:
        """Journals that may hold events which are not in the store yet, on whatever machine."""
        return journals_of(self._store, self.url)

    def summary(self) -> Summary:
        """Counts, sizes and times of what is there, from footers and heads of blocks."""
        return summarise(self.view())

    def verify(
        self, *, rebuild_index: bool = False, progress: Callable[[int], None] | None = None
    ) -> Iterator[Finding]:
        """Check every byte of the current generation; see ``filestream.partitions.verify``."""
        return verify(self.view(), self.name, rebuild_index=rebuild_index, progress=progress)

    def delete(self) -> None:
        """Remove the stream with everything in it; it never comes back.

        Raises:
            NotFoundError: there is none (any more).
        """
        if read_description(self._storage).id != self.id:
            raise NotFoundError(f"the stream was deleted, and another made. url={self.url}")
        # First it stops to exist for everybody, then the bytes go; if this dies half way, the
        # next creation under this name begins behind the generations that are left. Only what
        # belongs to this stream is removed: another may be created while we are at it.
        generations = Catalog(self._storage).generations()
        self._storage.delete(DESCRIPTION_KEY)
        self._store.delete_all()
        for generation in generations:
            for key in Catalog(self._storage).generation_keys(generation):
                self._storage.delete_tree(key)
        for directory in ("_stream", ""):
            self._storage.remove_if_empty(directory)

    def view(self) -> StreamView:
        """What readers of this package need of the stream."""
        return StreamView(
            self._storage,
            self._generations,
            self._clock,
            ttl_ms=self.properties.ttl_ms,
            store_key=store_key(self.id),
        )

    def _parse_properties(self, document: Document) -> StreamProperties:
        if document.version == 0:
            return self._description.properties
        raw = decode_document(document.value, url=self.url)
        return StreamProperties.from_json(raw, url=self.url)

    def __repr__(self) -> str:
        return f"Stream({self.url!r})"
