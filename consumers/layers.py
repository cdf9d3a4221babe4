"""What the state of a group is made of: places, spans, claims, layers, members, letters. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from filestream.consumers.assignment import Strategy, lane_of
from filestream.partitions.chain import ChainId, Place
from filestream.partitions.event import Event
from filestream.partitions.layout import Offset

__all__ = [
    "ORIGIN",
    "Claim",
    "DeadLetter",
    "Layer",
    "Member",
    "Places",
    "Span",
    "chain_of",
    "place_after",
    "place_of",
]

Places = Mapping[ChainId, Place]

ORIGIN: Final = Place()


def place_of(event: Event) -> Place:
    """The place where reading gives this event first."""
    return Place(event.segment.sequence, event.position, event.index_in_block)


def place_after(event: Event) -> Place:
    """The place behind an event."""
    return Place(event.segment.sequence, event.position, event.index_in_block + 1)


def chain_of(event: Event) -> ChainId:
    """The chain that an event stands in."""
    return ChainId(event.segment.partition, event.segment.writer_id)


class Span(NamedTuple):
    """A part of one chain: ``start`` included, ``end`` not."""

    chain: ChainId
    start: Place
    end: Place


@dataclass(frozen=True, slots=True)
class Member:
    """A process that works for the group.

    Attributes:
        token: its own; whoever comes with another one has been replaced.
        host, pid, since_ms: for people.
    """

    token: str
    host: str = ""
    pid: int = 0
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """Events that an instance was given and has not committed.

    Attributes:
        layer, lane: which events of the spans are meant.
        owner: slot of the instance.
        token: of the member; empty when nobody works on it.
        deliveries: how often it was handed out.
    """

    id: int
    layer: int
    lane: int
    owner: int
    token: str
    spans: tuple[Span, ...]
    deliveries: int = 1

    def covers(self, chain: ChainId, place: Place) -> bool:
        """Whether a place lies in a span; says nothing of the lane."""
        return any(s.chain == chain and s.start <= place < s.end for s in self.spans)


@dataclass(frozen=True, slots=True)
class Layer:
    """One division of the stream.

    Attributes:
        lanes: for each lane, the place in each chain; chains that are not named are untouched.
    """

    id: int
    strategy: Strategy
    key_header: str | None
    lanes: tuple[Places, ...]

    def lane_of(self, event: Event) -> int:
        """The lane of an event."""
        return lane_of(event, self.strategy, self.key_header, len(self.lanes))

    def is_behind(self, event: Event) -> bool:
        """Whether the event's lane has passed it."""
        place = self.lanes[self.lane_of(event)].get(chain_of(event), ORIGIN)
        return place_of(event) < place

    def low(self) -> dict[ChainId, Place]:
        """The smallest place of any lane in each chain."""
        first, *others = self.lanes
        return {
            chain: least
            for chain, place in first.items()
            if (least := min([place, *(o.get(chain, ORIGIN) for o in others)])) != ORIGIN
        }

    def high(self) -> dict[ChainId, Place]:
        """The largest place of any lane in each chain."""
        found: dict[ChainId, Place] = {}
        for places in self.lanes:
            for chain, place in places.items():
                found[chain] = max(place, found.get(chain, ORIGIN))
        return found

    def moved(self, lane: int, places: Places) -> "Layer":
        """With a lane at other places; a place never goes back."""
        lanes = list(self.lanes)
        before = lanes[lane]
        ahead = {c: p for c, p in places.items() if p > before.get(c, ORIGIN)}
        lanes[lane] = {**before, **ahead}
        return replace(self, lanes=tuple(lanes))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that was given up; the original stays where it is.

    Attributes:
        reason: ``"delivered too often"`` or ``"skipped"``.
    """

    offset: Offset
    deliveries: int
    reason: str
    at_ms: int
