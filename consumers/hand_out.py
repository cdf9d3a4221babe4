"""What is in the hands of one instance, how more gets there, and how it leaves.

Either claims, which stand in the group's state, or the places behind what was handed out, which only
this process knows until it commits. Not thread-safe.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final

from filestream.clock import Clock
from filestream.consumers.batch import Batch
from filestream.consumers.group import GroupDocument
from filestream.consumers.lane_reader import LaneReader, partitions_of, sealed_ends
from filestream.consumers.layers import Claim, Span, chain_of, place_after, place_of
from filestream.consumers.membership import AgainError, Membership
from filestream.consumers.positions import UserPosition
from filestream.consumers.redelivery import Redelivery
from filestream.consumers.state import GroupState
from filestream.errors import FencedError, FilestreamError, UnavailableError
from filestream.partitions.chain import ChainId, Place
from filestream.partitions.event import Event
from filestream.partitions.generations import Generation
from filestream.partitions.snapshot import StreamView

__all__ = ["HandOut"]

logger = logging.getLogger(__name__)

# How often an instance looks whether others have died, and notes how far it has read for nothing.
_LOOK_S: Final = 1.0
_TIDY_S: Final = 2.0
# Bytes of bodies after which a batch ends, however many events were asked for.
_BATCH_SIZE_MAX: Final = 64 << 20
# How many events of others are read between two looks at the clock.
_STRIDE: Final = 4096
_ORIGIN: Final = Place()
_DIVIDED: Final = "the group was divided anew: roll back; the next fetch goes on."


class HandOut:
    """Args:
    max_deliver: give an event up after so many deliveries; None never does.
    position: of this instance in the user's store; None where the group's state has it.
    """

    def __init__(
        self,
        view: StreamView,
        document: GroupDocument,
        membership: Membership,
        *,
        clock: Clock,
        max_deliver: int | None,
        position: UserPosition | None,
    ) -> None:
        self._view = view
        self._document = document
        self._membership = membership
        self._clock = clock
        self._max_deliver = max_deliver
        self._position = position
        # What was read in this life and epoch of the group, in this generation.
        self._life: tuple[str, int] = ("", 0)
        self._generation: Generation | None = None
        self._reader: LaneReader | None = None
        # In hand: claims, and events without a claim, of which the places behind them are known here
        # alone; as are those behind events that are nobody's or another lane's.
        self._claims: list[int] = []
        self._loose = 0
        self._read_to: dict[ChainId, Place] = {}
        self._redelivery = Redelivery(
            view, document, membership, clock=clock, max_deliver=max_deliver
        )
        self._looked_s = float("-inf")
        self._noted_s = self._tidied_s = clock.monotonic_s()

    def look(self, timeout_s: float) -> None:
        """Wait for something new; with no time left, make the next ``take`` look at everything."""
        assert self._reader is not None
        if timeout_s > 0:
            self._reader.wait(min(timeout_s, _LOOK_S))
        else:
            self._reader.look_everywhere()

    def commit(self) -> None:
        """What is in hand is processed.

        Raises:
            FencedError: it is not ours any more; nothing was committed.
        """
        self._membership.check_process()
        if self.is_empty and not self._read_to:
            return
        self._check_generation()
        if self._position is not None:
            self._save_position(self._position)
        else:
            self._document.change(self._commit)
        self._let_go()
        self._tidy()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in hand."""
        return not (self._claims or self._loose)

    def rollback(self) -> None:
        """What is in hand is to be handed out again."""
        if self._read_to or self._position is not None:
            # Read under places that were never committed: read from those again.
            self.forget_reader()
        self._let_go()

    def _let_go(self) -> None:
        self._claims = []
        self._loose = 0
        self._read_to = {}

    def leave(self) -> None:
        """Give everything back, and leave the group."""
        claims = list(self._claims)
        self.rollback()
        self._membership.leave(claims)
        self._tidied_s = float("-inf")
        self._tidy()
        if self._position is not None:
            with contextlib.suppress(FilestreamError):
                self._mirror(self._document.read(), self._position)

    def take(self, max_events: int, until_s: float) -> Batch:
        """The next events that are there now, into this instance's hands.

        Args:
            until_s: stop reading what is not this instance's then.

        Raises:
            AgainError: something changed on the way, or there is more to read; try again.
        """
        self._membership.check_process()
        try:
            return self._take(max_events, until_s)
        except AgainError:
            raise
        except BaseException:
            # What was read and not handed out must be read again.
            self.forget_reader()
            raise

    def _take(self, max_events: int, until_s: float) -> Batch:
        state = self._see()
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._membership.renew()
            if state.claims or state.is_auto:
                self._redelivery.look(state)
        if state.claims:
            assert self._generation is not None
            found = self._redelivery.take(state, self._generation, self._claims)
            if found is not None:
                self._claims.append(found[0])
                return found[1]
            state = self._see()
        return self._take_new(state, max_events, until_s)

    def _see(self) -> GroupState:
        """The state, with this instance in it, and a reader that fits it."""
        generation = self._generation
        if generation is not None and not self._view.generations.is_current(generation):
            self._view.generations.current()  # Says so when the stream was deleted.
        state = self._document.read()
        if self._membership.is_out(state):
            if self._holds_unclaimed:
                self._membership.check(state)
            self._membership.rejoin()
            state = self._document.read()
        self._membership.check(state)
        if self._generation is None or not self._view.generations.is_current(self._generation):
            self._generation = self._view.generations.current()
            if state.generation < self._generation.number:
                state = self._document.change(self._membership.in_current_generation)
        if state.generation > self._generation.number:
            raise FencedError(
                "the state of the group is of a later generation than the stream: was the stream "
                f"restored from a copy? Reset the group. state={state.generation} "
                f"stream={self._generation.number}"
            )
        is_same = _life(state) == self._life
        if self._reader is None or not is_same:
            if self._holds_unclaimed and not is_same:
                raise FencedError(
                    "the group was divided anew, or the stream was truncated: roll back; the next "
                    "fetch goes on."
                )
            self._begin_reading(state)
        elif self._position is not None and self.is_empty:
            self._check_position(state, self._position)
        return state

    @property
    def _holds_unclaimed(self) -> bool:
        """Whether there is something in hand that nobody else knows of."""
        return self._loose > 0

    def _lane(self, state: GroupState) -> Mapping[ChainId, Place]:
        return state.layer.lanes[state.lane_of_slot(self._membership.slot)]

    def _begin_reading(self, state: GroupState) -> None:
        self.forget_reader()
        places = self._lane(state)
        if self._position is not None:
            places = self._position.load(state, places)
        if _life(state) != self._life or not self._holds_unclaimed:
            self._read_to = {}
        # Behind what is in hand, when a read failed and nothing else has happened.
        self._reader = LaneReader(self._view, {**places, **self._read_to})
        self._life = _life(state)

    def forget_reader(self) -> None:
        """Let go of the reader; the next ``take`` makes another."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _take_new(self, state: GroupState, max_events: int, until_s: float) -> Batch:
        reader = self._reader
        assert reader is not None
        reader.take_changes()
        lane = state.lane_of_slot(self._membership.slot)
        has_claims = state.needs_claims or self._max_deliver is not None
        # Where others take from the same lane, what lies before its places is theirs.
        has_rivals = has_claims and len(state.layer.lanes) == 1
        theirs = state.layer.lanes[lane] if has_rivals else None
        taken: list[Event] = []
        ends = _Ends()
        is_mine = self._filter(state, lane)
        has_more, size = False, 0
        while len(taken) < max_events:
            event = self._next(reader, state, theirs)
            if event is None:
                break
            ends.pass_by(event)
            if is_mine(event):
                taken.append(event)
                size += len(event.body)
                if size >= _BATCH_SIZE_MAX:
                    break
            elif ends.count % _STRIDE == 0 and self._clock.monotonic_s() > until_s:
                has_more = True
                break
        if taken and has_claims:
            return self._claim(state, taken, ends.places())
        self._read_to.update(ends.places())
        self._loose += len(taken)
        if not taken:
            self._note_progress()
        if has_more and not taken:
            raise AgainError
        return Batch(taken)

    def _next(
        self, reader: LaneReader, state: GroupState, theirs: Mapping[ChainId, Place] | None
    ) -> Event | None:
        """The next event that no rival has; None when there is none now."""
        while (event := reader.next()) is not None:
            if event.segment.partition.generation != state.generation:
                reader.put_back(event)
                self._generation = None
                raise AgainError
            if theirs is None or place_of(event) >= theirs.get(chain_of(event), _ORIGIN):
                return event
        return None

    def _filter(self, state: GroupState, lane: int) -> Callable[[Event], bool]:
        """Which events are this instance's."""
        layer = state.layer
        # An event that was read before it expired may have waited here since.
        alive_ms = self._view.alive.from_ms
        if len(layer.lanes) == 1 and len(state.layers) == 1 and not state.dead:
            return lambda event: event.timestamp_ms >= alive_ms

        def is_mine(event: Event) -> bool:
            return (
                event.timestamp_ms >= alive_ms
                and layer.lane_of(event) == lane
                and not state.is_behind_older(event)
                and not state.is_dead(event)
            )

        return is_mine

    def _claim(self, seen: GroupState, taken: list[Event], ends: dict[ChainId, Place]) -> Batch:
        """Claim what was read; others may have claimed a part of it meanwhile."""
        mine: list[Event] = []
        made: list[Claim] = []

        def step(state: GroupState) -> GroupState:
            mine.clear()
            made.clear()
            self._membership.check(state)
            if (_life(state), state.generation) != (_life(seen), seen.generation):
                raise AgainError
            places = state.layer.lanes[state.lane_of_slot(self._membership.slot)]
            mine.extend(e for e in taken if place_of(e) >= places.get(chain_of(e), _ORIGIN))
            if not mine:
                return state
            spans = [
                Span(chain, places.get(chain, _ORIGIN), end)
                for chain, end in sorted(ends.items())
                if end > places.get(chain, _ORIGIN)
            ]
            after, claim = state.claimed(self._membership.slot, self._membership.token, spans)
            made.append(claim)
            return after

        try:
            self._document.change(step)
        except AgainError:
            # What was read and not claimed must be read again.
            self.forget_reader()
            raise
        if not mine:
            raise AgainError
        self._claims.append(made[0].id)
        return Batch(mine)

    def _note_progress(self) -> None:
        """Events of other lanes were read: note it now and then, so that lag and state stay small."""
        now_s = self._clock.monotonic_s()
        if not (self._read_to and self.is_empty) or now_s - self._noted_s < _LOOK_S:
            return
        if self._position is None:
            self._noted_s = now_s
            with contextlib.suppress(FencedError):
                self._document.change(self._commit)
                self._read_to = {}

    # -- committing --------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Now and then, after a commit: write the places of finished segments short.

        What was to be committed was; if this fails, the next one will do it.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._tidied_s < _TIDY_S:
            return
        self._tidied_s = now_s
        with contextlib.suppress(FilestreamError):
            state = self._document.read()
            ends: dict[tuple[ChainId, Place], Place] = {}
            for places in state.layer.lanes:
                ends |= sealed_ends(self._view, places)
            there = partitions_of(self._view, state.generation)
            alive = self._view.alive

            def is_gone(chain: ChainId) -> bool:
                # By the ttl and from the disk: a clock alone may be wrong, and the ttl be changed.
                partition = chain.partition
                return partition not in there and alive.is_disjoint(
                    partition.start_ms, partition.end_ms
                )

            self._document.change(lambda now: now.settled(ends).without(is_gone))

    def _check_generation(self) -> None:
        if self._generation is None or not self._view.generations.is_current(self._generation):
            self._view.generations.current()  # Says so when the stream was deleted.
            raise FencedError(
                "the stream was truncated after these events were fetched: undo what you did with "
                "them; the next fetch goes on in the new generation."
            )

    def _commit(self, state: GroupState) -> GroupState:
        is_same = _life(state) == self._life
        if self._loose:
            self._membership.check(state)
            if not is_same:
                raise FencedError(_DIVIDED)
        state = state.committed(self._claims, self._membership.token)
        if self._read_to and is_same and not self._membership.is_out(state):
            self._membership.check(state)
            state = state.advanced(self._membership.slot, self._read_to)
        return state

    # -- positions in the user's own store -----------------------------------------------------

    def _save_position(self, position: UserPosition) -> None:
        state = self._document.read()
        self._membership.check(state)
        if _life(state) != self._life:
            raise FencedError(_DIVIDED)
        position.save(state, self._lane(state), self._read_to)

    def _check_position(self, state: GroupState, position: UserPosition) -> None:
        """The user's transaction may have been rolled back after we saved into it."""
        if position.has_changed:
            self._begin_reading(state)
        now_s = self._clock.monotonic_s()
        if now_s - self._noted_s >= _LOOK_S:
            self._noted_s = now_s
            with contextlib.suppress(FencedError, UnavailableError):
                self._mirror(state, position)

    def _mirror(self, state: GroupState, position: UserPosition) -> None:
        """For those who look at the group from outside: how far the user's store says we are.

        Not more than that: the user's transaction may still be rolled back.
        """
        life = self._life
        lane = self._membership.slot if len(state.layer.lanes) > 1 else 0
        if _life(state) != life or lane >= len(state.layer.lanes):
            return
        places = position.load(state, state.layer.lanes[lane])
        self._document.change(lambda now: now.mirrored(lane, places) if _life(now) == life else now)


def _life(state: GroupState) -> tuple[str, int]:
    """Of a group that was removed and made again, epochs count from 1 again."""
    return state.id, state.epoch


class _Ends:
    """The places behind the events that went by; makes one for each run of a segment's events.

    Attributes:
        count: of events.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last: Event | None = None
        self._places: dict[ChainId, Place] = {}

    def pass_by(self, event: Event) -> None:
        self.count += 1
        last = self._last
        if last is not None and last.segment is not event.segment:
            self._keep(last)
        self._last = event

    def places(self) -> dict[ChainId, Place]:
        if self._last is not None:
            self._keep(self._last)
        return self._places

    def _keep(self, event: Event) -> None:
        chain, place = chain_of(event), place_after(event)
        # A chain is read in its own order.
        assert place >= self._places.get(chain, _ORIGIN)
        self._places[chain] = place
