"""A stream with its groups: what ``filestream.create`` and ``filestream.open`` return.

Reading and writing are ``filestream.partitions.stream``; this adds groups of consumers, which that
floor knows nothing of.
"""

import os
import random
from collections.abc import Mapping

from filestream.clock import Clock
from filestream.consumers.admin import Group
from filestream.consumers.assignment import Strategy
from filestream.consumers.consumer import Consumer
from filestream.consumers.group import GroupDocument, check_instances, group_names, new_state
from filestream.consumers.hand_out import HandOut
from filestream.consumers.membership import Division, Membership, check_instance
from filestream.consumers.positions import PositionStore, UserPosition
from filestream.consumers.state import GroupState
from filestream.errors import ConflictError, InvalidRequestError
from filestream.partitions import streams
from filestream.partitions.places import places_at
from filestream.partitions.positions import Position, PositionLike, parse_position
from filestream.partitions.stream import Stream as OneStream

__all__ = ["Stream", "create", "open"]


class Stream(OneStream):
    """See ``filestream.partitions.stream.Stream``; and groups."""

    def consumer(
        self,
        group: str,
        *,
        instance: int | None = None,
        instances: int | str | None = None,
        strategy: Strategy | None = None,
        key_header: str | None = None,
        start: PositionLike = "start",
        max_deliver: int | None = None,
        takeover: bool = False,
        positions: PositionStore | None = None,
    ) -> Consumer:
        """Work for a group: each of its events is processed by one instance, once.

        A group that does not exist is made. What is not given stays as the group has it; what is
        given and differs divides the group anew, at once, for all its members.

        Args:
            group: its name.
            instance: which one this process is, from 0; 0 by default. Not with ``"auto"``.
            instances: how many there are; 1 for a new group. ``"auto"``: as many as there are
                members, which come and go.
            strategy: ``"fifo"``: each takes what comes next; ``"round_robin"``: divided evenly, by
                offset; ``"hash"``: events with the same value of ``key_header`` go to the same instance.
            key_header: name of that header; events without it are one key.
            start: where a new group begins; see ``read``.
            max_deliver: after so many deliveries without a commit (at least 2, the last one alone) an
                event becomes a dead letter of the group; None never gives one up.
            takeover: if another living process is this instance, fence it instead of failing.
            positions: keeps the position in the user's own transaction, see ``SqlitePositions``.

        Raises:
            ConflictError: another living process is this instance.
            InvalidRequestError: an instance outside the count, or options that exclude each other.
            FencedError: ``start`` is an offset that was truncated.
        """
        document = GroupDocument(self._store, group, url=self.url)
        division = Division(
            strategy, key_header, check_instances(instances), is_external=positions is not None
        )
        _check_max_deliver(max_deliver)
        position = parse_position(start, now_ms=self._clock.now_ms())
        is_new = not document.exists
        before = self._new_state(position, division) if is_new else document.read()
        state = division.applied(before)
        check_instance(instance, state.instances)
        _check_positions(state, positions, max_deliver)
        if is_new:
            document.create(before)
        view = self.view()
        membership = Membership(
            document,
            view.generations,
            division,
            instance=instance,
            takeover=takeover,
            clock=self._clock,
            chance=self._chance,
        )
        name = f"{self.id}/{group}/{membership.slot}"
        hand_out = HandOut(
            view,
            document,
            membership,
            clock=self._clock,
            max_deliver=max_deliver,
            position=None if positions is None else UserPosition(positions, name),
        )
        return Consumer(membership, hand_out, clock=self._clock, group=group, url=self.url)

    def create_group(
        self,
        name: str,
        *,
        start: PositionLike = "start",
        instances: int | str | None = None,
        strategy: Strategy | None = None,
        key_header: str | None = None,
    ) -> Group:
        """Make a group before anybody works for it; see ``consumer``.

        Raises:
            ConflictError: there is one of this name.
        """
        document = GroupDocument(self._store, name, url=self.url)
        division = Division(strategy, key_header, check_instances(instances))
        position = parse_position(start, now_ms=self._clock.now_ms())
        if not document.create(self._new_state(position, division)):
            raise ConflictError(f"there is a group of this name already. group={name}")
        return self.group(name)

    def groups(self) -> list[str]:
        """Names of the groups, sorted."""
        self._generations.current()
        return group_names(self._store)

    def group(self, name: str) -> Group:
        """A group from outside: its state, its lag, and what an operator may do to it.

        Raises:
            InvalidRequestError: no name of a group. Whether there is one, its methods tell.
        """
        return Group(
            self.view(),
            GroupDocument(self._store, name, url=self.url),
            clock=self._clock,
            chance=self._chance,
        )

    def _new_state(self, position: Position, division: Division) -> GroupState:
        generation, places = places_at(self.view(), position)
        return new_state(
            self._chance,
            generation,
            places,
            strategy=division.strategy or "fifo",
            key_header=division.key_header,
            instances=1 if division.instances is None else division.instances,
        )


def _check_max_deliver(max_deliver: object) -> None:
    if max_deliver is not None and (type(max_deliver) is not int or max_deliver < 2):
        raise InvalidRequestError(
            "max_deliver must be at least 2: the last delivery is of one event alone. "
            f"max_deliver={max_deliver!r:.50}"
        )


def _check_positions(
    state: GroupState, positions: PositionStore | None, max_deliver: int | None
) -> None:
    if positions is None:
        if state.is_external:
            raise InvalidRequestError(
                "the positions of this group are in a store of its members' own: give it as positions="
            )
    elif state.needs_claims or state.claims or max_deliver is not None:
        raise InvalidRequestError(
            "positions in your own store need a group without claims: one instance, or strategy "
            "round_robin or hash with a fixed number of instances, and no max_deliver."
        )


def create(
    url: str | os.PathLike[str],
    *,
    coordination: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    chance: random.Random | None = None,
    **properties: object,
) -> Stream:
    """See ``filestream.partitions.streams.create``."""
    return streams.create_as(
        Stream,
        url,
        coordination=coordination,
        storage_options=storage_options,
        clock=clock,
        chance=chance,
        **properties,
    )


def open(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    chance: random.Random | None = None,
) -> Stream:
    """See ``filestream.partitions.streams.open``."""
    return streams.open_as(Stream, url, storage_options=storage_options, clock=clock, chance=chance)
