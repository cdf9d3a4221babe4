import pytest
from hypothesis import given
from hypothesis import strategies as st

from filestream.errors import InvalidRequestError
from filestream.partitions.arrange import blocks_of
from filestream.partitions.layout import (
    Offset,
    Partition,
    Segment,
    check_stream_name,
    check_writer_id,
    parse_generation,
    parse_segment_file,
)

names = st.from_regex(r"[A-Za-z0-9]([_.-]?[A-Za-z0-9]){0,20}", fullmatch=True)
offsets = st.builds(
    Offset,
    st.integers(0, 10**8),
    st.integers(0, 10**12),
    st.integers(1, 10**8),
    names,
    st.integers(0, 10**9 - 1),
    st.integers(0, 2**50),
    st.integers(0, 10**8),
)


@given(offsets)
def test_parse_undoes_str(offset):
    assert Offset.parse(str(offset)) == offset


def test_an_offset_looks_as_in_the_format():
    text = "00001/1401408000.86400/file.0.000000:340.1"
    offset = Offset.parse(text)

    assert str(offset) == text
    assert (offset.generation, offset.start_s, offset.duration_s) == (1, 1401408000, 86400)
    assert (offset.writer_id, offset.sequence) == ("file.0", 0)
    assert (offset.position, offset.index) == (340, 1)
    assert Offset.parse("1/1401408000.86400/file.0.0:340.1") == offset


@pytest.mark.parametrize(
    "text",
    [
        "",
        "start",
        "00001/1401408000.86400/file.0.000000",
        "00001/1401408000.86400/file.0.000000:340",
        "00001/1401408000.86400/../x.000000:340.1",
        "00001/1401408000.86400/.hidden.000000:340.1",
        "00001/1401408000.0/file.0.000000:340.1",
        "x/1401408000.86400/file.0.000000:340.1",
        "00001/1401408000/file.0.000000:340.1",
        "00001/1401408000.86400/file.0.000000:-1.1",
        "٣/1401408000.86400/file.0.000000:340.1",
    ],
)
def test_what_is_no_offset_is_refused(text):
    with pytest.raises(InvalidRequestError):
        Offset.parse(text)


@given(st.integers(1, 253_402_300_799_999), st.integers(1, 10**7))
def test_every_event_lies_in_its_partition(timestamp_ms, duration_s):
    partition = Partition.of(1, timestamp_ms, duration_s * 1000)

    assert partition.start_ms <= timestamp_ms < partition.end_ms
    assert partition.end_ms - partition.start_ms == duration_s * 1000
    assert Partition.parse(1, partition.name) == partition


def test_three_seconds_of_events_lie_in_four_partitions_of_one_second():
    starts = {Partition.of(1, ms, 1000).start_s for ms in range(500, 3501, 100)}

    assert starts == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["00012345.00345", "1.1", "1401408000.86400"])
def test_partition_names(name):
    assert Partition.parse(1, name) is not None


@pytest.mark.parametrize(
    "name", [".1", "123.", "12345", "abc.123", "1.0", "1.1.1", "-1.1", "_1.1", ""]
)
def test_names_of_no_partition(name):
    assert Partition.parse(1, name) is None


def test_segment_names_are_parsed_from_the_right():
    partition = Partition(1, 1401408000, 86400)
    segment, suffix = parse_segment_file(partition, partition.key, "a.b.c.000012.dat")

    assert (segment.writer_id, segment.sequence, suffix) == ("a.b.c", 12, "dat")
    assert segment.data_key == "00001/1401408000.86400/a.b.c.000012.dat"


def test_segments_padded_in_another_way_keep_their_path():
    partition = Partition(1, 1401408000, 86400)
    segment, _ = parse_segment_file(partition, "1/1401408000.86400", "file.0.7.dat")

    assert segment.data_key == "1/1401408000.86400/file.0.7.dat"


@pytest.mark.parametrize(
    "name",
    ["_x.000000.dat", ".x.000000.dat", "x.dat", "x.000000.tmp", "x.00a.dat", "x y.000000.dat"],
)
def test_other_names_are_not_part_of_the_stream(name):
    partition = Partition(1, 0, 60)

    assert parse_segment_file(partition, partition.key, name) is None


def test_segments_sort_by_time_writer_and_age():
    early, late = Partition(1, 0, 60), Partition(1, 60, 60)
    ordered = [
        Segment(early, "file.1", 0),
        Segment(early, "file.1", 2),
        Segment(early, "file.1", 10),
        Segment(early, "file.10", 0),
        Segment(late, "file.0", 0),
    ]

    assert sorted(reversed(ordered)) == ordered


BAD_NAMES = [
    "", ".", "..", "../x", "a/b", "a\\b", "a\0b", "-x", "_x", ".x", "x" * 129, "a b", "é", "x.", "a..b",
    "%2e%2e", "a\nb", "٣", None, 5,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused(name):
    with pytest.raises(InvalidRequestError):
        check_stream_name(name)
    with pytest.raises(InvalidRequestError):
        check_writer_id(name)


@given(st.text(max_size=30))
def test_no_name_climbs_out(name):
    try:
        check_stream_name(name)
    except InvalidRequestError:
        return
    assert "/" not in name
    assert name not in (".", "..")
    assert name.isascii()


def test_generations_are_numbers():
    assert [parse_generation(n) for n in ("00001", "7", "000123")] == [1, 7, 123]
    assert [parse_generation(n) for n in ("0", "x", "", "-1", "_1", "1.1", "٣")] == [None] * 7


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.integers(1, 500))
def test_events_are_cut_into_blocks_as_full_as_can_be(sizes, size_max):
    events = [bytes(size) for size in sizes]
    cuts = list(blocks_of(events, size_max))

    assert [start for start, _, _ in cuts] == [0, *(end for _, end, _ in cuts[:-1])]
    assert cuts[-1][1] == len(events)
    for start, end, size in cuts:
        assert size == sum(map(len, events[start:end])) + 10 * (end - start)
        assert size <= size_max or end - start == 1
        assert end == len(events) or size + len(events[end]) + 10 > size_max
