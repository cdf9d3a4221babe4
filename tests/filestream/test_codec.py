"""Kernel, pure codec and the avro library mean the same, on good bytes and on bad ones."""

import io
import json
import random

import avro.io
import avro.schema
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filestream import codec, eventfile, eventfile_cdap
from filestream.codec import primitives, pure
from filestream.errors import CorruptDataError, InvalidRequestError

DECODERS = [pure.ColumnDecoder]
if codec.kernel() == "compiled":
    from filestream.codec import _kernel

    DECODERS.append(_kernel.ColumnDecoder)

E3_SCHEMA = avro.schema.parse(eventfile.EVENT_SCHEMA)
E2_SCHEMA = avro.schema.parse(eventfile_cdap.EVENT_SCHEMA)

headers = st.dictionaries(st.text(max_size=10), st.none() | st.text(max_size=10), max_size=4)
events = st.lists(st.tuples(st.binary(max_size=100), headers, st.integers(0, 50)), max_size=20)


def test_the_compiled_kernel_is_here_when_it_must_be(require_all):
    if require_all:
        assert codec.kernel() == "compiled"


def payload_of(rows, *, has_delta):
    parts, delta = [], 0
    for body, own, step in rows:
        parts.append(codec.encode_event(body, own))
        if has_delta:
            delta += step
            parts.append(codec.encode_signed(delta))
    return b"".join(parts)


def decode(kind, data, start=0, stop=None, *, count=-1, has_delta=True, columns=pure.COLUMNS):
    decoder = kind(**{name: name in columns for name in pure.COLUMNS})
    decoder.add(data, start, len(data) if stop is None else stop, count, 1000, 77, has_delta)
    rows = decoder.rows
    arrays = decoder.finish()
    for array in arrays:
        array.validate(full=True)
        assert len(array) == rows
    return [array.to_pylist() for array in arrays]


@pytest.mark.parametrize(
    "value", [0, -1, 1, 63, 64, -64, -65, 127, 128, 148, 300, 8191, 8192, 262144]
)
def test_signed_numbers_are_those_of_avro(value):
    out = io.BytesIO()
    avro.io.BinaryEncoder(out).write_long(value)

    assert codec.encode_signed(value) == out.getvalue()


@given(st.integers(-(2**63), 2**63 - 1))
def test_read_signed_undoes_encode_signed(value):
    raw = codec.encode_signed(value)

    assert codec.read_signed(b"xx" + raw + b"yy", 2, 2 + len(raw)) == (value, 2 + len(raw))
    for stop in range(2, 2 + len(raw)):
        assert codec.read_signed(b"xx" + raw, 2, stop) is None


