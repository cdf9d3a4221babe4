import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filestream import eventfile, eventfile_cdap, indexfile
from filestream.blocks import Block, Chunk, Damaged, End, Incomplete, Mark
from filestream.codec import encode_event, encode_headers
from filestream.errors import CorruptDataError, UnsupportedVersionError
from filestream.indexfile import IndexEntry
from filestream.segment_reader import SegmentReader, decode_block, parse_header
from filestream.storage.memory import MemoryStorage

DATA = Path(__file__).resolve().parent.parent / "data"
E3 = (DATA / "e3-who.dat").read_bytes()
I3 = (DATA / "e3-who.idx").read_bytes()
E2 = (DATA / "e2-who.dat").read_bytes()
I1 = (DATA / "e2-who.idx").read_bytes()
UNIFORM = (DATA / "e2-uniform.dat").read_bytes()
E1 = (DATA / "e1-empty.dat").read_bytes()

E3_EVENTS = [
    (1401408000000, b"hi", {}),
    (1401408000000, b"yo", {"k": "v"}),
    (1401408000005, b"\x00\xff", {"n": None}),
    (1401408000010, b"", {}),
    (1401408000020, b"abcdefg", {"name": "big"}),
]
E2_EVENTS = [
    (1401408000000, b"hi", {}),
    (1401408000000, b"yo", {"k": "v"}),
    (1401408000005, b"\x00\xff", {"n": None}),
    (1401408010000, b"", {}),
    (1401408010000, b"end", {"a": "1", "b": "2"}),
]


def read(data, *, finished=False, position=0, rounds=3):
    """All events of an event file, and the reader, after as many looks as a patient tail takes."""
    storage = MemoryStorage()
    storage.put_if_absent("file.dat", data)
    reader = SegmentReader(storage, "file.dat", position=position)
    events = []
    for _ in range(rounds):
        while blocks := reader.read_blocks(finished=finished):
            for block in blocks:
                events += [
                    (block.timestamp_ms + delta, body, headers)
                    for delta, body, headers in decode_block(block, "file.dat")
                ]
    return events, reader


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (E3, "bb028780b594c974e1b82cb2097071eb294df1d2c186924a1e371fc65c861993"),
        (I3, "6ce943571d352b358b8c928b5059fab02e22dae7b03e12e5fb64be2818a506c3"),
        (E2, "b222d4c3ff3225b3f49c053333b8fc103b9b8660fab4c9d6a12c960eff8e05de"),
        (I1, "606f31a0b0cb9ea4eae9b28d5cf5c204467f65ce3c487adfa568b9ebb667a410"),
        (UNIFORM, "d81e11b0cf55097978ea4fbcd5272ac3e88de5287ee0b50a8aa507701d443a74"),
        (E1, "cb5923dc91c8e4593fc3d936b5da9f6966213b0a193f8f63dd516e2eaa2566bc"),
    ],
)
def test_golden_files_are_the_ones_of_the_format(data, digest):
    assert hashlib.sha256(data).hexdigest() == digest


def test_e3_is_written_byte_for_byte():
    head, crc = eventfile.encode_header(
        {
            "file.id": "000102030405060708090a0b0c0d0e0f",
            "stream": "who",
            "generation": "1",
            "partition": "1401408000.86400",
            "writer": "file.0",
            "sequence": "0",
        }
    )
    out = head

    def add(events, deltas, timestamp_ms, span_ms, ordinal, marks=()):
        nonlocal out
        out += eventfile.encode_block(
            crc,
            len(out),
            eventfile.event_payload(events, deltas),
            timestamp_ms=timestamp_ms,
            span_ms=span_ms,
            event_count=len(events),
            first_ordinal=ordinal,
            marks=marks,
        )

    add([encode_event(b"hi"), encode_event(b"yo", {"k": "v"})], None, 1401408000000, 0, 0)
    second = [encode_event(b"\x00\xff", {"n": None}), encode_event(b"")]
    add(second, [0, 5], 1401408000005, 5, 2, [Mark("p-1", 41, 2)])
    for block in eventfile.encode_large_event(
        crc,
        len(out),
        encode_headers({"name": "big"}),
        b"abcdefg",
        timestamp_ms=1401408000020,
        first_ordinal=4,
        chunk_size_bytes=15,
    ):
        out += block
    end = End(len(out), 0, 4, 5, 1401408000000, 1401408000020, 1401408012345)
    out += eventfile.encode_end(crc, end)

    assert out == E3


