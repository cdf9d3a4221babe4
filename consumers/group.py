"""A group as its document in the property store: read, change by compare-and-set, list, remove.

groups/<name>                   the state
claim groups/<name>/<slot>      held by each living member
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

from filestream.consumers.assignment import LANES_MAX, Strategy, check_strategy
from filestream.consumers.layers import Layer, Places
from filestream.consumers.state import GroupState
from filestream.consumers.state_document import decode_state, encode_removal, encode_state
from filestream.coordination.base import Document, PropertyStore
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    UnsupportedVersionError,
)
from filestream.partitions.layout import check_group_name
from filestream.storage.base import Lock

__all__ = ["GroupDocument", "check_instances", "group_names", "new_state"]

_PREFIX: Final = "groups"
_UPDATE_TRIES: Final = 1000
# A little less than what every store takes.
_SIZE_MAX: Final = 900_000


def group_names(store: PropertyStore) -> list[str]:
    """Groups that have a state, sorted; damaged ones too."""
    names = [name.rpartition("/")[2] for name in store.list(_PREFIX)]
    return [name for name in names if GroupDocument(store, name, url="").exists]


def new_state(
    chance: random.Random,
    generation: int,
    places: Places,
    *,
    strategy: Strategy = "fifo",
    key_header: str | None = None,
    instances: int = 1,
) -> GroupState:
    """The state of a group that nobody has worked for yet."""
    check_strategy(strategy, key_header)
    if not 0 <= instances <= LANES_MAX:
        raise InvalidRequestError(f"instances must be 1 to {LANES_MAX}. instances={instances}")
    lanes = 1 if strategy == "fifo" else max(1, instances)
    layer = Layer(1, strategy, key_header, tuple(dict(places) for _ in range(lanes)))
    return GroupState(f"{chance.getrandbits(64):016x}", generation, (layer,), instances)


class GroupDocument:
    """The state of one group, as this process saw it last; not thread-safe.

    Args:
        store: of the stream.
        name: of the group.
        url: of the stream, for errors.
    """

    def __init__(self, store: PropertyStore, name: str, *, url: str) -> None:
        self.name = check_group_name(name)
        self._store = store
        self._url = f"{url}#{_PREFIX}/{name}"
        self._key = f"{_PREFIX}/{name}"
        self._version = -1
        self._state: GroupState | None = None

    def sibling(self, name: str) -> "GroupDocument":
        """Another group of the same stream."""
        return GroupDocument(self._store, name, url=self._url.partition("#")[0])

    @property
    def exists(self) -> bool:
        """Whether the group has a state, readable or not."""
        document = self._store.get(self._key)
        try:
            return document.version > 0 and decode_state(document.value, url=self._url) is not None
        except (CorruptDataError, UnsupportedVersionError):
            return True

    def read(self) -> GroupState:
        """The state now.

        Raises:
            NotFoundError: there is no such group.
            CorruptDataError, UnsupportedVersionError: its document cannot be read.
        """
        if self._state is None or not self._store.is_current(self._key, self._version):
            self._learn(self._store.get(self._key))
        assert self._state is not None
        return self._state

    def create(self, state: GroupState) -> bool:
        """Write the first state; False when there is one."""
        if self.exists:
            return False
        # A group of this name may have been removed: its versions go on.
        before = self._store.get(self._key).version
        try:
            document = self._store.compare_and_set(self._key, _encoded(state), version=before)
        except ConflictError:
            return False
        self._keep(state, document)
        return True

    def change(self, step: Callable[[GroupState], GroupState]) -> GroupState:
        """Apply a step to the state as it is now; tried again when another process was faster.

        Raises:
            What the step raises; nothing was changed then.
            NotFoundError: there is no such group (any more).
            ConflictError: the state would be too large.
            UnavailableError: the change may have happened.
        """
        for _ in range(_UPDATE_TRIES):
            before = self.read()
            after = step(before)
            if after == before:
                return before
            data = _encoded(after)
            try:
                document = self._store.compare_and_set(self._key, data, version=self._version)
            except ConflictError:
                self._state = None
                continue
            except BaseException:
                self._state = None
                raise
            self._keep(after, document)
            return after
        raise ConflictError(f"others kept changing the state of the group. group={self.name}")

    def replace(self, state: GroupState) -> None:
        """Write a state whatever is there, also when that cannot be read."""
        document = self._store.update(self._key, lambda _: _encoded(state))
        self._keep(state, document)

    def remove(self) -> None:
        """Forget the group."""
        self._store.update(self._key, lambda _: encode_removal())
        self._state = None

    def hold(self, slot: int) -> Lock:
        """Claim a slot for as long as this process lives.

        Raises:
            ConflictError: another living process holds it.
        """
        return self._store.claim(f"{self._key}/{slot}")

    def living(self) -> Sequence[int]:
        """Slots that living processes hold."""
        names = (name.rpartition("/")[2] for name in self._store.holders(self._key))
        return sorted(int(name) for name in names if name.isdigit())

    def _learn(self, document: Document) -> None:
        state = decode_state(document.value, url=self._url) if document.version else None
        if state is None:
            self._state = None
            raise NotFoundError(
                f"there is no such group: {self.name!r}. `filestream group ls` lists them."
            )
        self._keep(state, document)

    def _keep(self, state: GroupState, document: Document) -> None:
        self._state, self._version = state, document.version


def _encoded(state: GroupState) -> bytes:
    data = encode_state(state)
    if len(data) > _SIZE_MAX:
        raise ConflictError(
            "the state of the group would be too large: commit what is in hand before more is fetched, "
            f"or divide the group among fewer instances. size={len(data)} claims={len(state.claims)} "
            f"lanes={len(state.layer.lanes)}"
        )
    return data


def check_instances(instances: int | str | None) -> int | None:
    """How many instances, 0 for ``"auto"``; None when it is not said.

    Raises:
        InvalidRequestError: neither.
    """
    if instances is None:
        return None
    if instances == "auto":
        return 0
    if isinstance(instances, bool) or not isinstance(instances, int) or instances < 1:
        raise InvalidRequestError(
            f"instances must be a number from 1, or 'auto'. instances={instances!r:.50}"
        )
    return instances
