"""Offsets of the Spark source: how far each writer's chain was read. Pure; JSON in and out.

    {"v": 1, "at": "earliest", "from": 0}          symbolic, also "latest": where a query begins
    {"v": 1, "gen": 3, "from": 0, "records": 12345, "places": [...]}

``from`` is a time in milliseconds before which events are left out; it is carried from offset to
offset, because "ten minutes ago" must not mean something else after a restart. The places are those
of ``filestream.consumers.places``. ``records`` only grows, so that lag can be seen in the progress.

The initial offset is symbolic because Spark asks for it twice: a position resolved twice would
differ, and the first batch would begin behind its own end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from filestream.consumers.places import decode_places, encode_places
from filestream.errors import CorruptDataError, UnsupportedVersionError
from filestream.partitions.chain import ChainId, Place

__all__ = ["StreamOffset", "Symbol", "parse_offset"]

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Symbol:
    """Where a query begins, not resolved yet: ``earliest`` or ``latest``, and not before a time."""

    at: str
    from_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """For Spark."""
        return {"v": _VERSION, "at": self.at, "from": self.from_ms}


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in every chain of one generation.

    Attributes:
        places: chains that were read at all; the others stand at their beginning.
        records: events read since the query began, as far as the files say.
        from_ms: events before it are left out.
    """

    generation: int
    places: Mapping[ChainId, Place] = field(default_factory=dict)
    records: int = 0
    from_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """For Spark; equal offsets give equal text."""
        return {
            "v": _VERSION,
            "gen": self.generation,
            "from": self.from_ms,
            "records": self.records,
            "places": encode_places(self.places),
        }


def parse_offset(raw: Mapping[str, Any]) -> "StreamOffset | Symbol":
    """An offset that Spark gives back, from this run or from a checkpoint.

    Raises:
        UnsupportedVersionError: written by a later release.
        CorruptDataError: no offset of this source.
    """
    try:
        if raw["v"] > _VERSION:
            raise UnsupportedVersionError(
                f"the checkpoint was written by a later release. v={raw['v']}"
            )
        if "at" in raw:
            if raw["at"] not in ("earliest", "latest"):
                raise CorruptDataError(f"no offset of a filestream source. at={raw['at']!r:.50}")
            return Symbol(raw["at"], int(raw["from"]))
        places = decode_places(raw["places"], raw["gen"])
        return StreamOffset(int(raw["gen"]), places, int(raw["records"]), int(raw["from"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(f"no offset of a filestream source: {raw!r:.300}") from error