def test_a_number_of_more_than_64_bits_is_refused():
    for raw in (b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02"):
        with pytest.raises(CorruptDataError):
            codec.read_signed(raw, 0, len(raw))


def test_crc32c_is_castagnoli():
    assert codec.crc32c(b"123456789") == 0xE3069283
    assert codec.crc32c_range(b"xx123456789yy", 2, 11) == 0xE3069283
    assert codec.crc32c_range(b"56789", 0, 5, codec.crc32c(b"1234")) == 0xE3069283
    assert pure.crc32c_range(b"xx123456789yy", 2, 11) == 0xE3069283


@given(events)
def test_encoding_is_that_of_avro(rows):
    out = io.BytesIO()
    writer = avro.io.DatumWriter(E3_SCHEMA)
    delta = 0
    for body, own, step in rows:
        delta += step
        ordered = dict(sorted(own.items()))
        datum = {"body": body, "headers": ordered, "timestamp_delta_ms": delta}
        writer.write(datum, avro.io.BinaryEncoder(out))

    assert payload_of(rows, has_delta=True) == out.getvalue()


@given(events, st.booleans())
def test_decoders_agree_with_avro(rows, has_delta):
    data = payload_of(rows, has_delta=has_delta)
    reader = avro.io.DatumReader(E3_SCHEMA if has_delta else E2_SCHEMA)
    source = io.BytesIO(data)
    expected = [reader.read(avro.io.BinaryDecoder(source)) for _ in rows]

    for kind in DECODERS:
        stamps, bodies, maps, positions, indexes = decode(
            kind, data, count=len(rows) if has_delta else -1, has_delta=has_delta
        )
        assert bodies == [datum["body"] for datum in expected]
        assert [dict(pairs) for pairs in maps] == [datum["headers"] for datum in expected]
        assert [round(t.timestamp() * 1000) for t in stamps] == [
            1000 + datum.get("timestamp_delta_ms", 0) for datum in expected
        ]
        assert positions == [77] * len(rows)
        assert indexes == list(range(len(rows)))
    plain = codec.decode_events(data, 0, len(data), has_delta=has_delta)
    assert [(body, own) for _, body, own in plain] == [
        (datum["body"], datum["headers"]) for datum in expected
    ]


@pytest.mark.parametrize("kind", DECODERS)
def test_columns_that_are_not_asked_for_are_not_made(kind):
    data = payload_of([(b"x", {"k": "v"}, 0)], has_delta=True)

    assert decode(kind, data, columns=("body",)) == [[b"x"]]
    assert decode(kind, data, columns=("index",)) == [[0]]
    assert decode(kind, data, columns=()) == []


@pytest.mark.parametrize("kind", DECODERS)
def test_blocks_are_collected_until_finish(kind):
    decoder = kind(timestamp=False, body=True, headers=True, position=True, index=True)
    for number in range(3):
        data = b"junk" + payload_of([(b"%d" % number, {"k": str(number)}, 0)] * 2, has_delta=True)
        decoder.add(data, 4, len(data), 2, 1, number, True)

    assert decoder.rows == 6
    bodies, maps, positions, indexes = (array.to_pylist() for array in decoder.finish())
    assert bodies == [b"0", b"0", b"1", b"1", b"2", b"2"]
    assert maps[5] == [("k", "2")]
    assert positions == [0, 0, 1, 1, 2, 2]
    assert indexes == [0, 1] * 3
    assert decoder.rows == 0
    assert decoder.finish()[0].to_pylist() == []


@pytest.mark.parametrize("kind", DECODERS)
def test_a_bad_block_leaves_the_good_ones_alone(kind):
    good = payload_of([(b"good", {"k": "v"}, 0)], has_delta=True)
    decoder = kind(timestamp=True, body=True, headers=True, position=True, index=True)
    decoder.add(good, 0, len(good), 1, 1, 0, True)
    for bad in (good[:-1], good + b"\x02", good + b"\x01\x00\x00", good[:5] + b"\x7f" + good[6:]):
        with pytest.raises(CorruptDataError):
            decoder.add(bad, 0, len(bad), -1, 1, 0, True)
    with pytest.raises(CorruptDataError):
        decoder.add(good, 0, len(good), 2, 1, 0, True)
    decoder.add(good, 0, len(good), 1, 1, 9, True)

    columns = [array.to_pylist() for array in decoder.finish()]
    assert columns[1] == [b"good", b"good"]
    assert columns[2] == [[("k", "v")], [("k", "v")]]
    assert columns[3] == [0, 9]


@pytest.mark.parametrize("kind", DECODERS)
def test_equal_header_names_keep_the_last_value(kind):
    pairs = b"\x02k\x00\x02a" + b"\x02n\x02" + b"\x02k\x00\x02b" + b"\x02m\x00\x02c"
    data = b"\x00" + b"\x08" + pairs + b"\x00" + b"\x00"

    assert dict(decode(kind, data)[2][0]) == {"n": None, "k": "b", "m": "c"}


@pytest.mark.parametrize("kind", DECODERS)
def test_maps_of_several_blocks_and_negative_counts_are_read(kind):
    pair, other = b"\x02k\x00\x02a", b"\x02m\x00\x02b"
    data = b"\x00" + b"\x01" + b"\x0a" + pair + b"\x02" + other + b"\x00" + b"\x00"

    assert dict(decode(kind, data)[2][0]) == {"k": "a", "m": "b"}


HOSTILE = [
    b"\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a map of 2**63 pairs
    b"\x00\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a body of 2**63 bytes
    b"\x01\x00\x00",  # a body of -1 bytes
    b"\x00\x02\x01k",
    b"\x00\x02\x02k\x04",
    b"\x00\x02\x02\xff\x00\x00\x00\x00",  # a name that is not UTF-8
    b"\x00\x02\x06\xed\xa0\x80\x00\x00\x00\x00",  # a surrogate
    b"\x00\x02\x04\xc0\x80\x00\x00\x00\x00",  # an overlong NUL
    b"\xff" * 30,
    b"\x80" * 30,
    b"\x00",
    b"\x00\x00",
]


@pytest.mark.parametrize("data", HOSTILE)
@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("columns", [pure.COLUMNS, ("body",)])
def test_hostile_bytes_are_refused(kind, data, columns):
    with pytest.raises(CorruptDataError):
        decode(kind, data, columns=columns)


def outcome(kind, data, *, has_delta, columns=pure.COLUMNS):
    try:
        rows = decode(kind, data, has_delta=has_delta, columns=columns)
    except CorruptDataError:
        return "corrupt"
    if "headers" in columns:
        rows[2] = [dict(pairs) for pairs in rows[2]]
    return rows


def test_decoders_agree_on_damaged_bytes(seed):
    chance = random.Random(seed)
    rows = [
        (chance.randbytes(chance.randrange(200)), {"k": "é" * chance.randrange(5), "n": None}, 1)
        for _ in range(20)
    ]
    good = payload_of(rows, has_delta=True)
    for cut in range(len(good)):
        found = [outcome(kind, good[:cut], has_delta=True) for kind in DECODERS]
        assert all(result == found[0] for result in found)
    for _ in range(3000):
        damaged = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        for columns in (pure.COLUMNS, ("body",)):
            found = [
                outcome(kind, bytes(damaged), has_delta=True, columns=columns) for kind in DECODERS
            ]
            assert all(result == found[0] for result in found), bytes(damaged).hex()


@given(st.binary(max_size=200), st.booleans())
def test_decoders_agree_on_any_bytes(data, has_delta):
    found = [outcome(kind, data, has_delta=has_delta) for kind in DECODERS]
    try:
        plain = codec.decode_events(data, 0, len(data), has_delta=has_delta)
    except CorruptDataError:
        plain = "corrupt"

    assert all(result == found[0] for result in found)
    if plain != "corrupt" and found[0] != "corrupt":
        assert [body for _, body, _ in plain] == found[0][1]
    else:
        assert plain == found[0] == "corrupt"


@pytest.mark.parametrize("kind", DECODERS)
def test_a_large_batch_of_every_body_size_is_exact(kind):
    bodies = [bytes([size % 256]) * size for size in range(300)]
    data = payload_of([(body, {}, 0) for body in bodies], has_delta=True)

    assert decode(kind, data)[1] == bodies


@pytest.mark.parametrize("kind", DECODERS)
def test_many_headers_grow_the_columns(kind):
    rows = [(b"x", {f"name-{i}-{j}": f"value-{j}" for j in range(50)}, 0) for i in range(200)]
    data = payload_of(rows, has_delta=True)

    assert [dict(pairs) for pairs in decode(kind, data)[2]] == [own for _, own, _ in rows]


def test_too_many_headers_are_refused_on_both_ways():
    many = {str(i): "" for i in range(primitives.HEADERS_MAX + 1)}
    with pytest.raises(InvalidRequestError):
        codec.encode_event(b"", many)
    pairs = b"".join(codec.encode_signed(len(n)) + n.encode() + b"\x02" for n in many)
    data = b"\0" + codec.encode_signed(len(many)) + pairs + b"\0\0"
    for kind in DECODERS:
        with pytest.raises(CorruptDataError, match="too many"):
            decode(kind, data)


@pytest.mark.parametrize(
    ("body", "own"),
    [
        ("text", None),
        (5, None),
        (None, None),
        (b"", {"k": 5}),
        (b"", {5: "v"}),
        (b"", {"k": b"v"}),
        (b"", [("k", "v")]),
        (b"", "k=v"),
        (b"", {"k": "\ud800"}),
    ],
)
def test_bad_events_are_refused_when_they_are_encoded(body, own):
    with pytest.raises(InvalidRequestError):
        codec.encode_event(body, own)


def test_bodies_may_be_any_bytes():
    for body in (b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"xabcx")[1:4]):
        assert codec.encode_event(body) == b"\x06abc\x00"


def test_the_schema_of_an_event_is_valid_avro():
    assert json.loads(eventfile.EVENT_SCHEMA)["name"] == "StreamEvent"
    assert len(eventfile.EVENT_SCHEMA) == 192
    assert len(eventfile_cdap.EVENT_SCHEMA) == 148


def test_batches_go_into_arrow_without_a_copy_of_a_copy():
    data = payload_of([(b"abc", {}, 0)], has_delta=True)
    decoder = DECODERS[-1](timestamp=True, body=True)
    decoder.add(data, 0, len(data), 1, 1, 0, True)
    stamps, bodies = decoder.finish()

    assert stamps.type == pa.timestamp("us", "UTC")
    assert bodies.type == pa.binary()


@given(st.lists(st.binary(max_size=300), max_size=40), st.sampled_from([0, 8191, 8192, 20_000]))
def test_many_bodies_are_encoded_as_each_is(bodies, size):
    bodies = [*bodies, bytes(size)]
    longest = max(map(len, bodies))
    assert codec.encode_bodies(bodies, longest) == [codec.encode_event(body) for body in bodies]
    assert codec.encode_bodies([], 0) == []
