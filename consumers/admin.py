"""A group from outside: what an operator looks at, and what he may do to it."""

import random
from dataclasses import dataclass, replace
from typing import Final

from filestream.clock import Clock
from filestream.consumers.assignment import Strategy
from filestream.consumers.group import GroupDocument, check_instances, new_state
from filestream.consumers.lag import Lag, measure_lag
from filestream.consumers.layers import DeadLetter, Places
from filestream.consumers.state import GroupState
from filestream.consumers.state_document import decode_state, encode_state
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    InvalidRequestError,
    UnsupportedVersionError,
)
from filestream.partitions.layout import Offset
from filestream.partitions.places import places_at
from filestream.partitions.positions import PositionLike, parse_position
from filestream.partitions.snapshot import StreamView

__all__ = ["Group", "Reset"]

_DUMP_SIZE_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset did, or would do.

    Attributes:
        before, after: what is left to be processed; None where the state cannot be read.
    """

    before: Lag | None
    after: Lag


class Group:
    """Made by ``Stream.group``; holds nothing open."""

    def __init__(
        self, view: StreamView, document: GroupDocument, *, clock: Clock, chance: random.Random
    ) -> None:
        self._view = view
        self._document = document
        self._clock = clock
        self._chance = chance

    @property
    def name(self) -> str:
        """Of the group."""
        return self._document.name

    def state(self) -> GroupState:
        """The state now.

        Raises:
            NotFoundError: there is no such group.
            CorruptDataError, UnsupportedVersionError: its document cannot be read.
        """
        return self._document.read()

    def lag(self) -> Lag:
        """What it has not processed, from files and state alone; errors as ``state``."""
        return measure_lag(self._view, self.state())

    def living(self) -> list[int]:
        """Instances that a living process holds."""
        return list(self._document.living())

    def dump(self) -> str:
        """The state as text; ``reset(dump=...)`` takes it."""
        return encode_state(self.state()).decode()

    def reset(
        self,
        to: PositionLike | None = None,
        *,
        group: str | None = None,
        dump: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Reset:
        """Go on from somewhere else; claims and dead letters are forgotten, and members fenced.

        Works also when the state is damaged.

        Args:
            to: a position, see ``Stream.read``.
            group: go on where another group of this stream stands.
            dump: go on where a dump says.
            force: also while members live; what they have in hand can then not be committed.
            dry_run: only say what would come of it.

        Raises:
            ConflictError: members live.
            FencedError: the position, or the dump, lies in a generation that was truncated.
            InvalidRequestError: not exactly one place to go on from.
            NotFoundError: there is no such group.
        """
        if sum(given is not None for given in (to, group, dump)) != 1:
            raise InvalidRequestError("say one place to go on from: a position, a group or a dump.")
        before = self._readable()
        generation, places = self._target(to, group, dump)
        base = before or new_state(self._chance, generation, {})
        after = base.reset(generation, places)
        if dump is not None and before is None:
            # Another life: members of the damaged one must not pass for its own.
            after = replace(self._parse_dump(dump), members={}, id=base.id)
        if not dry_run:
            self.refuse_living(force=force)
        result = Reset(
            None if before is None else measure_lag(self._view, before),
            measure_lag(self._view, after),
        )
        if not dry_run:
            if before is None:
                self._document.replace(after)
            else:
                self._document.change(lambda state: state.reset(generation, places))
        return result

    def remove(self, *, force: bool = False) -> None:
        """Forget the group, its dead letters too.

        Raises:
            NotFoundError: there is none.
            ConflictError: members live, and it is not forced.
        """
        if not self._document.exists:
            self._document.read()  # Says so.
        self.refuse_living(force=force)
        self._document.remove()

    def skip(self, offset: Offset | str) -> None:
        """Never hand an event out again; it stands among the dead letters then.

        Raises:
            InvalidRequestError: no offset.
            FencedError: it was truncated.
            NotFoundError: there is no such event, or no such group.
        """
        at = Offset.parse(offset) if isinstance(offset, str) else offset
        places_at(self._view, at)  # Says so when there is no such event.
        letter = DeadLetter(at, 0, "skipped", self._clock.now_ms())
        self._document.change(lambda state: state.buried(letter))

    def reconfigure(
        self,
        *,
        instances: int | str | None = None,
        strategy: Strategy | None = None,
        key_header: str | None = None,
    ) -> GroupState:
        """Divide the group anew, also while members work: those must be opened anew then.

        Raises:
            InvalidRequestError: no such division.
        """
        count = check_instances(instances)

        def step(state: GroupState) -> GroupState:
            wanted = strategy or state.layer.strategy
            key = key_header
            if key is None and wanted == state.layer.strategy:
                key = state.layer.key_header
            return state.reconfigured(wanted, key, state.instances if count is None else count)

        return self._document.change(step)

    def _readable(self) -> GroupState | None:
        """The state; None when it is damaged, which a reset mends."""
        try:
            return self.state()
        except CorruptDataError:
            return None

    def _target(
        self, to: PositionLike | None, group: str | None, dump: str | None
    ) -> tuple[int, Places]:
        if to is not None:
            return places_at(self._view, parse_position(to, now_ms=self._clock.now_ms()))
        if group is not None:
            state = self._document.sibling(group).read()
        else:
            assert dump is not None
            state = self._parse_dump(dump)
        current = self._view.generations.current().number
        if state.generation != current:
            raise FencedError(
                "what it says lies in a generation that was truncated: reset to 'start'. "
                f"generation={state.generation} current={current}"
            )
        return state.generation, state.low()

    def _parse_dump(self, dump: str) -> GroupState:
        if len(dump) > _DUMP_SIZE_MAX:
            raise InvalidRequestError(
                f"this is no dump of a group: it is too long. size={len(dump)}"
            )
        try:
            state = decode_state(dump.encode(), url="dump")
        except UnsupportedVersionError:
            raise
        except CorruptDataError as error:
            raise InvalidRequestError(f"this is no dump of a group: {error}") from error
        if state is None:
            raise InvalidRequestError("this is the dump of a group that was removed.")
        return state

    def refuse_living(self, *, force: bool) -> None:
        """Raises ConflictError while members live, unless it is forced."""
        living = self.living()
        if living and not force:
            raise ConflictError(
                f"members of the group live: stop them, or force it. group={self.name} "
                f"instances={', '.join(map(str, living))}"
            )

    def __repr__(self) -> str:
        return f"Group({self._view.storage.url!r}, {self.name!r})"
