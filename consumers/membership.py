"""Being a member of a group: a slot that is held, and a token that says who holds it.

The slot is a claim in the property store, which ends with the process: it tells the others who lives.
The token stands in the group's state: it tells this instance whether it is still the one.
"""

import contextlib
import logging
import os
import random
import socket
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from filestream.clock import Clock
from filestream.consumers.assignment import Strategy
from filestream.consumers.group import GroupDocument
from filestream.consumers.layers import Member
from filestream.consumers.state import GroupState
from filestream.errors import ConflictError, FencedError, InvalidRequestError
from filestream.partitions.generations import Generations
from filestream.storage.base import Lock

__all__ = ["AgainError", "Division", "Membership", "check_instance"]

logger = logging.getLogger(__name__)

_SLOTS_MAX: Final = 1024


class AgainError(Exception):
    """The state changed under a step: look at it and begin anew. Never leaves this floor."""


@dataclass(frozen=True, slots=True)
class Division:
    """How a consumer wants the group to be divided; None where it takes what is there.

    Attributes:
        instances: 0 for as many as there are members.
        is_external: the positions are kept in a store of the consumer's own.
    """

    strategy: Strategy | None
    key_header: str | None
    instances: int | None
    is_external: bool = False

    def applied(self, state: GroupState) -> GroupState:
        """The state divided as wanted."""
        strategy: Strategy = self.strategy or state.layer.strategy
        key = self.key_header
        if key is None and strategy == "hash" == state.layer.strategy:
            key = state.layer.key_header
        instances = state.instances if self.instances is None else self.instances
        state = state.reconfigured(strategy, key, instances)
        return replace(state, is_external=True) if self.is_external else state


def check_instance(instance: object, instances: int) -> None:
    """Refuse an instance that cannot be.

    Raises:
        InvalidRequestError: no such instance, or one where the group numbers them itself.
    """
    if instance is None:
        return
    if instances == 0:
        raise InvalidRequestError(
            f"the group numbers its instances itself (auto): do not give one. instance={instance!r:.50}"
        )
    if type(instance) is not int or not 0 <= instance < instances:
        raise InvalidRequestError(
            f"there is no such instance: they count from 0. instance={instance!r:.50} "
            f"instances={instances}"
        )