def test_i3_is_written_byte_for_byte():
    crc = 0x1FF2122D
    entry = IndexEntry(1401408000000, 340, 0)

    assert indexfile.encode_header(crc) + indexfile.encode_entry(crc, entry) == I3
    assert indexfile.parse(I3, crc) == [entry]


def test_e2_is_written_byte_for_byte():
    out = eventfile_cdap.encode_header({})
    out += eventfile_cdap.encode_block(
        1401408000000, [encode_event(b"hi"), encode_event(b"yo", {"k": "v"})]
    )
    out += eventfile_cdap.encode_block(1401408000005, [encode_event(b"\x00\xff", {"n": None})])
    out += eventfile_cdap.encode_block(
        1401408010000, [encode_event(b""), encode_event(b"end", {"b": "2", "a": "1"})]
    )
    out += eventfile_cdap.encode_end(1401408012345)

    assert out == E2


def test_i1_is_written_byte_for_byte():
    entries = [IndexEntry(1401408000000, 169, -1), IndexEntry(1401408010000, 209, -1)]

    assert indexfile.CDAP_HEADER + b"".join(map(indexfile.encode_cdap_entry, entries)) == I1
    assert indexfile.parse(I1, None) == entries


@pytest.mark.parametrize(("data", "events"), [(E3, E3_EVENTS), (E2, E2_EVENTS), (E1, [])])
def test_golden_files_are_read(data, events):
    found, reader = read(data)

    assert found == events
    assert reader.is_over
    assert reader.end is not None


def test_marks_and_counts_are_read():
    header = parse_header(E3)
    block = header.parse(E3, 375, 0)
    end = header.parse(E3, 470, 0)

    assert block.marks == (Mark("p-1", 41, 2),)
    assert (block.first_ordinal, block.event_count, block.span_ms) == (2, 2, 5)
    assert end == End(470, 508, 4, 5, 1401408000000, 1401408000020, 1401408012345)


def test_uniform_timestamp_and_default_headers_of_e2():
    events, _ = read(UNIFORM)

    assert events == [
        (1401408000777, b"1,Sam", {"content.type": "text/csv"}),
        (1401408000777, b"2,Max", {"content.type": "text/plain"}),
    ]


def test_events_without_a_time_wait_for_the_end_of_their_file():
    for size in range(len(UNIFORM)):
        events, reader = read(UNIFORM[:size])
        assert events == []
        assert not reader.is_over


def test_a_fixed_uniform_timestamp_is_used():
    head = b"E2" + encode_headers(
        {"stream.schema": eventfile_cdap.EVENT_SCHEMA, "stream.uni.timestamp": "77"}
    )
    block = eventfile_cdap.encode_block(1401408000000, [encode_event(b"x")])

    events, _ = read(head + block)

    assert events == [(77, b"x", {})]


# Where each format's file can be read up to, and how many events stand before that.
E3_SEAMS = {0: 0, 340: 0, 375: 2, 413: 4, 470: 5}
E2_SEAMS = {0: 0, 169: 0, 192: 2, 209: 3, 236: 5}


@pytest.mark.parametrize(
    ("file", "size", "all_events", "seams"),
    [(E3, size, E3_EVENTS, E3_SEAMS) for size in range(len(E3) + 1)]
    + [(E2, size, E2_EVENTS, E2_SEAMS) for size in range(len(E2) + 1)],
    ids=[f"E3-{size}" for size in range(len(E3) + 1)]
    + [f"E2-{size}" for size in range(len(E2) + 1)],
)
def test_a_file_cut_at_every_byte_is_a_true_prefix(file, size, all_events, seams):
    seam = max(position for position in seams if position <= size)

    events, reader = read(file[:size])

    assert events == all_events[: seams[seam]]
    assert reader.position == seam
    assert reader.is_over == (size == len(file))


@pytest.mark.parametrize("finished", [False, True])
def test_every_flipped_bit_is_noticed(finished):
    """No flip gives other events; what is not refused shows all events of an unsealed file."""
    outcomes = {"refused": 0, "unsealed": 0}
    for bit in range(len(E3) * 8):
        damaged = bytearray(E3)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            events, reader = read(bytes(damaged), finished=finished)
        except (CorruptDataError, UnsupportedVersionError):
            outcomes["refused"] += 1
            continue
        assert events == E3_EVENTS, f"bit {bit} changed what is read"
        assert reader.end is None, f"bit {bit} was not noticed"
        outcomes["unsealed"] += 1

    assert outcomes["refused"] > 4000
    assert outcomes["unsealed"] < 20  # only flips that make the end record look unfinished


