"""Packs, byte by byte: what is written, what is read, and what damage does."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filestream.errors import CorruptDataError
from filestream.packfile import PackIndex, encode_index, parse_index, walk
from filestream.segment_encoder import SegmentEncoder, SegmentOptions

DATA = Path(__file__).parent.parent / "data"
PACK = DATA / "p1-three.000004-000006.seg"
INDEX = DATA / "p1-three.000004-000006.idx"


def segment(sequence, *bodies):
    """A closed segment of which every byte is given."""
    properties = {
        "file.id": f"{sequence:032x}",
        "stream": "clicks",
        "generation": "1",
        "partition": "1401408000.86400",
        "writer": "p1-three",
        "sequence": str(sequence),
    }
    encoder = SegmentEncoder(properties, SegmentOptions())
    for number, body in enumerate(bodies):
        # A body of 2, no header, and no time after the block's first event.
        event = bytes([2 * len(body)]) + body + b"\0"
        encoder.add([event], 1_401_408_000_000 + number)
    return encoder.whole(1_401_408_060_000)


PARTS = [segment(4, b"a", b"bb"), segment(5), segment(6, b"ccc")]


def test_the_golden_pack_is_what_is_written():
    assert PACK.read_bytes() == b"".join(PARTS)
    index = PackIndex(1_401_500_000_000, 4, [len(part) for part in PARTS])
    assert INDEX.read_bytes() == encode_index(index)


def test_the_golden_pack_is_read():
    index = parse_index(INDEX.read_bytes())
    assert (index.packed_at_ms, index.first) == (1_401_500_000_000, 4)
    found = list(walk(PACK.read_bytes()))
    assert [size for _, size, _ in found] == list(index.sizes)
    assert [properties["sequence"] for _, _, properties in found] == ["4", "5", "6"]
    assert [start for start, _, _ in found] == [0, index.sizes[0], sum(index.sizes[:2])]


def test_a_pack_that_is_cut_anywhere_but_between_segments_is_damage():
    data = PACK.read_bytes()
    ends = {0, len(PARTS[0]), len(PARTS[0]) + len(PARTS[1])}
    for size in range(len(data)):
        if size in ends:
            assert len(list(walk(data[:size]))) < 3
        else:
            with pytest.raises(CorruptDataError):
                list(walk(data[:size]))


def test_every_flipped_bit_of_a_pack_is_noticed():
    data = PACK.read_bytes()
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                list(walk(bytes(flipped)))


def test_every_flipped_bit_and_every_cut_of_an_index_is_noticed():
    data = INDEX.read_bytes()
    for at in range(len(data)):
        with pytest.raises(CorruptDataError):
            parse_index(data[:at])
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                parse_index(bytes(flipped))


@given(
    st.integers(0, 2**53),
    st.integers(0, 999_999_999),
    st.lists(st.integers(0, 2**40), min_size=1, max_size=50),
)
def test_an_index_comes_back(packed_at_ms, first, sizes):
    assert parse_index(encode_index(PackIndex(packed_at_ms, first, sizes))) == PackIndex(
        packed_at_ms, first, sizes
    )


@given(st.binary(max_size=200))
def test_hostile_bytes_are_refused_and_nothing_else(data):
    with pytest.raises(CorruptDataError):
        parse_index(data)
    if data:
        with pytest.raises(CorruptDataError):
            list(walk(data))
