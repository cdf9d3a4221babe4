"""Streams by their URLs: create, open, list.

What is fixed at creation stands in ``_stream/stream.json``, put there whole and once: a stream
exists when that file does. What changes stands in the property store that it names.
"""

import contextlib
import logging
import os
import random
from collections.abc import Mapping
from typing import TypeVar

from filestream.clock import Clock, SystemClock
from filestream.coordination.base import PropertyStore
from filestream.coordination.open import check_coordination, open_property_store
from filestream.errors import ConflictError, CorruptDataError, InvalidRequestError
from filestream.partitions.catalog import Catalog
from filestream.partitions.description import Description, read_description
from filestream.partitions.generations import Generations
from filestream.partitions.layout import DESCRIPTION_KEY, check_stream_name, store_key
from filestream.partitions.site import check_level, check_place, refuse_foreign
from filestream.partitions.stream import Stream
from filestream.settings import StreamProperties
from filestream.storage.base import LockingStorage, Storage
from filestream.storage.open import open_storage
from filestream.storage.probe import check_storage

__all__ = [
    "create",
    "create_as",
    "exists",
    "list_streams",
    "open",
    "open_as",
]

logger = logging.getLogger(__name__)

S = TypeVar("S", bound="Stream")


def create(
    url: str | os.PathLike[str],
    *,
    coordination: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    chance: random.Random | None = None,
    **properties: object,
) -> Stream:
    """Create a stream.

    Args:
        url: its directory, which is made if need be: ``file:///data/clicks`` or a bare path,
            ``hdfs://namenode/data/clicks``, ``s3://bucket/clicks``, ``gs://``, ``az://``.
        coordination: where generations, properties and groups are kept. None: beside the stream, as
            ``"conditional"`` documents on stores that can replace an object on condition, and
            ``"embedded"`` ones elsewhere. Or ``"zk://host:2181,host2:2181/path?timeout=10s"``
            (``zks://`` with TLS) in ZooKeeper, which streams on a disk that several hosts share
            need. Written down in the stream, so nobody needs to say it again.
        storage_options: for a place that is not on this machine, such as ``{"endpoint": ...}``; what
            is not given comes from the environment. Never written down.
        clock, chance: where time and random numbers come from; for tests.
        properties: ``partition_duration="1d"``, ``ttl="30d"``, ...: see ``StreamProperties``.

    Raises:
        ConflictError: there is a stream already.
        InvalidRequestError: a bad URL, name or property, a directory with other things in it,
            a place inside another stream, or a store that does not do what streams rest on.
    """
    return create_as(
        Stream,
        url,
        coordination=coordination,
        storage_options=storage_options,
        clock=clock,
        chance=chance,
        **properties,
    )


def create_as(
    kind: type[S],
    url: str | os.PathLike[str],
    *,
    coordination: str | None,
    storage_options: Mapping[str, str] | None,
    clock: Clock | None,
    chance: random.Random | None,
    **properties: object,
) -> S:
    """``create``, for a floor above that adds to ``Stream``."""
    storage = open_storage(url, storage_options)
    if coordination is not None:
        check_coordination(coordination)
    clock = clock or SystemClock()
    chance = chance or random.SystemRandom()
    made = StreamProperties.parse({"acknowledgement": next(iter(storage.levels)), **properties})
    check_level(storage, made)
    check_place(storage, storage_options)
    if storage.exists(DESCRIPTION_KEY):
        raise ConflictError(f"there is a stream already: open it. url={storage.url}")
    refuse_foreign(storage)
    # A disk of this machine keeps its word, or the kernel is to blame.
    can_replace = not isinstance(storage, LockingStorage) and check_storage(storage)
    coordination = coordination or ("conditional" if can_replace else "embedded")
    # Generations that a deletion left behind must not come back to life.
    first = max(Catalog(storage).generations(), default=0) + 1
    identity = f"{chance.getrandbits(128):032x}"
    description = Description(identity, coordination, clock.now_ms(), first, made)
    store = open_property_store(coordination, storage, store_key(identity), identity)
    # Before anything is written: a server that does not answer leaves nothing behind.
    store.list("")
    try:
        storage.put_if_absent(DESCRIPTION_KEY, description.to_document())
    except ConflictError as error:
        raise ConflictError(f"there is a stream already: open it. url={storage.url}") from error
    Generations(store, storage.url).begin(first, clock.now_ms())
    logger.info("stream created", extra={"stream": storage.url})
    return kind(storage, store, description, clock=clock, chance=chance)


def open(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    chance: random.Random | None = None,
) -> Stream:
    """Open a stream that exists.

    Args:
        url, storage_options, clock, chance: as ``create``.

    Raises:
        NotFoundError: there is none.
        UnsupportedVersionError: it was made by a later release.
        CorruptDataError: its description is damaged.
        InvalidRequestError: the URL names no place.
    """
    return open_as(Stream, url, storage_options=storage_options, clock=clock, chance=chance)


def open_as(
    kind: type[S],
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None,
    clock: Clock | None,
    chance: random.Random | None,
) -> S:
    """``open``, for a floor above that adds to ``Stream``."""
    storage = open_storage(url, storage_options)
    description = read_description(storage)
    store = open_property_store(
        description.coordination, storage, store_key(description.id), description.id
    )
    clock = clock or SystemClock()
    chance = chance or random.SystemRandom()
    stream = kind(storage, store, description, clock=clock, chance=chance)
    _finish_creation(storage, store, description, clock.now_ms())
    return stream


def _finish_creation(
    storage: Storage, store: PropertyStore, description: Description, now_ms: int
) -> None:
    """Do the second step of a creation that died after the first."""
    generations = Generations(store, storage.url)
    if generations.exists():
        return
    if any(g >= description.first_generation for g in Catalog(storage).generations()):
        raise CorruptDataError(
            "the document of the generation is missing although there are generations.",
            url=storage.url,
        )
    generations.begin(description.first_generation, now_ms)


def exists(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None
) -> bool:
    """Whether there is a stream at a URL."""
    return open_storage(url, storage_options).exists(DESCRIPTION_KEY)


def list_streams(
    root: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None
) -> list[str]:
    """URLs of the streams directly below a directory, sorted; none when there is no directory."""
    storage = open_storage(root, storage_options)
    found = []
    for entry in storage.list(""):
        with contextlib.suppress(InvalidRequestError):
            check_stream_name(entry.name)
            if entry.is_directory and storage.exists(f"{entry.name}/{DESCRIPTION_KEY}"):
                found.append(f"{storage.url}/{entry.name}")
    return sorted(found)
