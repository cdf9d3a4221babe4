"""Positions in the user's own store, so that results and position are one transaction.

A consumer that is given a ``PositionStore`` reads its position there and writes it there when it
commits; whether that lasts is decided by the user's transaction around it.
"""

import json
from collections.abc import Mapping
from typing import Final, Protocol

from filestream.consumers.places import decode_places, encode_places
from filestream.consumers.state import GroupState
from filestream.errors import CorruptDataError, InvalidRequestError, UnsupportedVersionError
from filestream.partitions.chain import ChainId, Place

__all__ = ["PositionStore", "UserPosition", "decode_position", "encode_position"]

_VERSION: Final = 1


class PositionStore(Protocol):
    """What a consumer needs of the user's database: one short text a name."""

    def load(self, name: str) -> str | None:
        """The text that was saved, as this transaction sees it; None when there is none."""
        ...

    def save(self, name: str, before: str | None, after: str) -> None:
        """Replace ``before`` by ``after`` in the transaction that is open.

        Raises:
            FencedError: ``before`` is not what stands there: another process was here.
        """
        ...


class UserPosition:
    """The position of one instance in a ``PositionStore``, as it was seen last.

    A text counts only for the life, the generation and the epoch of the group that it was written in.
    After an operator's reset, after a truncation, and in a group that was removed and made again, the
    places of the group's state count.
    """

    def __init__(self, store: PositionStore, name: str) -> None:
        self._store = store
        self._name = name
        self._text: str | None = None

    @property
    def has_changed(self) -> bool:
        """Whether another text stands there than the one that was seen last."""
        return self._store.load(self._name) != self._text

    def load(self, state: GroupState, default: Mapping[ChainId, Place]) -> Mapping[ChainId, Place]:
        """The places that stand there now; ``default`` when none do."""
        self._text = self._store.load(self._name)
        return decode_position(self._text, state, default)

    def save(
        self,
        state: GroupState,
        default: Mapping[ChainId, Place],
        moved: Mapping[ChainId, Place],
    ) -> None:
        """Move some of the places, in the transaction that is open.

        Raises:
            FencedError: another process was here.
        """
        before = decode_position(self._text, state, default)
        after = encode_position(state, {**before, **moved})
        self._store.save(self._name, self._text, after)
        self._text = after


def encode_position(state: GroupState, places: Mapping[ChainId, Place]) -> str:
    """The text of places."""
    content = {"v": _VERSION, **_life(state), "places": encode_places(places)}
    return json.dumps(content, separators=(",", ":"))


def decode_position(
    text: str | None, state: GroupState, default: Mapping[ChainId, Place]
) -> Mapping[ChainId, Place]:
    """The places of a text; ``default`` when there is none that counts.

    Raises:
        UnsupportedVersionError: written by a later release.
        CorruptDataError: no position of ours.
    """
    if text is None:
        return default
    try:
        raw = json.loads(text)
        if raw["v"] > _VERSION:
            raise UnsupportedVersionError(f"a later release saved this position. v={raw['v']}")
        life = _life(state)
        if {name: raw[name] for name in life} != life:
            return default
        return decode_places(raw["places"], state.generation)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidRequestError) as error:
        raise CorruptDataError(f"no position of a group: {text!r:.200}") from error


def _life(state: GroupState) -> dict[str, object]:
    return {"group": state.id, "generation": state.generation, "epoch": state.epoch}
