"""Stream properties: what a stream is told once or from time to time, with units and limits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

from filestream.errors import CorruptDataError, InvalidRequestError, UnsupportedVersionError
from filestream.segment_encoder import Acknowledgement, SegmentFormat
from filestream.units import (
    format_duration,
    format_size_exactly,
    parse_duration_ms,
    parse_size_bytes,
)

__all__ = ["StreamProperties"]

Compression = Literal["none", "zstd"]

_DURATION_S_MAX: Final = 100 * 366 * 86400
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "format": get_args(SegmentFormat),
    "acknowledgement": get_args(Acknowledgement),
    "compression": get_args(Compression),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProperties:
    """How a stream is kept. Frozen: change it through ``Stream.update_properties``.

    Attributes:
        partition_duration_ms: length of the time partitions; whole seconds; fixed at creation.
        format: ``"E3"``, or ``"E2"`` for readers of CDAP streams; fixed at creation.
        ttl_ms: events older than this are not delivered and are removed; 0 keeps them for ever.
        retention_ms: how long truncated generations stay on disk before ``retention`` removes them.
        index_interval_bytes: data between two index entries.
        block_size_bytes_max: payload of one block at the most; larger events are cut in chunks.
        event_size_bytes_max: a larger event is refused.
        segment_size_bytes_max: a segment that has grown past this is sealed.
        segment_age_ms_max: a segment that has been open for longer is sealed.
        segment_idle_ms_max: a segment without traffic for longer is sealed.
        acknowledgement: what a returned ``append`` survives: ``"disk"`` a power cut,
            ``"os"`` the death of the process, ``"memory"`` nothing; on an object store
            ``"object"``: what the store survives; or ``"journal"``: a power cut of this machine, as
            long as its disk is there and the writer is opened there again.
        linger_ms: on an object store, at least so long lies between the beginnings of two commits
            of a writer, because each costs money; the first after a pause begins at once.
        commit_size_bytes_max: on an object store, so much is committed without waiting; larger
            batches are cut.
        commits_in_flight_max: on an object store, so many commits may be under way; they are
            acknowledged in order.
        ship_interval_ms_max: with a journal, events are in the store no later than this and the time
            that the store takes.
        compression: of blocks: ``"none"`` or ``"zstd"``.
    """

    partition_duration_ms: int = 86_400_000
    format: SegmentFormat = "E3"
    ttl_ms: int = 0
    retention_ms: int = 0
    index_interval_bytes: int = 256 << 10
    block_size_bytes_max: int = 1 << 20
    event_size_bytes_max: int = 16 << 20
    segment_size_bytes_max: int = 1 << 30
    segment_age_ms_max: int = 3_600_000
    segment_idle_ms_max: int = 300_000
    acknowledgement: Acknowledgement = "disk"
    compression: Compression = "none"
    linger_ms: int = 250
    commit_size_bytes_max: int = 8 << 20
    commits_in_flight_max: int = 4
    ship_interval_ms_max: int = 1000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            choices = _CHOICES.get(field.name)
            if choices is not None:
                if value not in choices:
                    raise InvalidRequestError(
                        f"{field.name} must be one of {', '.join(choices)}. {field.name}={value!r}"
                    )
            elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidRequestError(
                    f"{field.name} must be a whole number, 0 or more. {field.name}={value!r}"
                )
        duration = self.partition_duration_ms
        if duration < 1000 or duration % 1000 or duration > _DURATION_S_MAX * 1000:
            raise InvalidRequestError(
                "partition_duration must be whole seconds, from 1s to 100 years. "
                f"partition_duration_ms={duration}"
            )
        _check_range("index_interval_bytes", self.index_interval_bytes, 1 << 10, 1 << 30)
        _check_range("block_size_bytes_max", self.block_size_bytes_max, 4 << 10, 8 << 20)
        _check_range("event_size_bytes_max", self.event_size_bytes_max, 1, 1 << 30)
        _check_range("segment_size_bytes_max", self.segment_size_bytes_max, 4 << 10, 1 << 40)
        _check_range("linger_ms", self.linger_ms, 0, 60_000)
        _check_range("commit_size_bytes_max", self.commit_size_bytes_max, 4 << 10, 1 << 30)
        _check_range("commits_in_flight_max", self.commits_in_flight_max, 1, 64)
        _check_range("ship_interval_ms_max", self.ship_interval_ms_max, 100, 3_600_000)
        for name in ("segment_age_ms_max", "segment_idle_ms_max"):
            _check_range(name, getattr(self, name), 100, 366 * 86_400_000)
        if self.format == "E2" and self.compression != "none":
            raise InvalidRequestError("E2 files know no compression.")
        if self.format == "E2" and self.acknowledgement == "journal":
            raise InvalidRequestError("a journal needs format E3: E2 files have no checksums.")

    @classmethod
    def parse(cls, given: Mapping[str, object]) -> "StreamProperties":
        """Properties from what people write: ``partition_duration="1h", block_size="1MiB"``.

        Names are those of the attributes without their unit (``ttl``, ``partition_duration``,
        ``segment_size``); durations and sizes are text with a unit, or numbers (seconds, bytes).

        Raises:
            InvalidRequestError: an unknown name or a bad value.
        """
        return cls(**_parsed(given))

    def changed(self, given: Mapping[str, object]) -> "StreamProperties":
        """The same with some of them changed; values as in ``parse``.

        Raises:
            InvalidRequestError: an unknown name, a bad value, or one that is fixed at creation.
        """
        parsed = _parsed(given)
        for name in ("partition_duration_ms", "format"):
            if name in parsed and parsed[name] != getattr(self, name):
                raise InvalidRequestError(
                    f"{_short(name)} is fixed when a stream is created: create another stream."
                )
        return replace(self, **parsed)

    def to_json(self) -> dict[str, object]:
        """Plain values under the attributes' names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, raw: object, *, url: str) -> "StreamProperties":
        """What ``to_json`` gave; names of later versions are refused, not guessed at.

        Raises:
            UnsupportedVersionError: a property that this version does not know.
            CorruptDataError: no properties at all.
        """
        if not isinstance(raw, dict):
            raise CorruptDataError("stream properties are no JSON object.", url=url)
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(raw) - known):
            raise UnsupportedVersionError(
                f"the stream has properties that this version does not know: {unknown}. url={url}"
            )
        try:
            return cls(**raw)
        except (InvalidRequestError, TypeError) as error:
            raise CorruptDataError(f"stream properties are damaged: {error}", url=url) from error

    def for_people(self) -> dict[str, str]:
        """Short names and readable values, as the command line shows and takes them."""
        shown: dict[str, str] = {}
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if "_ms" in field.name:
                value = format_duration(value) if value else "0"
            elif "_bytes" in field.name:
                value = format_size_exactly(value)
            shown[_short(field.name)] = str(value)
        return shown

    def __str__(self) -> str:
        """JSON, for logs."""
        return json.dumps(self.to_json())


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequestError(f"{_short(name)} must lie in {least}..{most}. {name}={value}")


def _short(name: str) -> str:
    return name.removesuffix("_max").removesuffix("_ms").removesuffix("_bytes")


_FULL_NAMES: Final = {_short(field.name): field.name for field in fields(StreamProperties)}


def _parsed(given: Mapping[str, object]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for name, value in given.items():
        full = _FULL_NAMES.get(name.replace("-", "_"))
        if full is None:
            raise InvalidRequestError(
                f"no such property: {name!r}. Known are {', '.join(sorted(_FULL_NAMES))}"
            )
        if full in _CHOICES:
            parsed[full] = str(value)
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise InvalidRequestError(
                f"{name} must be text or a number. type={type(value).__name__}"
            )
        elif "_ms" in full:
            parsed[full] = parse_duration_ms(value)
        else:
            if isinstance(value, float) and not value.is_integer():
                raise InvalidRequestError(f"{name} must be a whole number of bytes. {name}={value}")
            parsed[full] = parse_size_bytes(value if isinstance(value, str) else int(value))
    return parsed