class Membership:
    """One instance of a group; not thread-safe.

    Args:
        generations: of the stream.
        instance: which one to be; None for 0, or where members come and go, for any.
        takeover: replace a living process that is this instance.

    Attributes:
        slot: the instance.
        token: of this process.

    Raises:
        ConflictError: another living process is this instance.
        InvalidRequestError: there is no such instance.
    """

    def __init__(
        self,
        document: GroupDocument,
        generations: Generations,
        division: Division,
        *,
        instance: int | None,
        takeover: bool,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._document = document
        self._generations = generations
        self._division = division
        self._clock = clock
        self._lock: Lock | None = None
        self._has_taken_over = takeover
        self._process = os.getpid()
        self.token = f"{chance.getrandbits(64):016x}"
        # First everything that can be refused, then the claim, and only then a change for all.
        state = self._up_to_date(document.read())
        check_instance(instance, state.instances)
        _memberships.add(self)
        self.slot = self._hold(state, instance, takeover=takeover)
        try:
            self._join(self._up_to_date)
        except BaseException:
            self.close()
            raise

    def _up_to_date(self, state: GroupState) -> GroupState:
        """In the current generation, divided as this consumer wants it."""
        return self._division.applied(self.in_current_generation(state))

    def in_current_generation(self, state: GroupState) -> GroupState:
        """At the start of the stream's generation, if the state is of an older one."""
        current = self._generations.current().number
        return state.in_generation(current) if state.generation < current else state

    def _hold(self, state: GroupState, instance: int | None, *, takeover: bool) -> int:
        if state.is_auto:
            for slot in range(_SLOTS_MAX):
                with contextlib.suppress(ConflictError):
                    self._lock = self._document.hold(slot)
                    return slot
            raise ConflictError(f"the group has too many members. members={_SLOTS_MAX}")
        slot = instance or 0
        try:
            self._lock = self._document.hold(slot)
        except ConflictError as error:
            if not takeover:
                raise ConflictError(
                    f"another living process is instance {slot} of group {self._document.name!r}: "
                    "stop it, take another instance, or fence it with takeover=True. A process that "
                    "died is believed to live until its session has ended."
                ) from error
        return slot

    def _join(self, before: Callable[[GroupState], GroupState]) -> None:
        member = Member(self.token, socket.gethostname(), os.getpid(), self._clock.now_ms())
        self._document.change(lambda state: before(state).joined(self.slot, member))

    def rejoin(self) -> None:
        """The group was reset or divided anew: go on, if that is what this consumer was opened for."""
        state = self._document.read()
        if self._division.applied(state) != state:
            raise FencedError(
                f"the group was changed to instances={state.instances or 'auto'} "
                f"strategy={state.layer.strategy}: open the consumer anew."
            )
        if not state.is_auto and self.slot >= state.instances:
            raise FencedError(
                f"the group has fewer instances now: close this one. instance={self.slot} "
                f"instances={state.instances}"
            )
        self.renew()
        if self._lock is None:
            if state.is_auto:
                self.slot = self._hold(state, None, takeover=False)
            elif not self._has_taken_over:
                raise FencedError(
                    f"another living process is this instance: close this one. instance={self.slot}"
                )
        self._join(lambda now: now)

    def is_out(self, state: GroupState) -> bool:
        """Whether this process is no member (any more), and may become one again."""
        member = state.members.get(self.slot)
        return member is None or (state.is_auto and member.token != self.token)

    def renew(self) -> None:
        """Hold the slot again after a lost session, or when the one that was fenced has gone."""
        if self._lock is None or not self._lock.is_held:
            try:
                self._lock = self._document.hold(self.slot)
            except ConflictError:
                self._lock = None

    def check_process(self) -> None:
        """Raises FencedError in a forked child: the slot and the token are the parent's."""
        if self._process != os.getpid():
            raise FencedError(
                "this consumer belongs to the parent process: open another in the child"
            )

    def check(self, state: GroupState) -> None:
        """Raises FencedError when this instance is somebody else's by now."""
        state.check_member(self.slot, self.token)

    def orphans(self, state: GroupState) -> set[tuple[int, str]]:
        """Claims of members that have died, as ``(id, token)``.

        Raises:
            AgainError: where members come and go, the dead were members, and are no more.
        """
        living = set(self._document.living()) | {self.slot}
        dead = {slot: m.token for slot, m in state.members.items() if slot not in living}
        if state.is_auto and dead:
            logger.info("members died: group=%s slots=%s", self._document.name, sorted(dead))
            self._document.change(
                lambda now: now.left(
                    slot
                    for slot, token in dead.items()
                    if slot in now.members and now.members[slot].token == token
                )
            )
            raise AgainError
        tokens = {m.token for slot, m in state.members.items() if slot in living}
        return {(c.id, c.token) for c in state.claims if c.token not in tokens}

    def leave(self, claims: list[int]) -> None:
        """Tell the others, and let them have what was claimed."""
        self.check_process()
        self._document.change(lambda state: self._left(state, claims))

    def close(self) -> None:
        """Give the slot back; may be called twice."""
        if self._lock is not None:
            self._lock.close()

    def _left(self, state: GroupState, claims: list[int]) -> GroupState:
        state = state.released(claims, self.token)
        member = state.members.get(self.slot)
        if member is None or member.token != self.token:
            return state
        return state.left([self.slot])


# Weak, so that a consumer that was dropped without close can go.
_memberships: "weakref.WeakSet[Membership]" = weakref.WeakSet()


def _forget_memberships_of_parent() -> None:
    """In a forked child: a lock that the child holds too would outlive the parent."""
    for membership in list(_memberships):
        membership.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_memberships_of_parent)
