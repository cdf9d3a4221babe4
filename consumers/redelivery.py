"""Events that were handed out before and not committed: by this instance, or by one that is gone.

Not thread-safe.
"""

import logging

from filestream.clock import Clock
from filestream.consumers.batch import Batch
from filestream.consumers.group import GroupDocument
from filestream.consumers.lane_reader import read_spans
from filestream.consumers.layers import Claim, DeadLetter
from filestream.consumers.membership import AgainError, Membership
from filestream.consumers.state import GroupState
from filestream.partitions.event import Event
from filestream.partitions.generations import Generation
from filestream.partitions.snapshot import StreamView

__all__ = ["Redelivery"]

logger = logging.getLogger(__name__)


class Redelivery:
    """Args:
    max_deliver: give an event up after so many deliveries; None never does.
    """

    def __init__(
        self,
        view: StreamView,
        document: GroupDocument,
        membership: Membership,
        *,
        clock: Clock,
        max_deliver: int | None,
    ) -> None:
        self._view = view
        self._document = document
        self._membership = membership
        self._clock = clock
        self._max_deliver = max_deliver
        # Claims of members that have died, by the last look, with the token they had then.
        self._orphans: set[tuple[int, str]] = set()

    def look(self, state: GroupState) -> None:
        """See who has died.

        Raises:
            AgainError: where members come and go, the dead were members, and are no more.
        """
        self._orphans = self._membership.orphans(state)

    def take(
        self, state: GroupState, generation: Generation, in_hand: list[int]
    ) -> tuple[int, Batch] | None:
        """The next such events with the claim they are in; own ones first, then orphans.

        Args:
            in_hand: claims that are not to be handed out again.

        Raises:
            AgainError: something changed; look at the state and try again.
        """
        for claim in sorted(state.claims, key=lambda c: (c.token != self._membership.token, c.id)):
            if claim.id in in_hand or self._is_of_another_lane(state, claim):
                continue
            is_own = claim.token == self._membership.token
            if is_own or not claim.token or (claim.id, claim.token) in self._orphans:
                found = self._hand_out(state, generation, claim)
                if found is not None:
                    return found
        return None

    def _is_of_another_lane(self, state: GroupState, claim: Claim) -> bool:
        """Where lanes are fixed, what belongs to one waits for its instance."""
        return (
            not state.is_auto
            and claim.layer == state.layer.id
            and len(state.layer.lanes) > 1
            and claim.lane != state.lane_of_slot(self._membership.slot)
        )

    def _hand_out(
        self, state: GroupState, generation: Generation, seen: Claim
    ) -> tuple[int, Batch] | None:
        # Read before it is taken: a disk that fails is no delivery.
        events = read_spans(
            self._view, generation, seen.spans, lambda event: state.belongs_to(event, seen)
        )
        claim = self._document.change(lambda now: self._taken(now, seen)).claim(seen.id)
        if claim is None or claim.token != self._membership.token:
            return None
        if not events:
            # All of it expired or was given up.
            self._document.change(lambda now: now.committed([claim.id], self._membership.token))
            raise AgainError
        if self._max_deliver is not None and claim.deliveries >= max(2, self._max_deliver):
            return self._hand_out_one(claim, events, self._max_deliver)
        return claim.id, Batch(events, claim.deliveries)

    def _taken(self, state: GroupState, seen: Claim) -> GroupState:
        self._membership.check(state)
        if state.claim(seen.id) != seen:
            return state  # Committed, or somebody else was faster.
        return state.taken(seen, self._membership.slot, self._membership.token)

    def _hand_out_one(
        self, claim: Claim, events: list[Event], max_deliver: int
    ) -> tuple[int, Batch]:
        """The last try, one by one: so it is the right event that is given up, and no other."""
        first = events[0]
        if len(events) > 1:
            claim = self._split(claim, first, max_deliver)
        if claim.deliveries > max_deliver:
            letter = DeadLetter(
                first.offset, claim.deliveries - 1, "delivered too often", self._clock.now_ms()
            )
            self._document.change(
                lambda now: now.buried(letter).committed([claim.id], self._membership.token)
            )
            logger.warning("event given up: group=%s offset=%s", self._document.name, first.offset)
            raise AgainError
        return claim.id, Batch([first], claim.deliveries)

    def _split(self, claim: Claim, first: Event, deliveries: int) -> Claim:
        """The claim of the first event alone."""
        alone: list[int] = []

        def step(state: GroupState) -> GroupState:
            alone.clear()
            if state.claim(claim.id) != claim:
                return state
            alone.append(state.next_id)
            return state.split(claim, first, deliveries)

        state = self._document.change(step)
        part = state.claim(alone[0]) if alone else None
        if part is None:
            raise AgainError
        return part
