"""Offsets, limits and splits of the Spark source, without Spark and without Java."""

import json
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import filestream
from filestream.clock import ManualClock
from filestream.consumers.spark.frontier import Frontier, Limit
from filestream.consumers.spark.offsets import StreamOffset, Symbol, parse_offset
from filestream.consumers.spark.options import parse_options
from filestream.consumers.spark.plan import DataLossError, batch_splits, pack, read_splits
from filestream.errors import (
    CorruptDataError,
    FencedError,
    InvalidRequestError,
    UnsupportedVersionError,
)
from filestream.partitions.chain import ChainId, Place
from filestream.partitions.layout import Partition
from filestream.partitions.merge import events_of
from filestream.partitions.positions import End, Start, parse_position
from filestream.partitions.snapshot import Bounds, take_snapshot

START = 1_401_408_000_000
DAY = 86_400_000


def bodies(view, splits, generation=1, **options):
    pieces = read_splits(view, splits, generation=generation, **options)
    return [event.body for piece in pieces for event in events_of(piece)]


@pytest.fixture
def stream(tmp_path):
    return filestream.create(tmp_path / "s", index_interval="1KiB", block_size="4KiB")


def fill(stream, writers=3, days=3, appends=20, seed=1):
    chance = random.Random(seed)
    number = 0
    for me in range(writers):
        with stream.writer(f"file.{me}") as writer:
            for day in range(days):
                for step in range(appends):
                    count = chance.randrange(1, 6)
                    body = [b"%06d" % (number + i) + bytes(50) for i in range(count)]
                    number += count
                    writer.append_many(body, START + day * DAY + step * 1000)
                    if not chance.randrange(10):
                        writer.roll()
    return number


# -- offsets ----------------------------------------------------------------------------------

places = st.dictionaries(
    st.builds(
        ChainId,
        st.builds(
            Partition,
            st.just(3),
            st.integers(0, 30).map(lambda n: n * 60),
            st.sampled_from([60, 120]),
        ),
        st.sampled_from(["file.0", "file.1", "file.10"]),
    ),
    st.builds(
        lambda s, p, i: Place(s, p, i if p else 0),
        st.integers(0, 3),
        st.sampled_from([0, 340, 4096]),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(places, st.integers(0, 10**9), st.integers(0, 10**13))
def test_offsets_survive_a_checkpoint(places, records, from_ms):
    offset = StreamOffset(3, places, records, from_ms)
    text = json.dumps(offset.to_json())

    again = parse_offset(json.loads(text))

    assert again == offset
    assert json.dumps(again.to_json()) == text


def test_finished_partitions_share_one_entry():
    places = {
        ChainId(Partition(1, day * 86_400, 86_400), f"file.{writer}"): Place(1)
        for day in range(365)
        for writer in range(4)
    }
    places[ChainId(Partition(1, 365 * 86_400, 86_400), "file.0")] = Place(0, 4096)

    raw = StreamOffset(1, places).to_json()

    assert len(raw["places"]) == 2
    assert len(json.dumps(raw)) < 250
    assert parse_offset(raw).places == places


def test_symbolic_offsets():
    assert parse_offset(Symbol("latest", 5).to_json()) == Symbol("latest", 5)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({"v": 2}, UnsupportedVersionError),
        ({}, CorruptDataError),
        ({"v": 1}, CorruptDataError),
        ({"v": 1, "at": "soon", "from": 0}, CorruptDataError),
        ({"v": 1, "gen": 1, "records": 0, "from": 0, "places": [[1]]}, CorruptDataError),
        ({"v": "x"}, CorruptDataError),
    ],
)
def test_foreign_offsets_are_refused(raw, error):
    with pytest.raises(error):
        parse_offset(raw)


# -- options ----------------------------------------------------------------------------------


def test_options_have_the_names_of_the_peers(tmp_path):
    options = parse_options(
        {
            "path": str(tmp_path),
            "includeheaders": "true",
            "MAXBYTESPERTRIGGER": "1MiB",
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
        },
        now_ms=0,
    )

    assert options.columns == ("timestamp", "headers", "body")
    assert options.limit == Limit(size_bytes=1 << 20)
    assert not options.fails_on_truncate
    assert options.url == tmp_path.as_uri()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"path": "x", "colums": "body"},
        {"path": "x", "columns": "no"},
        {"paths": '["a", "b"]'},
        {"path": "x", "maxBytesPerTrigger": "lots"},
        {"path": "x", "maxRecordsPerTrigger": "-1"},
        {"path": "x", "failOnDataLoss": "maybe"},
        {"path": "x", "onTruncate": "maybe"},
        {"path": "x", "mode": "maybe"},
        {"path": "nonsense://x/y"},
        {"path": "x", "startingOffsets": "soon"},
        {"path": "x", "startingTimestamp": "soon"},
        {"path": "s3://bucket/../x"},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(InvalidRequestError):
        parse_options(options, now_ms=0)


