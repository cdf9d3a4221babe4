"""The state of a group: one value, changed by pure steps, kept as one document.

What is processed
    A *layer* divides the stream into lanes and keeps, for each lane, a place in every chain. An event
    is behind a layer when it lies before the place of its lane. Usually there is one layer; when the
    number of instances or the strategy changes, a new layer begins at the smallest place of the old
    one's lanes, and the old one stays, as the memory of what had been processed beyond that place,
    until the new one has passed all of it.

    A *claim* is a hole: events that somebody was given and has not committed. An event is processed
    when it is behind a layer and in no claim.

First in, first out is one lane for all instances: each takes what comes next as a claim. Round robin
and hash have a lane for each instance, which commits by moving its places; claims are kept there
only when membership changes by itself (``auto``) or deliveries are counted (``max_deliver``).

So the document holds places and holes, never a row for each event, and one compare-and-set moves it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from filestream.consumers.assignment import LANES_MAX, Strategy, check_strategy
from filestream.consumers.layers import (
    ORIGIN,
    Claim,
    DeadLetter,
    Layer,
    Member,
    Places,
    Span,
    chain_of,
    place_after,
    place_of,
)
from filestream.errors import ConflictError, FencedError, InvalidRequestError
from filestream.partitions.chain import ChainId, Place
from filestream.partitions.event import Event

__all__ = ["GroupState"]

_LAYERS_MAX: Final = 64
_CLAIMS_MAX: Final = 1024
_DEAD_LETTERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class GroupState:
    """See the head of this file. Every step returns a new value.

    Attributes:
        id: of this life of the group; a group that is removed and made again has another.
        generation: of the stream; places mean nothing in another.
        epoch: grows when the division changes or the group is reset.
        instances: how many there are to be; 0 for as many as there are members.
        layers: the last one divides what comes.
        is_external: the places that count stand in a store of the members' own.
        mirror: of an external group, for each lane, the places as they were seen there last; for
            those who look from outside only.
        members: by slot: the instance number, or with ``auto`` any number that was free.
    """

    id: str
    generation: int
    layers: tuple[Layer, ...]
    instances: int = 1
    epoch: int = 1
    claims: tuple[Claim, ...] = ()
    members: Mapping[int, Member] = field(default_factory=dict)
    dead: tuple[DeadLetter, ...] = ()
    next_id: int = 2
    is_external: bool = False
    mirror: tuple[Places, ...] = ()

    # -- questions ---------------------------------------------------------------------------

    @property
    def layer(self) -> Layer:
        """The one that divides what comes."""
        return self.layers[-1]

    @property
    def is_auto(self) -> bool:
        """Whether there are as many instances as members."""
        return self.instances == 0

    @property
    def is_shared(self) -> bool:
        """Whether all instances take from one lane."""
        return self.layer.strategy == "fifo"

    @property
    def needs_claims(self) -> bool:
        """Whether events are claimed before they are handed out, whatever the members want."""
        return self.is_auto or (self.is_shared and self.instances > 1)

    def claim(self, claim_id: int) -> Claim | None:
        """The claim of this number, if it stands."""
        return next((claim for claim in self.claims if claim.id == claim_id), None)

    def lane_of_slot(self, slot: int) -> int:
        """The lane that a member works on."""
        if len(self.layer.lanes) == 1:
            return 0
        return sorted(self.members).index(slot) if self.is_auto else slot

    def is_processed(self, event: Event) -> bool:
        """Whether the event is behind a layer and in no claim."""
        return any(layer.is_behind(event) for layer in self.layers) and not self.is_claimed(event)

    def is_claimed(self, event: Event) -> bool:
        """Whether somebody was given the event and has not committed it."""
        chain, place = chain_of(event), place_of(event)
        return any(
            claim.covers(chain, place) and self._means(claim, event) for claim in self.claims
        )

    def belongs_to(self, event: Event, claim: Claim) -> bool:
        """Whether an event in a claim's spans is really part of it."""
        return self._means(claim, event) and not self.is_dead(event)

    def is_dead(self, event: Event) -> bool:
        """Whether the event was given up."""
        return bool(self.dead) and any(letter.offset == event.offset for letter in self.dead)

    def is_behind_older(self, event: Event) -> bool:
        """Whether a layer before the last has passed the event; claimed or not."""
        return any(layer.is_behind(event) for layer in self.layers[:-1])

    def mirrored(self, lane: int, places: Places) -> "GroupState":
        """With the places of a lane in the store of the members' own, as they were seen."""
        mirror = list(self.mirror or ({} for _ in self.layer.lanes))
        mirror[lane] = dict(places)
        return replace(self, mirror=tuple(mirror))

    def as_mirrored(self) -> "GroupState":
        """As if the places that were seen elsewhere stood here; to look at, not to write."""
        layer = self.layer
        for lane, places in enumerate(self.mirror):
            layer = layer.moved(lane, places)
        return replace(self, layers=(*self.layers[:-1], layer))

    def low(self) -> dict[ChainId, Place]:
        """In each chain, the place before which everything is processed."""
        found = self.layer.low()
        for claim in self.claims:
            for span in claim.spans:
                if span.start < found.get(span.chain, ORIGIN):
                    found[span.chain] = span.start
        return found

    def high(self) -> dict[ChainId, Place]:
        """In each chain, the place from which on nothing is processed."""
        found: dict[ChainId, Place] = {}
        for layer in self.layers:
            for chain, place in layer.high().items():
                found[chain] = max(place, found.get(chain, ORIGIN))
        return found

    def check_member(self, slot: int, token: str) -> None:
        """Raises FencedError when the slot belongs to somebody else by now."""
        member = self.members.get(slot)
        if member is None:
            raise FencedError(
                f"the group was reset or changed meanwhile: roll back; the next fetch goes on. "
                f"instance={slot}"
            )
        if member.token != token:
            raise FencedError(
                f"another process has taken over this instance: close this one. instance={slot} "
                f"by={member.host}:{member.pid}"
            )

    def _means(self, claim: Claim, event: Event) -> bool:
        for layer in self.layers:
            if layer.id == claim.layer:
                # What an older layer had passed was not handed out with this claim.
                return layer.lane_of(event) == claim.lane and not any(
                    older.is_behind(event) for older in self.layers if older.id < layer.id
                )
        return False

    # -- steps -------------------------------------------------------------------------------

    def joined(self, slot: int, member: Member) -> "GroupState":
        """With a member, who replaces whoever had the slot; ``auto`` divides anew."""
        if not self.is_auto and slot >= self.instances:
            raise InvalidRequestError(
                f"there is no such instance: they count from 0. instance={slot} "
                f"instances={self.instances}"
            )
        members = {**self.members, slot: member}
        return replace(self, members=members)._balanced()

    def left(self, slots: Iterable[int]) -> "GroupState":
        """Without some members; what they had claimed is free for others."""
        gone = set(slots)
        members = {slot: m for slot, m in self.members.items() if slot not in gone}
        claims = tuple(replace(c, token="") if c.owner in gone else c for c in self.claims)
        return replace(self, members=members, claims=claims)._balanced()

    def _balanced(self) -> "GroupState":
        """``auto``: a lane for each member."""
        count = max(1, len(self.members))
        if not self.is_auto or self.is_shared or count == len(self.layer.lanes):
            return self
        return self._divided(self.layer.strategy, self.layer.key_header, count)

    def reconfigured(
        self, strategy: Strategy, key_header: str | None, instances: int
    ) -> "GroupState":
        """Divided in another way. Loses no event and gives none twice once it was committed.

        Args:
            instances: 0 for as many as there are members.
        """
        check_strategy(strategy, key_header)
        if not 0 <= instances <= LANES_MAX:
            raise InvalidRequestError(f"instances must be 1 to {LANES_MAX}. instances={instances}")
        same = (self.layer.strategy, self.layer.key_header, self.instances)
        if same == (strategy, key_header, instances):
            return self
        if self.is_external:
            # What was processed beyond the smallest place is not written down here.
            raise InvalidRequestError(
                "the positions of this group are in a store of its members' own: it cannot be divided "
                "anew. Begin another group at the positions that you have."
            )
        # Members that are numbered too high, or hold events without a claim, are out.
        claims = tuple(
            replace(c, token="") if instances and c.owner >= instances else c for c in self.claims
        )
        state = replace(self, members={}, instances=instances, claims=claims)
        lanes = 1 if strategy == "fifo" else max(1, instances)
        if strategy == "fifo" == self.layer.strategy:
            return replace(state, epoch=self.epoch + 1)
        return state._divided(strategy, key_header, lanes)

    def _divided(self, strategy: Strategy, key_header: str | None, lanes: int) -> "GroupState":
        low = self.layer.low()
        fresh = Layer(self.next_id, strategy, key_header, tuple(dict(low) for _ in range(lanes)))
        older = self.layers
        last = self.layer
        is_used = any(claim.layer == last.id for claim in self.claims)
        if not is_used and all(places == low for places in last.lanes):
            older = older[:-1]  # It remembers nothing that the new one does not know.
        if len(older) >= _LAYERS_MAX:
            raise ConflictError(
                "the group was changed too often before its members caught up: let them work, and "
                f"try again. layers={len(older)}"
            )
        return replace(
            self, layers=(*older, fresh), next_id=self.next_id + 1, epoch=self.epoch + 1
        )._pruned()

    def claimed(self, slot: int, token: str, spans: Sequence[Span]) -> tuple["GroupState", Claim]:
        """With the next events of a member's lane in a claim.

        Args:
            spans: each begins at the lane's place.
        """
        lane = self.lane_of_slot(slot)
        places = self.layer.lanes[lane]
        assert all(s.start == places.get(s.chain, ORIGIN) < s.end for s in spans)
        if len(self.claims) >= _CLAIMS_MAX:
            raise ConflictError(
                f"too many events are claimed and not committed. claims={len(self.claims)}"
            )
        claim = Claim(self.next_id, self.layer.id, lane, slot, token, tuple(spans))
        layer = self.layer.moved(lane, {s.chain: s.end for s in spans})
        state = replace(
            self,
            layers=(*self.layers[:-1], layer),
            claims=(*self.claims, claim),
            next_id=self.next_id + 1,
        )
        return state, claim

    def taken(self, claim: Claim, slot: int, token: str) -> "GroupState":
        """With a claim in other hands, handed out once more."""
        again = replace(claim, owner=slot, token=token, deliveries=claim.deliveries + 1)
        return self._with_claims(lambda c: again if c.id == claim.id else c)

    def split(self, claim: Claim, first: Event, deliveries: int) -> "GroupState":
        """With a claim in two: its first event alone, and the rest, which has the same number.

        Args:
            deliveries: of the event alone, this one included.
        """
        chain, start, end = chain_of(first), place_of(first), place_after(first)
        alone = replace(
            claim, id=self.next_id, spans=(Span(chain, start, end),), deliveries=deliveries
        )
        spans: list[Span] = []
        for span in claim.spans:
            if span.chain == chain and span.start <= start < span.end:
                spans += [Span(chain, span.start, start), Span(chain, end, span.end)]
            else:
                spans.append(span)
        # The rest was not handed out this time.
        rest = replace(
            claim,
            spans=tuple(s for s in spans if s.start < s.end),
            token="",
            deliveries=deliveries - 1,
        )
        state = self._with_claims(lambda c: rest if c.id == claim.id else c)
        claims = tuple(c for c in state.claims if c.spans)
        return replace(state, claims=(*claims, alone), next_id=self.next_id + 1)

    def committed(self, claims: Iterable[int], token: str) -> "GroupState":
        """Without some claims: their events are processed.

        Raises:
            FencedError: one of them is somebody else's by now; nothing is committed.
        """
        wanted = set(claims)
        mine = {c.id for c in self.claims if c.token == token}
        if not wanted <= mine:
            raise FencedError(
                "what was handed out to this instance was given to another meanwhile: roll back."
            )
        return replace(self, claims=tuple(c for c in self.claims if c.id not in wanted))._pruned()

    def released(self, claims: Iterable[int], token: str) -> "GroupState":
        """With some claims in nobody's hands, for any member to take."""
        wanted = set(claims)
        return self._with_claims(
            lambda c: replace(c, token="") if c.id in wanted and c.token == token else c
        )

    def advanced(self, slot: int, places: Places) -> "GroupState":
        """With a member's lane at other places: what lies before them is processed."""
        layer = self.layer.moved(self.lane_of_slot(slot), places)
        return replace(self, layers=(*self.layers[:-1], layer))._pruned()

    def buried(self, letter: DeadLetter) -> "GroupState":
        """With an event given up."""
        if any(known.offset == letter.offset for known in self.dead):
            return self
        if len(self.dead) >= _DEAD_LETTERS_MAX:
            raise ConflictError(
                f"the group has given up {len(self.dead)} events, and keeps no more: look at them "
                "(group dump), then reset the group."
            )
        return replace(self, dead=(*self.dead, letter))

    def in_generation(self, generation: int) -> "GroupState":
        """At the start of a later generation of the stream."""
        layer = Layer(
            self.next_id,
            self.layer.strategy,
            self.layer.key_header,
            tuple({} for _ in self.layer.lanes),
        )
        return replace(
            self,
            generation=generation,
            layers=(layer,),
            claims=(),
            # Letters point at originals, which are gone.
            dead=tuple(d for d in self.dead if d.offset.generation >= generation),
            next_id=self.next_id + 1,
            epoch=self.epoch + 1,
            mirror=(),
        )

    def reset(self, generation: int, places: Places) -> "GroupState":
        """At other places, without claims, members and dead letters."""
        fresh = replace(self, members={}, dead=()).in_generation(generation)
        lanes = tuple(dict(places) for _ in fresh.layer.lanes)
        return replace(fresh, layers=(replace(fresh.layer, lanes=lanes),))

    def settled(self, ends: Mapping[tuple[ChainId, Place], Place]) -> "GroupState":
        """With places written in another way, which mean the same: see ``sealed_ends``."""

        def written(places: Places) -> Places:
            return {chain: ends.get((chain, place), place) for chain, place in places.items()}

        layers = (replace(y, lanes=tuple(map(written, y.lanes))) for y in self.layers)
        return replace(self, layers=tuple(layers))._pruned()

    def without(self, is_gone: Callable[[ChainId], bool]) -> "GroupState":
        """Without the places in chains that no reader sees any more."""

        def kept(places: Places) -> Places:
            return {c: p for c, p in places.items() if not is_gone(c)}

        layers = tuple(replace(y, lanes=tuple(map(kept, y.lanes))) for y in self.layers)
        # Not what is in somebody's hands: he may have more in the same claim.
        busy = {member.token for member in self.members.values()}
        claims = (
            c
            if c.token in busy
            else replace(c, spans=tuple(s for s in c.spans if not is_gone(s.chain)))
            for c in self.claims
        )
        return replace(self, layers=layers, claims=tuple(c for c in claims if c.spans))

    def _with_claims(self, change: Callable[[Claim], Claim]) -> "GroupState":
        return replace(self, claims=tuple(map(change, self.claims)))

    def _pruned(self) -> "GroupState":
        """Without layers that remember nothing: the last one has passed them in every lane."""
        if len(self.layers) == 1:
            return self
        low = self.layer.low()

        def is_needed(layer: Layer) -> bool:
            high = layer.high()
            if any(place > low.get(chain, ORIGIN) for chain, place in high.items()):
                return True
            # It also says which events in the spans of its own and of later claims are not theirs.
            return any(
                claim.layer == layer.id
                or (
                    claim.layer > layer.id
                    and any(s.start < high.get(s.chain, ORIGIN) for s in claim.spans)
                )
                for claim in self.claims
            )

        return replace(self, layers=(*filter(is_needed, self.layers[:-1]), self.layer))