def test_every_flipped_bit_of_an_open_file_is_noticed_or_waited_for():
    """Without an end record a flip in the last block is a torn write; elsewhere it is damage."""
    data = E3[:470]
    for bit in range(340 * 8, len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            events, _ = read(bytes(damaged))
        except CorruptDataError:
            continue
        assert events == E3_EVENTS[: len(events)]
        assert bit >= 413 * 8, "damage before a valid block was taken for a torn tail"


def test_a_zero_filled_tail_is_not_there_yet():
    for size in range(340, 470):
        events, reader = read(E3[:size] + bytes(4096))
        assert events == E3_EVENTS[: len(events)]
        assert not reader.is_over


def test_a_zero_filled_tail_of_a_finished_file_is_torn():
    events, reader = read(E3[:413] + bytes(4096), finished=True)

    assert events == E3_EVENTS[:4]
    assert reader.is_over
    assert reader.torn_bytes == 4096


def test_zeros_in_the_middle_are_damage():
    damaged = E3[:375] + bytes(38) + E3[413:]

    with pytest.raises(CorruptDataError) as caught:
        read(damaged)

    assert caught.value.position == 375
    assert caught.value.url.endswith("file.dat")


def sibling() -> bytes:
    """A file of the same shape with another id."""
    head, crc = eventfile.encode_header(
        {
            "file.id": "ff" * 16,
            "stream": "who",
            "generation": "1",
            "partition": "1401408000.86400",
            "writer": "file.0",
            "sequence": "0",
        }
    )
    block = eventfile.encode_block(
        crc,
        len(head),
        eventfile.event_payload([encode_event(b"hi"), encode_event(b"yo", {"k": "v"})], None),
        timestamp_ms=1401408000000,
        span_ms=0,
        event_count=2,
        first_ordinal=0,
    )
    return head + block


def test_a_spliced_file_is_refused():
    other = sibling()
    assert len(other) == 375
    for seam in range(1, 375):
        spliced = other[:seam] + E3[seam:]
        if spliced != E3:
            with pytest.raises((CorruptDataError, UnsupportedVersionError)):
                read(spliced)


def test_a_moved_or_repeated_block_is_refused():
    first, second = E3[340:375], E3[375:413]
    for spliced in (
        E3[:375] + first + E3[375:],
        E3[:340] + second + first + E3[413:],
        E3[:340] + E3[375:],
    ):
        with pytest.raises(CorruptDataError):
            read(spliced)


def test_a_later_version_is_unsupported_and_not_corrupt():
    for magic in (b"E4", b"E9", b"E0"):
        with pytest.raises(UnsupportedVersionError, match="Upgrade"):
            parse_header(magic + E3[2:])
    with pytest.raises(CorruptDataError):
        parse_header(b"PK" + E3[2:])


def test_an_unknown_feature_is_named_before_the_first_event():
    head, _ = eventfile.encode_header({"requires": "zstd,lz4", "file.id": "00" * 16})

    with pytest.raises(UnsupportedVersionError, match="lz4"):
        parse_header(head)


def test_an_unknown_flag_is_unsupported():
    head, crc = eventfile.encode_header({"file.id": "00" * 16})
    for flags in (2, 32, 1 << 20):
        block = eventfile.encode_block(
            crc,
            len(head),
            b"\0\0\0",
            timestamp_ms=1,
            span_ms=0,
            event_count=1,
            first_ordinal=0,
            flags=flags,
        )
        with pytest.raises(UnsupportedVersionError):
            read(head + block)


def test_another_schema_is_unsupported():
    for schema in ("", "{}", '{"type":"string"}', eventfile_cdap.EVENT_SCHEMA, "no json"):
        head = b"E3" + encode_headers({"stream.schema": schema})
        head += eventfile.crc32c(head).to_bytes(4, "big")
        with pytest.raises(UnsupportedVersionError):
            parse_header(head)


def test_a_schema_is_compared_by_structure():
    other = (
        '{"type": "record", "name": "X", "namespace": "a.b", "fields": [{"name": "body", "type":'
        ' "bytes"}, {"name": "headers", "type": {"type": "map", "keys": "string", "values":'
        ' ["string", "null"]}}]}'
    )
    head = b"E2" + encode_headers({"stream.schema": other})

    assert parse_header(head).version == "E2"


def test_a_hostile_length_allocates_nothing():
    head, _ = eventfile.encode_header({"file.id": "00" * 16})
    for length in (b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 12, b"\x01", b"\x00"):
        found = parse_header(head).parse(
            head + b"\0\0\0\1\0\0\0\0" + length + bytes(50), len(head), 0
        )
        assert isinstance(found, Damaged)


@pytest.mark.parametrize("codec", ["zstd"])
def test_compressed_blocks_are_read_back(codec):
    feature = codec
    head, crc = eventfile.encode_header(
        {"block.codec": codec, "requires": feature, "file.id": "00" * 16}
    )
    events = [encode_event(b"again and again " * 100)] * 10
    block = eventfile.encode_block(
        crc, len(head), eventfile.event_payload(events, None), timestamp_ms=5, span_ms=0,
        event_count=10, first_ordinal=0, codec=codec,
    )  # fmt: skip

    found, _ = read(head + block)

    assert len(block) < 1000
    assert found == [(5, b"again and again " * 100, {})] * 10


def test_large_events_of_every_size_are_read_back():
    head, crc = eventfile.encode_header({"file.id": "00" * 16})
    for size in (0, 1, 9, 10, 11, 99, 100, 101, 5000):
        body = bytes(i % 251 for i in range(size))
        data = head + b"".join(
            eventfile.encode_large_event(
                crc, len(head), encode_headers({"a": None}), body,
                timestamp_ms=9, first_ordinal=0, chunk_size_bytes=20,
            )
        )  # fmt: skip
        assert read(data)[0] == [(9, body, {"a": None})]
        for cut in range(len(head), len(data)):
            assert read(data[:cut], rounds=1)[0] == []


blocks_of_events = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.binary(max_size=200),
                st.dictionaries(st.text(max_size=8), st.none() | st.text(max_size=8), max_size=3),
                st.integers(0, 300),
            ),
            min_size=1,
            max_size=6,
        ),
        st.integers(0, 10**6),
    ),
    max_size=6,
)