# -- batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [500, 2000, 10_000, 1 << 30])
@pytest.mark.parametrize("tasks", [1, 3, 16])
def test_splits_of_any_size_hold_every_event_once(stream, size, tasks):
    count = fill(stream)
    snapshot = take_snapshot(stream.view())
    bounds = Bounds(snapshot, parse_position("start", now_ms=0), parse_position("end", now_ms=0))

    splits = batch_splits(snapshot, bounds, size)
    packed = pack(splits, tasks_min=tasks, size_bytes_max=size)

    assert [split for task in packed for split in task] == splits
    found = [body for task in packed for body in bodies(stream.view(), task)]
    assert len(found) == len(set(found)) == count
    if size == 500:
        assert len(splits) > stream.summary().segments
    if tasks == 3 and size > 10_000:
        assert 3 <= len(packed) <= 6


def test_splits_between_positions_are_those_of_a_read(stream):
    fill(stream)
    events = list(stream.read())
    snapshot = take_snapshot(stream.view())
    for start, end in (
        (events[7].offset, events[100].offset),
        ("-50", "end"),
        (f"@{START + DAY}", f"@{START + 2 * DAY + 3000}"),
        ("end", "end"),
    ):
        first, last = parse_position(start, now_ms=0), parse_position(end, now_ms=0)
        splits = batch_splits(snapshot, Bounds(snapshot, first, last), 1500)
        expected = [event.body for event in stream.read(start, end)]
        assert sorted(bodies(stream.view(), splits)) == sorted(expected)


def test_a_lying_index_makes_no_split(stream):
    count = fill(stream, writers=1, days=1, appends=200)
    for index in Path(stream.url.removeprefix("file://")).glob("00001/*/*.idx"):
        data = bytearray(index.read_bytes())
        data[30] ^= 1
        index.write_bytes(bytes(data))
    snapshot = take_snapshot(stream.view())
    bounds = Bounds(snapshot, parse_position("start", now_ms=0), parse_position("end", now_ms=0))

    assert len(bodies(stream.view(), batch_splits(snapshot, bounds, 1000))) == count


# -- streaming --------------------------------------------------------------------------------


def drain(stream, limit, appends=None, size=2000):
    """All micro-batches until nothing is left; each is planned twice, as after a crash."""
    frontier = Frontier(stream.view())
    offset = StreamOffset(stream.generation)
    batches = []
    while True:
        end = frontier.limited(offset, frontier.now(offset), limit)
        if end == offset:
            return batches, offset
        splits = frontier.splits(offset, end, size)
        found = bodies(stream.view(), splits)
        offset_again = parse_offset(json.loads(json.dumps(end.to_json())))
        assert (
            bodies(stream.view(), Frontier(stream.view()).splits(offset, offset_again, 700))
            == found
        )
        batches.append(found)
        offset = end
        if appends and len(batches) < 20:
            appends(len(batches))


@pytest.mark.parametrize(
    "limit",
    [
        Limit(),
        Limit(size_bytes=1),
        Limit(size_bytes=3000),
        Limit(events=1),
        Limit(events=37),
        Limit(segments=2),
    ],
)
def test_any_sequence_of_limits_reads_every_event_once(stream, limit):
    count = fill(stream)

    batches, offset = drain(stream, limit)

    found = [body for batch in batches for body in batch]
    assert len(found) == len(set(found)) == count == offset.records
    if limit.events > 30:
        assert max(map(len, batches)) <= 37
    if limit.is_none:
        assert len(batches) == 1


