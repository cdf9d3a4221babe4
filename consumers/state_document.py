"""The state of a group as a document: JSON, checked when it is read. Pure.

    {"v": 1, "id": ..., "generation": 1, "epoch": 3, "instances": 3,
     "layers": [{"id": 1, "strategy": "fifo", "key_header": null, "lanes": [places, ...]}, ...],
     "claims": [{"id": 5, "layer": 1, "lane": 0, "owner": 2, "token": ..., "deliveries": 1,
                 "spans": [[start_s, duration_s, writer, from, to], ...]}, ...],
     "members": {"0": {"token": ..., "host": ..., "pid": ..., "since_ms": ...}, ...},
     "dead": [{"offset": ..., "deliveries": 3, "reason": ..., "at_ms": ...}, ...], "next_id": 6,
     "external": false, "mirror": []}

A group that was removed leaves ``{"v": 1, "removed": true}``: were its document deleted, a later group
of its name would count its versions from 1 again, and a member of the old one might take one for another.

Places are those of ``filestream.consumers.places``.
"""

from typing import Any, Final

from filestream.consumers.assignment import check_strategy
from filestream.consumers.layers import Claim, DeadLetter, Layer, Member, Span
from filestream.consumers.places import decode_place, decode_places, encode_place, encode_places
from filestream.consumers.state import GroupState
from filestream.documents import decode_document, encode_document
from filestream.errors import CorruptDataError, InvalidRequestError, UnsupportedVersionError
from filestream.partitions.chain import ChainId
from filestream.partitions.layout import Offset, Partition

__all__ = ["decode_state", "encode_removal", "encode_state"]

_VERSION: Final = 1


def encode_state(state: GroupState) -> bytes:
    """The document of a state."""
    return encode_document(
        {
            "v": _VERSION,
            "id": state.id,
            "generation": state.generation,
            "epoch": state.epoch,
            "instances": state.instances,
            "layers": [
                {
                    "id": layer.id,
                    "strategy": layer.strategy,
                    "key_header": layer.key_header,
                    "lanes": [encode_places(places) for places in layer.lanes],
                }
                for layer in state.layers
            ],
            "claims": [
                {
                    "id": claim.id,
                    "layer": claim.layer,
                    "lane": claim.lane,
                    "owner": claim.owner,
                    "token": claim.token,
                    "deliveries": claim.deliveries,
                    "spans": [_encode_span(span) for span in claim.spans],
                }
                for claim in state.claims
            ],
            "members": {
                str(slot): {
                    "token": member.token,
                    "host": member.host,
                    "pid": member.pid,
                    "since_ms": member.since_ms,
                }
                for slot, member in sorted(state.members.items())
            },
            "dead": [
                {
                    "offset": str(letter.offset),
                    "deliveries": letter.deliveries,
                    "reason": letter.reason,
                    "at_ms": letter.at_ms,
                }
                for letter in state.dead
            ],
            "next_id": state.next_id,
            "external": state.is_external,
            "mirror": [encode_places(places) for places in state.mirror],
        }
    )


def encode_removal() -> bytes:
    """The document of a group that was removed."""
    return encode_document({"v": _VERSION, "removed": True})


def decode_state(data: bytes, *, url: str) -> GroupState | None:
    """The state that a document holds; None when the group was removed.

    Raises:
        UnsupportedVersionError: written by a later release.
        CorruptDataError: damaged, or no state of a group.
    """
    raw = decode_document(data, url=url)
    version = raw.get("v")
    if type(version) is int and version > _VERSION:
        raise UnsupportedVersionError(
            f"the state of the group was written by a later release: upgrade. v={version} url={url}"
        )
    try:
        if version != _VERSION:
            raise ValueError(version)
        return None if raw.get("removed") is True else _state(raw)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        InvalidRequestError,
    ) as error:
        raise CorruptDataError(
            "the state of the group is damaged: reset the group, or restore it from a dump.",
            url=url,
        ) from error


def _state(raw: dict[str, Any]) -> GroupState:
    generation = _number(raw["generation"])
    state = GroupState(
        id=_text(raw["id"]),
        generation=generation,
        layers=tuple(_layer(layer, generation) for layer in raw["layers"]),
        instances=_number(raw["instances"]),
        epoch=_number(raw["epoch"]),
        claims=tuple(_claim(claim, generation) for claim in raw["claims"]),
        members={int(slot): _member(member) for slot, member in raw["members"].items()},
        dead=tuple(_dead_letter(letter) for letter in raw["dead"]),
        next_id=_number(raw["next_id"]),
        is_external=raw["external"] is True,
        mirror=tuple(decode_places(places, generation) for places in raw["mirror"]),
    )
    lanes = {layer.id: len(layer.lanes) for layer in state.layers}
    if not lanes or any(claim.lane >= lanes[claim.layer] for claim in state.claims):
        raise ValueError("a claim names no lane")
    if state.mirror and len(state.mirror) != len(state.layer.lanes):
        raise ValueError("lanes and mirror differ")
    if not state.is_auto and not state.is_shared and len(state.layer.lanes) != state.instances:
        raise ValueError("lanes and instances differ")
    return state


def _layer(raw: dict[str, Any], generation: int) -> Layer:
    check_strategy(raw["strategy"], raw["key_header"])
    lanes = tuple(decode_places(places, generation) for places in raw["lanes"])
    if not lanes:
        raise ValueError("a layer has no lanes")
    return Layer(_number(raw["id"]), raw["strategy"], raw["key_header"], lanes)


def _claim(raw: dict[str, Any], generation: int) -> Claim:
    return Claim(
        id=_number(raw["id"]),
        layer=_number(raw["layer"]),
        lane=_number(raw["lane"]),
        owner=_number(raw["owner"]),
        token=_text(raw["token"]),
        spans=tuple(_span(span, generation) for span in raw["spans"]),
        deliveries=_number(raw["deliveries"]),
    )


def _encode_span(span: Span) -> list[object]:
    partition = span.chain.partition
    return [
        partition.start_s,
        partition.duration_s,
        span.chain.writer_id,
        encode_place(span.start),
        encode_place(span.end),
    ]


def _span(raw: list[Any], generation: int) -> Span:
    start_s, duration_s, writer_id, start, end = raw
    chain = ChainId(Partition(generation, _number(start_s), _number(duration_s)), _text(writer_id))
    return Span(chain, decode_place(start), decode_place(end))


def _member(raw: dict[str, Any]) -> Member:
    return Member(
        _text(raw["token"]), _text(raw["host"]), _number(raw["pid"]), _number(raw["since_ms"])
    )


def _dead_letter(raw: dict[str, Any]) -> DeadLetter:
    return DeadLetter(
        Offset.parse(raw["offset"]),
        _number(raw["deliveries"]),
        _text(raw["reason"]),
        _number(raw["at_ms"]),
    )


def _number(raw: object) -> int:
    if type(raw) is not int or raw < 0:
        raise ValueError(f"no number: {raw!r:.50}")
    return raw


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"no text: {raw!r:.50}")
    return raw
