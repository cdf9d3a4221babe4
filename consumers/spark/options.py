"""Options of the Spark source: names as the peers have them, checked before anything is read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from filestream.consumers.spark.frontier import Limit
from filestream.errors import InvalidRequestError
from filestream.partitions.columns import ALL_COLUMNS, check_columns
from filestream.partitions.filters import Interval
from filestream.partitions.positions import End, Position, Start, parse_position
from filestream.segment_reader import OnCorrupt
from filestream.storage.open import normalise_url
from filestream.units import parse_size_bytes, parse_timestamp_ms

__all__ = ["SourceOptions", "parse_options"]

_DEFAULT_COLUMNS: Final = ("timestamp", "body")
_METADATA: Final = tuple(c for c in ALL_COLUMNS if c not in ("timestamp", "headers", "body"))
# "storage.endpoint" and the like go to the storage as they are.
_STORAGE: Final = "storage."
_KNOWN: Final = {
    name.lower(): name
    for name in (
        "path", "paths", "columns", "includeHeaders", "includeMetadata", "startingOffsets",
        "endingOffsets", "startingTimestamp", "endingTimestamp", "maxRecordsPerTrigger",
        "maxBytesPerTrigger", "maxFilesPerTrigger", "minPartitions", "maxPartitionBytes",
        "failOnDataLoss", "onTruncate", "mode", "batchRows", "batchBytes",
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query asked for.

    Attributes:
        columns: in the order of the table.
        start, end: positions; None where the query did not say.
        interval: of time, from ``startingTimestamp`` and ``endingTimestamp``.
        limit: of one micro-batch.
        fails_on_loss: raise when unread events are gone by ttl.
        fails_on_truncate: raise when the stream is truncated in mid-query.
    """

    url: str
    columns: tuple[str, ...]
    start: Position | None
    end: Position | None
    interval: Interval
    limit: Limit
    partitions_min: int
    partition_size_bytes_max: int
    fails_on_loss: bool
    fails_on_truncate: bool
    on_corrupt: OnCorrupt
    batch_rows: int
    batch_size_bytes: int
    start_json: str = ""
    # May hold secrets, so it is in no text.
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


def parse_options(given: Mapping[str, str], *, now_ms: int) -> SourceOptions:
    """Read what Spark hands over.

    Raises:
        InvalidRequestError: no path, an unknown name, or a bad value.
    """
    options = {n.lower(): v for n, v in given.items() if not n.lower().startswith(_STORAGE)}
    unknown = sorted(set(options) - set(_KNOWN))
    if unknown:
        raise InvalidRequestError(
            f"unknown option: {unknown[0]!r}. Known are {', '.join(sorted(_KNOWN.values()))}"
        )
    fails_on_loss = _flag(options, "failOnDataLoss", default=True)
    on_truncate = options.get("ontruncate", "fail" if fails_on_loss else "skip")
    if on_truncate not in ("fail", "skip"):
        raise InvalidRequestError(f"onTruncate must be fail or skip. onTruncate={on_truncate!r}")
    mode = options.get("mode", "failfast").lower()
    if mode not in ("failfast", "permissive"):
        raise InvalidRequestError(f"mode must be failfast or permissive. mode={mode!r}")
    starting = options.get("startingoffsets", "").strip()
    start, start_json = _starting(starting, now_ms)
    return SourceOptions(
        url=_url(options),
        columns=_columns(options),
        start=start,
        end=_position(options.get("endingoffsets", "").strip(), now_ms),
        interval=_interval(options, now_ms),
        limit=Limit(
            size_bytes=_size(options, "maxBytesPerTrigger", 0),
            events=_count(options, "maxRecordsPerTrigger", 0),
            segments=_count(options, "maxFilesPerTrigger", 0),
        ),
        partitions_min=_count(options, "minPartitions", 0),
        partition_size_bytes_max=max(1 << 10, _size(options, "maxPartitionBytes", 128 << 20)),
        fails_on_loss=fails_on_loss,
        fails_on_truncate=on_truncate == "fail",
        on_corrupt="raise" if mode == "failfast" else "skip",
        batch_rows=max(1, _count(options, "batchRows", 32_768)),
        # Spark refuses batches above its own limit and slows down long before it.
        batch_size_bytes=min(16 << 20, max(1 << 10, _size(options, "batchBytes", 4 << 20))),
        start_json=start_json,
        storage_options={
            n[len(_STORAGE) :]: v for n, v in given.items() if n.lower().startswith(_STORAGE)
        },
    )


def _url(options: Mapping[str, str]) -> str:
    paths: Sequence[str] = [options["path"]] if "path" in options else []
    if "paths" in options:
        paths = json.loads(options["paths"])
    if len(paths) != 1:
        raise InvalidRequestError(
            f"one stream, please: load('file:///data/clicks'). Union several. paths={list(paths)!r:.300}"
        )
    return normalise_url(paths[0])


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" in options:
        return check_columns(options["columns"].split(","))
    wanted: set[str] = set(_DEFAULT_COLUMNS)
    if _flag(options, "includeHeaders", default=False):
        wanted.add("headers")
    if _flag(options, "includeMetadata", default=False):
        wanted |= set(_METADATA)
    return tuple(name for name in ALL_COLUMNS if name in wanted)


def _interval(options: Mapping[str, str], now_ms: int) -> Interval:
    interval = Interval()
    if "startingtimestamp" in options:
        moment = parse_timestamp_ms(options["startingtimestamp"], now_ms=now_ms)
        interval = interval._replace(from_ms=moment)
    if "endingtimestamp" in options:
        moment = parse_timestamp_ms(options["endingtimestamp"], now_ms=now_ms)
        interval = interval._replace(until_ms=moment)
    return interval


def _starting(text: str, now_ms: int) -> tuple[Position | None, str]:
    if text.startswith("{"):
        return None, text
    return _position(text, now_ms), ""


def _position(text: str, now_ms: int) -> Position | None:
    if not text:
        return None
    if text in ("earliest", "latest"):
        return Start() if text == "earliest" else End()
    return parse_position(text, now_ms=now_ms)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidRequestError(f"{name} must be true or false. {name}={text!r}")
    return text == "true"


def _count(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower(), str(default)).strip()
    if not text.isascii() or not text.isdigit():
        raise InvalidRequestError(f"{name} must be a whole number. {name}={text!r:.50}")
    return int(text)


def _size(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    return default if text is None else parse_size_bytes(text)