def test_a_limit_moves_event_time_forward(stream):
    fill(stream, writers=4)
    batches, _ = drain(stream, Limit(events=50))
    when = {event.body: event.timestamp_ms for event in stream.read()}
    days = [{(when[body] - START) // DAY for body in batch} for batch in batches]

    for before, after in pairwise(days):
        assert max(before) <= min(after) + 1


def test_events_that_arrive_between_batches_are_read_once(stream):
    count = [fill(stream, writers=2, days=1)]
    with stream.writer("file.0") as old, stream.writer("new") as new:

        def more(batch):
            old.append(b"old-%d" % batch, timestamp_ms=START + (batch % 3) * DAY)
            new.append_many([b"new-%d-%d" % (batch, i) for i in range(3)], START + 5 * DAY)
            if batch % 4 == 0:
                new.roll()
            count[0] += 4

        batches, offset = drain(stream, Limit(events=10), more)

    found = [body for batch in batches for body in batch]
    assert len(found) == len(set(found)) == count[0]
    assert offset.records == count[0]


def test_large_events_are_never_cut(tmp_path):
    stream = filestream.create(tmp_path / "s", block_size="4KiB")
    chance = random.Random(3)
    sizes = [chance.choice([10, 100, 5000, 50_000]) for _ in range(60)]
    with stream.writer() as writer:
        for number, size in enumerate(sizes):
            writer.append(b"%03d" % number + bytes(size))

    for limit in (Limit(events=1), Limit(size_bytes=6000), Limit()):
        batches, _ = drain(stream, limit)
        assert [len(b) - 3 for batch in batches for b in batch] == sizes


def test_segments_of_dead_writers_are_read_to_their_last_block(stream):
    for number in range(3):
        child = os.fork()
        if child == 0:
            writer = filestream.open(stream.url).writer("mine")
            writer.append_many([b"%d-%d" % (number, i) for i in range(5)], START)
            os._exit(0)
        os.waitpid(child, 0)

    batches, offset = drain(stream, Limit(events=4))

    assert sorted(b for batch in batches for b in batch) == sorted(
        b"%d-%d" % (n, i) for n in range(3) for i in range(5)
    )
    assert offset.records == 15


def test_damage_is_never_taken_for_the_end(stream):
    for number in range(2):
        child = os.fork()
        if child == 0:
            writer = filestream.open(stream.url).writer("mine")
            for i in range(5):
                writer.append(b"%d-%d" % (number, i), timestamp_ms=START)
            os._exit(0)
        os.waitpid(child, 0)
    path = min(Path(stream.url.removeprefix("file://")).glob("00001/*/*.dat"))
    offset = list(stream.read())[1].offset
    data = bytearray(path.read_bytes())
    data[offset.position + 8] ^= 0x40  # the length of a block
    path.write_bytes(bytes(data))

    with pytest.raises(CorruptDataError):
        list(stream.read())
    with pytest.raises(CorruptDataError):
        drain(stream, Limit())


def test_e2_streams_are_planned_without_counts(tmp_path):
    stream = filestream.create(tmp_path / "s", format="E2")
    with stream.writer() as writer:
        for number in range(50):
            writer.append(b"%d" % number, timestamp_ms=START + number)

    for limit in (Limit(), Limit(size_bytes=100)):
        batches, _ = drain(stream, limit)
        assert sorted(int(b) for batch in batches for b in batch) == list(range(50))


def test_a_truncation_in_mid_query_is_named(stream):
    fill(stream)
    frontier = Frontier(stream.view())
    offset = StreamOffset(1)
    end = frontier.now(offset)
    splits = frontier.splits(offset, end, 2000)
    stream.truncate()
    stream.apply_retention()

    with pytest.raises(FencedError, match="truncated"):
        bodies(stream.view(), splits)
    assert bodies(stream.view(), splits, skips_truncated=True) == []
    with pytest.raises(FencedError, match="truncated"):
        frontier.splits(offset, end, 2000)


def test_what_expires_after_planning_is_said_to_be_lost(tmp_path):
    clock = ManualClock(START)
    stream = filestream.create(tmp_path / "s", ttl="30d", clock=clock)
    with stream.writer() as writer:
        writer.append(b"one")
    snapshot = take_snapshot(stream.view())
    splits = batch_splits(snapshot, Bounds(snapshot, Start(), End()), 1 << 20)
    clock.advance(60 * 86_400)
    stream.apply_retention()

    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        bodies(stream.view(), splits)
    with pytest.raises(DataLossError):
        bodies(stream.view(), splits, skips_truncated=True)
    assert bodies(stream.view(), splits, skips_expired=True) == []


def test_looking_costs_a_step_for_each_open_file(stream, monkeypatch):
    fill(stream, writers=2, days=5)
    frontier = Frontier(stream.view())
    end = frontier.now(StreamOffset(1))
    reads = []
    storage = type(stream.view().storage)
    real = storage.read
    monkeypatch.setattr(storage, "read", lambda self, *a: reads.append(a) or real(self, *a))

    frontier.now(end)

    assert len(reads) <= 2  # the generation, and nothing of sealed files
