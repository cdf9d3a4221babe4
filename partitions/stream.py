"""A stream: create, open, describe, append, read, truncate. Thin assembly of the rooms around it.

What is fixed at creation stands in ``_stream/stream.json``, put there whole and once: a stream
exists when that file does. What changes stands in the property store that it names.
"""

import json
import logging
import os
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from filestream.clock import Clock, SystemClock
from filestream.coordination.base import Document, PropertyStore
from filestream.coordination.open import open_property_store
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    UnsupportedVersionError,
)
from filestream.partitions.catalog import Catalog
from filestream.partitions.event import Event
from filestream.partitions.generations import Generations
from filestream.partitions.layout import DESCRIPTION_KEY, STORE_KEY, check_stream_name
from filestream.partitions.positions import PositionLike
from filestream.partitions.retention import Removal, apply_retention
from filestream.partitions.scan import Scan
from filestream.partitions.snapshot import StreamView
from filestream.partitions.summary import Summary, summarise
from filestream.partitions.tail import Tail
from filestream.partitions.verify import Finding, verify
from filestream.partitions.writer import StreamWriter
from filestream.segment_reader import OnCorrupt
from filestream.settings import StreamProperties
from filestream.storage.base import Storage
from filestream.storage.open import normalise_url, open_storage

__all__ = ["Stream", "Truncation", "create", "exists", "list_streams", "open"]

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_DESCRIPTION_SIZE_MAX: Final = 1 << 20
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
        description: "_Description",
        *,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._storage = storage
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

    def update_properties(self, **changes: object) -> StreamProperties:
        """Change some properties: ``ttl="30d"``, ``segment_size="256MiB"``; see ``StreamProperties``.

        Writers that are open go on with what they were opened with.

        Raises:
            InvalidRequestError: an unknown name, a bad value, or one that is fixed at creation.
        """

        def change(before: Document) -> bytes:
            return json.dumps(self._parse_properties(before).changed(changes).to_json()).encode()

        return self._parse_properties(self._store.update(_PROPERTIES, change))

    def writer(self, writer_id: str | None = None) -> StreamWriter:
        """Open a writer; use it with ``with``, share it among the threads of the process.

        Args:
            writer_id: names the writer's files. None takes the first of ``file.0``,
                ``file.1``, ... that no living process holds.

        Raises:
            ConflictError: another living process writes under this id.
            NotFoundError: the stream was deleted.
        """
        self._generations.current()
        return StreamWriter(
            self._storage,
            self._store,
            stream_name=self.name,
            properties=self.properties,
            clock=self._clock,
            chance=self._chance,
            writer_id=writer_id,
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
                ``"@-10m"``, an ``Offset`` or its text, a ``datetime``.
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
        by any process. The files stay until ``retention`` removes them.

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
        if not self._storage.exists(DESCRIPTION_KEY):
            raise NotFoundError(f"there is no stream. url={self.url}")
        # First it stops to exist for everybody, then the bytes go; if this dies half way, the
        # next creation under this name begins behind the generations that are left.
        self._storage.delete(DESCRIPTION_KEY)
        self._store.delete("generation")
        self._storage.delete_tree("")

    def view(self) -> StreamView:
        """What readers of this package need of the stream."""
        return StreamView(self._storage, self._generations, self._clock, self.properties.ttl_ms)

    def _parse_properties(self, document: Document) -> StreamProperties:
        if document.version == 0:
            return self._description.properties
        return StreamProperties.from_json(_json(document.value, self.url), url=self.url)

    def __repr__(self) -> str:
        return f"Stream({self.url!r})"


@dataclass(frozen=True, slots=True)
class _Description:
    """What ``stream.json`` holds."""

    id: str
    coordination: str
    created_at_ms: int
    properties: StreamProperties

    def to_json(self) -> bytes:
        raw = {
            "version": _VERSION,
            "id": self.id,
            "coordination": self.coordination,
            "created_at_ms": self.created_at_ms,
            "properties": self.properties.to_json(),
        }
        return json.dumps(raw, indent=1).encode()

    @classmethod
    def parse(cls, data: bytes, url: str) -> "_Description":
        raw = _json(data, url)
        if not isinstance(raw, dict) or not isinstance(raw.get("version"), int):
            raise CorruptDataError("the stream's description is damaged.", url=url)
        if raw["version"] > _VERSION:
            raise UnsupportedVersionError(
                f"the stream was made by a later release: upgrade. version={raw['version']} url={url}"
            )
        try:
            return cls(
                str(raw["id"]),
                str(raw["coordination"]),
                int(raw["created_at_ms"]),
                StreamProperties.from_json(raw["properties"], url=url),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptDataError("the stream's description is damaged.", url=url) from error


def create(
    url: str | os.PathLike[str],
    *,
    coordination: str = "embedded",
    clock: Clock | None = None,
    chance: random.Random | None = None,
    **properties: object,
) -> Stream:
    """Create a stream.

    Args:
        url: its directory, which is made if need be: ``file:///data/clicks`` or a bare path.
        coordination: ``"embedded"`` keeps generations and properties beside the stream.
        clock, chance: where time and random numbers come from; for tests.
        properties: ``partition_duration="1d"``, ``ttl="30d"``, ...: see ``StreamProperties``.

    Raises:
        ConflictError: there is a stream already.
        InvalidRequestError: a bad URL, name or property, or a directory with other things in it.
    """
    storage = open_storage(url)
    check_stream_name(storage.url.rstrip("/").rpartition("/")[2])
    clock = clock or SystemClock()
    chance = chance or random.SystemRandom()
    made = StreamProperties.parse(properties)
    if storage.exists(DESCRIPTION_KEY):
        raise ConflictError(f"there is a stream already: open it. url={storage.url}")
    _refuse_foreign(storage)
    identity = uuid.UUID(int=chance.getrandbits(128)).hex
    description = _Description(identity, coordination, clock.now_ms(), made)
    store = open_property_store(coordination, storage, STORE_KEY)
    try:
        storage.put_if_absent(DESCRIPTION_KEY, description.to_json())
    except ConflictError as error:
        raise ConflictError(f"there is a stream already: open it. url={storage.url}") from error
    # Generations that a deletion left behind must not come back to life.
    left = Catalog(storage).generations()
    generations = Generations(store, storage.url)
    generations.begin(max(left, default=0) + 1, clock.now_ms())
    logger.info("stream created", extra={"stream": storage.url})
    return Stream(storage, store, description, clock=clock, chance=chance)


def _refuse_foreign(storage: Storage) -> None:
    """A directory that holds other things is no place for a stream: truncation would mix them."""
    for entry in storage.list(""):
        is_ours = entry.is_directory and (entry.name.isdigit() or entry.name == "_stream")
        if not is_ours and not entry.name.startswith((".", "_")):
            raise InvalidRequestError(
                f"the directory is not empty and no stream: choose another. "
                f"url={storage.url} found={entry.name!r:.100}"
            )


def open(
    url: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    chance: random.Random | None = None,
) -> Stream:
    """Open a stream that exists.

    Raises:
        NotFoundError: there is none.
        UnsupportedVersionError: it was made by a later release.
        InvalidRequestError: the URL names no place.
    """
    storage = open_storage(url)
    try:
        data = storage.read(DESCRIPTION_KEY, 0, _DESCRIPTION_SIZE_MAX)
    except (NotFoundError, InvalidRequestError) as error:
        raise NotFoundError(
            f"there is no stream: create it, or mend the path. url={storage.url}"
        ) from error
    description = _Description.parse(data, storage.url)
    store = open_property_store(description.coordination, storage, STORE_KEY)
    clock = clock or SystemClock()
    chance = chance or random.SystemRandom()
    stream = Stream(storage, store, description, clock=clock, chance=chance)
    _heal(stream, storage, store, clock.now_ms())
    return stream


def _heal(stream: Stream, storage: Storage, store: PropertyStore, now_ms: int) -> None:
    """Finish a creation that died between its two steps."""
    if store.get("generation").version == 0:
        left = Catalog(storage).generations()
        Generations(store, stream.url).begin(max(left, default=0) + 1, now_ms)


def exists(url: str | os.PathLike[str]) -> bool:
    """Whether there is a stream at a URL."""
    return open_storage(url).exists(DESCRIPTION_KEY)


def list_streams(root: str | os.PathLike[str]) -> list[str]:
    """URLs of the streams directly below a directory, sorted; none when there is no directory."""
    base = normalise_url(root)
    storage = open_storage(base)
    names = (entry.name for entry in storage.list("") if entry.is_directory)
    return sorted(
        f"{storage.url}/{name}" for name in names if storage.exists(f"{name}/{DESCRIPTION_KEY}")
    )


def _json(data: bytes, url: str) -> object:
    try:
        return json.loads(data)
    except ValueError as error:
        raise CorruptDataError("a document of the stream is no JSON.", url=url) from error