@given(blocks_of_events)
def test_parse_undoes_encode(blocks):
    head, crc = eventfile.encode_header({"file.id": "00" * 16})
    out, expected, now, ordinal = head, [], 1, 0
    for events, step in blocks:
        now += step
        deltas = sorted(delta for _, _, delta in events)
        deltas = [delta - deltas[0] for delta in deltas]
        encoded = [encode_event(body, headers) for body, headers, _ in events]
        out += eventfile.encode_block(
            crc, len(out), eventfile.event_payload(encoded, deltas),
            timestamp_ms=now, span_ms=deltas[-1], event_count=len(events), first_ordinal=ordinal,
        )  # fmt: skip
        expected += [
            (now + delta, body, headers)
            for (body, headers, _), delta in zip(events, deltas, strict=True)
        ]
        now += deltas[-1]
        ordinal += len(events)

    assert read(out)[0] == expected


@given(st.binary(max_size=300))
def test_no_bytes_at_all_crash_the_parser(data):
    header = parse_header(E3)
    try:
        found = header.parse(data, 0, 340)
    except (CorruptDataError, UnsupportedVersionError):
        return
    assert isinstance(found, (Block, Chunk, Damaged, End, Incomplete))


@given(st.binary(max_size=300), st.sampled_from([b"E1", b"E2", b"E3", b""]))
def test_no_bytes_at_all_crash_the_reader(data, magic):
    try:
        events, reader = read(magic + data, finished=True, rounds=1)
    except (CorruptDataError, UnsupportedVersionError):
        return
    assert not events or (magic + data)[:2] != b"E3"  # The older formats have no checksum.
    assert 0 <= reader.position <= len(magic + data)


def test_an_index_of_another_file_is_dropped():
    assert indexfile.parse(I3, 1) == []
    assert indexfile.parse(b"", 1) == []
    assert indexfile.parse(b"I3", 1) == []


def test_every_flipped_bit_of_an_index_is_noticed():
    for bit in range(len(I3) * 8):
        damaged = bytearray(I3)
        damaged[bit // 8] ^= 1 << bit % 8
        assert indexfile.parse(bytes(damaged), 0x1FF2122D) == []
