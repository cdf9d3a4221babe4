"""Compacts a large stream with a Spark cluster: planned here, done by its workers."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from filestream.partitions import streams
from filestream.partitions.compaction import (
    Chore,
    Compaction,
    CompactionSettings,
    Compactor,
    Packed,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["compact"]

# More tasks than this cost more to start than they bring.
_TASKS_MAX: Final = 1000


def compact(
    spark: "SparkSession",
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    after: str | float = "10m",
    grace: str | float = "1h",
    pack_size: str | int = "64MiB",
    dry_run: bool = False,
) -> Compaction:
    """``Stream.compact`` by the workers of a Spark session, classic or Connect.

    A task that fails is done again by Spark; what it had packed stays packed.

    Args:
        spark: the session. Its workers need filestream installed, and reach the stream under this URL.
        url, storage_options: as ``filestream.open``. The options go to the workers inside the
            function that they run, and into no plan and no log.
        after, grace, pack_size, dry_run: as ``Stream.compact``.

    Raises:
        ConflictError: another process compacts the stream.
        UnavailableError: before anything was begun. What a task raises comes as Spark's exception,
            with the error's text in it.
    """
    place = os.fspath(url)
    stream = streams.open(place, storage_options=storage_options)
    settings = CompactionSettings.parse(after, grace, pack_size, dry_run=dry_run)

    def work(chores: Sequence[Chore]) -> Iterable[Compaction]:
        if not chores:
            return ()

        def do(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            opened = streams.open(place, storage_options=storage_options)
            compactor = Compactor(opened.view(), settings)
            for batch in rows:
                done = [json.dumps(asdict(compactor.do(chores[n.as_py()]))) for n in batch["id"]]
                yield pa.record_batch({"done": done})

        numbers = spark.range(0, len(chores), 1, min(len(chores), _TASKS_MAX))
        found = numbers.mapInArrow(do, "done string").collect()
        return [_parsed(row["done"]) for row in found]

    return stream.compact(after=after, grace=grace, pack_size=pack_size, dry_run=dry_run, work=work)


def _parsed(text: str) -> Compaction:
    raw = json.loads(text)
    return Compaction(**{**raw, "packs": [Packed(**pack) for pack in raw["packs"]]})
