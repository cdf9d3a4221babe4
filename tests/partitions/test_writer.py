import asyncio
import os
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import filestream
from filestream.clock import ManualClock
from filestream.coordination.embedded import EmbeddedPropertyStore
from filestream.errors import (
    ConflictError,
    FencedError,
    FilestreamError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from filestream.partitions.generations import Generations
from filestream.partitions.journal import Journals
from filestream.partitions.packed_storage import PackedStorage
from filestream.partitions.scan import Scan
from filestream.partitions.snapshot import StreamView
from filestream.partitions.writer import StreamWriter
from filestream.settings import StreamProperties
from filestream.testing.faults import FaultyStorage

on_disk = pytest.mark.parametrize("home", ["file"], indirect=True)

DAY = 86_400_000
NOON = 1_401_451_200_000  # 2014-05-30T12:00Z
DAY_START_S = 1_401_408_000


@pytest.fixture
def clock():
    return ManualClock(NOON)


@pytest.fixture
def stream(make, clock):
    return make("who", clock=clock, chance=random.Random(1))


def bodies(stream):
    return [event.body for event in stream.read()]


def test_a_body_is_measured_in_bytes_whatever_its_items_are(stream):
    body = memoryview(b"\x01\x02\x03\x04" * 50_000).cast("I")
    with stream.writer() as writer:
        writer.append(body, {"name": "value"})

    assert bodies(stream) == [bytes(body)]


def test_an_append_returns_the_place_of_its_event(stream):
    with stream.writer() as writer:
        offsets = [writer.append(b"%d" % number, {"n": str(number)}) for number in range(5)]

    events = list(stream.read())
    assert [event.offset for event in events] == offsets
    assert [event.body for event in events] == [b"0", b"1", b"2", b"3", b"4"]
    assert events[3].headers == {"n": "3"}
    assert {event.timestamp_ms for event in events} == {NOON}
    for number, offset in enumerate(offsets):
        assert next(stream.read(offset)).body == b"%d" % number


def test_many_events_at_once_are_one_block_and_keep_their_order(stream):
    with stream.writer() as writer:
        offsets = writer.append_many([b"a", (b"b", {"k": "v"}), b"c"])

    events = list(stream.read())
    assert [event.body for event in events] == [b"a", b"b", b"c"]
    assert [event.offset for event in events] == list(offsets)
    assert len({offset.position for offset in offsets}) == 1
    assert offsets[-1].index == 2
    assert offsets[1:] == [events[1].offset, events[2].offset]


def test_many_events_with_times_of_many_days_go_to_their_partitions(stream):
    days = [3, 1, 2, 1, 3, 0]
    stamps = [NOON + day * DAY + number for number, day in enumerate(days)]
    with stream.writer() as writer:
        offsets = writer.append_many([b"%d" % n for n in range(6)], stamps)

    events = {event.body: event for event in stream.read()}
    for number in range(6):
        event = events[b"%d" % number]
        assert event.timestamp_ms == stamps[number]
        assert event.offset == offsets[number]
    assert [e.timestamp_ms for e in stream.read()] == sorted(stamps)


@on_disk
def test_threads_share_syncs_and_no_event_is_lost(stream):
    per_thread, threads_count = 250, 8
    with stream.writer() as writer:

        def produce(me):
            for number in range(per_thread):
                if number % 2:
                    writer.append(b"%d-%d" % (me, number))
                else:
                    writer.append_many([b"%d-%d-%d" % (me, number, i) for i in range(10)])

        threads = [threading.Thread(target=produce, args=(me,)) for me in range(threads_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = bodies(stream)
    assert len(found) == len(set(found)) == threads_count * (125 + 1250)
    for me in range(threads_count):
        mine = [b for b in found if b.startswith(b"%d-" % me)]
        assert mine == sorted(mine, key=lambda b: [int(p) for p in b.split(b"-")])
    assert stream.summary().segments == 1


def test_events_that_nobody_waits_for_are_safe_after_a_flush(stream):
    with stream.writer() as writer:
        for number in range(10_000):
            writer.append_nowait(b"%d" % number, timestamp_ms=NOON if number % 100 == 0 else None)
        writer.flush()

        assert bodies(stream) == [b"%d" % number for number in range(10_000)]


def test_tasks_append_together(stream):
    async def main():
        with stream.writer() as writer:
            offsets = await asyncio.gather(
                *(writer.append_async(b"%d" % n, {"n": str(n)}) for n in range(200))
            )
            many = await writer.append_many_async([b"x", b"y"])
            await writer.flush_async()
            return offsets, many

    offsets, many = asyncio.run(main())

    events = {event.offset: event.body for event in stream.read()}
    assert [events[offset] for offset in offsets] == [b"%d" % n for n in range(200)]
    assert [events[offset] for offset in many] == [b"x", b"y"]
    assert len({offset.position for offset in offsets}) < 100  # they shared blocks


def test_tables_are_appended(stream):
    table = pa.table(
        {
            "body": pa.array([b"a", b"b", b"c"]),
            "headers": pa.array(
                [[("k", "v")], None, [("n", None)]], pa.map_(pa.string(), pa.string())
            ),
            "timestamp": pa.array([NOON + 5, NOON + 6, NOON + 7], pa.timestamp("ms", "UTC")),
        }
    )
    with stream.writer() as writer:
        writer.append_table(table)
        writer.append_table(pa.record_batch({"body": ["text"], "timestamp": [NOON + 8]}))

    assert [(e.timestamp_ms - NOON, e.body, dict(e.headers)) for e in stream.read()] == [
        (5, b"a", {"k": "v"}),
        (6, b"b", {}),
        (7, b"c", {"n": None}),
        (8, b"text", {}),
    ]


@on_disk
@pytest.mark.parametrize(
    "table",
    [
        5,
        "text",
        pa.table({"other": [b"x"]}),
        pa.table({"body": [b"x"], "other": [b"x"]}),
        pa.table({"body": [1, 2]}),
        pa.table({"body": pa.array([b"x", None])}),
        pa.table({"body": [b"x"], "timestamp": ["soon"]}),
        pa.table({"body": [b"x"], "timestamp": pa.array([None], pa.int64())}),
        pa.table({"body": [b"x"], "headers": ["k=v"]}),
        pa.table({"body": [b"x"], "headers": pa.array([{"k": 5}])}),
    ],
)
def test_bad_tables_are_refused(stream, table):
    with stream.writer() as writer:
        with pytest.raises(InvalidRequestError):
            writer.append_table(table)
        assert bodies(stream) == []


@pytest.mark.parametrize("stamp", [0, -1, 1.5, "now", True, 253_402_300_800_000, 2**63])
def test_bad_timestamps_are_refused(stream, stamp):
    with stream.writer() as writer:
        with pytest.raises(InvalidRequestError):
            writer.append(b"x", timestamp_ms=stamp)
        with pytest.raises(InvalidRequestError):
            writer.append_many([b"x", b"y"], [NOON, stamp])
        with pytest.raises(InvalidRequestError):
            writer.append_many([b"x", b"y"], [NOON])
    assert bodies(stream) == []


def test_a_timestamp_that_has_expired_is_refused(stream, clock):
    stream.update_properties(ttl="1d")
    with stream.writer() as writer:
        writer.append(b"x", timestamp_ms=clock.now_ms() - DAY)
        with pytest.raises(InvalidRequestError, match="ttl"):
            writer.append(b"x", timestamp_ms=clock.now_ms() - DAY - 1)


def test_an_event_over_the_limit_is_refused_and_the_largest_is_not(make):
    stream = make("s", event_size="2MiB", block_size="64KiB")
    with stream.writer() as writer:
        with pytest.raises(InvalidRequestError, match="event_size"):
            writer.append(bytes((2 << 20) + 1))
        with pytest.raises(InvalidRequestError, match="headers"):
            writer.append(b"", {"k": "x" * 40_000})
        body = random.Random(1).randbytes((2 << 20) - 100)
        first = writer.append(body, {"name": "large"})
        writer.append(b"after")

    events = list(stream.read())
    assert [event.body for event in events] == [body, b"after"]
    assert events[0].headers == {"name": "large"}
    assert events[0].offset == first
    assert list(stream.verify()) == []


def test_a_late_event_keeps_its_time_in_another_segment(stream):
    with stream.writer() as writer:
        writer.append(b"new", timestamp_ms=NOON + 5000)
        writer.append(b"late", timestamp_ms=NOON)
        writer.append(b"a little late", timestamp_ms=NOON - 900)

    events = {event.body: event for event in stream.read()}
    assert events[b"late"].timestamp_ms == NOON
    assert events[b"late"].offset.sequence == 1
    # Raised, by less than a second; where each commit is a segment of its own, there is no need.
    assert events[b"a little late"].timestamp_ms in (NOON, NOON - 900)


def test_a_clock_that_goes_back_writes_no_file_with_decreasing_times(stream, clock):
    with stream.writer() as writer:
        for step in (0, 60_000, -500, -600_000, 40_000, -2 * DAY, 5 * DAY):
            clock.jump(step)
            writer.append(b"%d" % step)

    assert len(bodies(stream)) == 7
    assert [f for f in stream.verify() if f.level != "note"] == []


def test_segments_roll_by_size(tmp_path):
    stream = filestream.create(tmp_path / "s", segment_size="16KiB")
    with stream.writer() as writer:
        for _ in range(10):
            writer.append(bytes(4000))

    summary = stream.summary()
    assert summary.segments == 3
    assert summary.open_segments == 0
    assert summary.events == 10


def wait_until(condition):
    """Real time is only a safety net here: the clock is moved by hand."""
    waiting = threading.Event()
    for _ in range(1000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it never happened")


@pytest.mark.parametrize(
    ("properties", "seconds"),
    [
        ({"segment_idle": "60s"}, 61),
        ({"segment_age": "10m"}, 601),
        ({"partition_duration": "1h", "segment_age": "1d", "segment_idle": "1d"}, 3700),
    ],
)
def test_segments_are_sealed_by_the_clock_without_traffic(tmp_path, clock, properties, seconds):
    stream = filestream.create(tmp_path / "s", clock=clock, **properties)
    with stream.writer() as writer:
        writer.append(b"x")
        assert stream.summary().open_segments == 1

        clock.advance(seconds)

        wait_until(lambda: stream.summary().open_segments == 0)
        assert bodies(stream) == [b"x"]
        writer.append(b"y")
    assert bodies(stream) == [b"x", b"y"]


def test_events_go_to_the_partition_of_their_time(stream, clock):
    with stream.writer() as writer:
        for _ in range(3):
            writer.append(b"x")
            clock.advance(86_400)

    offsets = [event.offset for event in stream.read()]
    assert [offset.start_s for offset in offsets] == [
        DAY_START_S + day * 86_400 for day in range(3)
    ]
    assert stream.summary().open_segments == 0


@on_disk
def test_roll_begins_another_segment(stream):
    with stream.writer() as writer:
        writer.append(b"x")
        writer.roll()
        writer.roll()
        assert writer.append(b"y").sequence == 1


def test_writer_ids_are_the_first_that_are_free(stream):
    with stream.writer() as first, stream.writer() as second:
        assert (first.writer_id, second.writer_id) == ("file.0", "file.1")
    with stream.writer() as third:
        assert third.writer_id == "file.0"


def test_a_restarted_writer_takes_the_next_sequence(stream):
    for sequence in range(3):
        with stream.writer("mine") as writer:
            assert writer.append(b"x").sequence == sequence


def test_two_writers_with_one_id_are_refused(stream):
    with stream.writer("mine"), pytest.raises(ConflictError, match="writer_id"):
        stream.writer("mine")


@on_disk
def test_two_processes_with_one_id_are_refused(stream):
    code = f"""
        import filestream
        writer = filestream.open({stream.url!r}).writer("mine")
        writer.append(b"theirs")
        print("ready", flush=True)
        input()
    """
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert other.stdout.readline() == b"ready\n"
    with pytest.raises(ConflictError):
        stream.writer("mine")
    with stream.writer() as mine:
        mine.append(b"ours")
    other.kill()
    other.communicate()

    with stream.writer("mine") as writer:
        writer.append(b"again")
    assert sorted(bodies(stream)) == [b"again", b"ours", b"theirs"]


@on_disk
@pytest.mark.parametrize("writer_id", ["", "../x", "a/b", "_x", ".x", 5])
def test_bad_writer_ids_are_refused(stream, writer_id):
    with pytest.raises(InvalidRequestError):
        stream.writer(writer_id)


def test_a_closed_writer_says_so(stream):
    writer = stream.writer()
    writer.append(b"x")
    writer.close()
    writer.close()

    for call in (
        lambda: writer.append(b"y"),
        lambda: writer.append_nowait(b"y"),
        lambda: writer.flush(),
        lambda: asyncio.run(writer.append_async(b"y")),
    ):
        with pytest.raises(InvalidRequestError, match="closed"):
            call()
    assert bodies(stream) == [b"x"]


def test_closing_writes_what_is_queued_and_ends_the_thread(stream):
    writer = stream.writer()
    for number in range(1000):
        writer.append_nowait(b"%d" % number)
    writer.close()

    assert len(bodies(stream)) == 1000
    assert not [t for t in threading.enumerate() if t.name.startswith("filestream-writer")]


@on_disk
def test_a_writer_that_was_forgotten_is_closed_at_exit(stream):
    code = f"""
        import filestream
        writer = filestream.open({stream.url!r}).writer()
        for number in range(1000):
            writer.append_nowait(b"%d" % number)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        cwd=Path(__file__).resolve().parents[2],
        check=True,
    )

    assert b"not closed" in done.stderr
    assert len(bodies(stream)) == 1000
    assert stream.summary().open_segments == 0


def test_closing_while_others_append_loses_nothing_that_was_acknowledged(stream):
    for _ in range(20):
        writer = stream.writer()
        acknowledged, refused = [], []
        go = threading.Barrier(5)

        def produce(me, writer=writer, acknowledged=acknowledged, refused=refused, go=go):
            go.wait()
            for number in range(50):
                try:
                    acknowledged.append(writer.append(b"%d-%d" % (me, number)))
                except InvalidRequestError:
                    refused.append(1)

        async def produce_async(writer=writer, acknowledged=acknowledged, refused=refused):
            for number in range(50):
                try:
                    acknowledged.append(await writer.append_async(b"a-%d" % number))
                except InvalidRequestError:
                    refused.append(1)

        threads = [threading.Thread(target=produce, args=(me,)) for me in range(3)]
        threads.append(
            threading.Thread(
                target=lambda go=go, run=produce_async: (go.wait(), asyncio.run(run()))
            )
        )
        for thread in threads:
            thread.start()
        go.wait()
        writer.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert len(acknowledged) + len(refused) == 200
        found = {event.offset for event in stream.read()}
        assert set(acknowledged) <= found


@on_disk
def test_a_forked_child_cannot_use_the_writer_and_the_parent_can(stream):
    with stream.writer() as writer:
        writer.append(b"before")
        child = os.fork()
        if child == 0:
            try:
                writer.append(b"child")
            except FencedError:
                with filestream.open(stream.url).writer() as own:
                    own.append(b"own")
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        writer.append(b"after")

    assert sorted(bodies(stream)) == [b"after", b"before", b"own"]
    with stream.writer() as again:
        assert again.writer_id == "file.0"  # the child did not keep the claim


@on_disk
def test_a_fork_while_threads_append_leaves_a_child_that_works(stream):
    stop = threading.Event()
    with stream.writer() as writer:

        def produce():
            while not stop.is_set():
                writer.append(b"x")

        threads = [threading.Thread(target=produce) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            child = os.fork()
            if child == 0:
                try:
                    writer.append(b"child")
                except FencedError:
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        stop.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert set(bodies(stream)) == {b"x"}


def test_a_deleted_stream_is_not_written_to(stream):
    with stream.writer() as writer:
        writer.append(b"x")
        stream.delete()
        with pytest.raises(NotFoundError):
            writer.append(b"y")
    assert not filestream.exists(stream.url)


@pytest.mark.parametrize("level", ["os", "memory", "disk"])
def test_acknowledgement_levels(tmp_path, level):
    stream = filestream.create(tmp_path / "s", acknowledgement=level)
    with stream.writer() as writer:
        offsets = [writer.append(b"%d" % n) for n in range(10)]
        if level != "memory":
            assert len(bodies(stream)) == 10
        writer.flush()
        assert [event.offset for event in stream.read()] == offsets


@pytest.mark.parametrize("compression", ["zstd"])
def test_compressed_streams_read_the_same(make, compression):
    stream = make("s", compression=compression)
    with stream.writer() as writer:
        writer.append_many([(b"again " * 50, {"k": "v"})] * 1000)
        writer.append(b"x")

    assert bodies(stream) == [b"again " * 50] * 1000 + [b"x"]
    assert stream.summary().size_bytes < 60_000
    assert list(stream.verify()) == []


def test_e2_streams_are_written_for_cdap(tmp_path, clock):
    stream = filestream.create(tmp_path / "s", format="E2", clock=clock)
    with stream.writer() as writer:
        offsets = list(writer.append_many([b"a", b"b", b"c"], [NOON, NOON, NOON + 5]))
        offsets.append(writer.append(b"d", {"k": None}, NOON + 6))

    events = list(stream.read())
    assert [event.offset for event in events] == offsets
    assert [event.timestamp_ms - NOON for event in events] == [0, 0, 5, 6]
    data = next((tmp_path / "s").glob("00001/*/*.dat")).read_bytes()
    assert data[:2] == b"E2"
    assert data[-8:] == (-clock.now_ms()).to_bytes(8, "big", signed=True) or data[-8] == 0xFF
    assert [f.kind for f in stream.verify()] == ["unverified"]


# -- a disk that fails ------------------------------------------------------------------------


class Faulty:
    """A stream on a storage with faults, with everything given by hand."""

    def __init__(self, inner=None, **properties):
        self.storage = FaultyStorage(inner)
        self.clock = ManualClock(NOON)
        self.store = EmbeddedPropertyStore(self.storage, "_stream/store")
        self.generations = Generations(self.store, self.storage.url)
        self.properties = StreamProperties.parse(properties)
        if self.store.get("generation").version == 0:
            self.generations.begin(1, self.clock.now_ms())

    def writer(self, writer_id="file.0"):
        return StreamWriter(
            PackedStorage(self.storage),
            self.store,
            stream_name="faulty",
            properties=self.properties,
            clock=self.clock,
            chance=random.Random(1),
            journals=Journals(self.store, "nowhere", "id", self.storage.url),
            writer_id=writer_id,
        )

    def bodies(self, storage=None):
        view = StreamView(PackedStorage(storage or self.storage), self.generations, self.clock)
        return [event.body for event in Scan(view, "start", "end").events()]


def fail_at(storage, number, kind=UnavailableError):
    def before(count, name):
        if count == number:
            raise kind("by order of the test")

    storage.before_call = before


def test_a_failed_sync_is_never_retried_and_the_writer_goes_on_in_the_next_segment():
    faulty = Faulty()
    with faulty.writer() as writer:
        writer.append(b"safe")
        fail_at(faulty.storage, faulty.storage.calls + 2)  # write, then this sync
        with pytest.raises(UnavailableError):
            writer.append(b"unknown")
        faulty.storage.before_call = lambda number, name: None
        offset = writer.append(b"after")

    assert offset.sequence == 1
    found = faulty.bodies()
    assert found in ([b"safe", b"after"], [b"safe", b"unknown", b"after"])


def test_a_full_disk_fails_appends_and_leaves_no_heap_of_empty_files():
    faulty = Faulty()
    with faulty.writer() as writer:
        writer.append(b"safe")
        faulty.storage.short_writes = 5
        with pytest.raises(UnavailableError):
            writer.append(b"lost")

        def full(number, name):
            if name in ("write", "sync"):
                raise UnavailableError("full, by order of the test")

        faulty.storage.before_call = full
        for _ in range(20):
            with pytest.raises(UnavailableError):
                writer.append(b"lost")
        faulty.storage.before_call = lambda number, name: None
        writer.append(b"after")

    assert faulty.bodies() == [b"safe", b"after"]
    data_files = [key for key in faulty.storage.inner.files() if key.endswith(".dat")]
    assert len(data_files) == 2


def test_events_lost_without_a_waiter_are_reported_by_flush():
    faulty = Faulty()
    with faulty.writer() as writer:
        writer.append(b"safe")
        faulty.storage.before_call = lambda number, name: (_ for _ in ()).throw(
            UnavailableError("by order of the test")
        )
        for _ in range(5):
            writer.append_nowait(b"lost")
        with pytest.raises(UnavailableError, match="count=5"):
            writer.flush()
        faulty.storage.before_call = lambda number, name: None
        writer.flush()
        writer.append(b"after")
    assert faulty.bodies() == [b"safe", b"after"]


def test_a_failing_seal_loses_nothing():
    faulty = Faulty()
    writer = faulty.writer()
    writer.append(b"safe")
    fail_at(faulty.storage, faulty.storage.calls + 1)
    writer.close()

    assert faulty.bodies() == [b"safe"]


def test_a_failing_index_does_not_fail_an_append():
    faulty = Faulty()

    def before(number, name):
        if name == "create" and any(k.endswith(".dat") for k in faulty.storage.inner.files()):
            raise UnavailableError("no index, by order of the test")

    with faulty.writer() as writer:
        faulty.storage.before_call = before
        writer.append(b"safe")
        writer.append(b"safer")

    assert faulty.bodies() == [b"safe", b"safer"]


WORKLOAD = [b"%d" % n for n in range(6)]


def run_workload(faulty, acknowledged):
    """Appends with rolls and a truncation; whatever fails is tried once more by the next step."""
    with faulty.writer() as writer:
        for number, body in enumerate(WORKLOAD):
            try:
                writer.append(body)
            except FilestreamError:
                continue
            acknowledged.append(body)
            if number == 2:
                writer.roll()
            if number == 3:
                faulty.clock.advance(86_400)


def test_stopped_after_every_single_call_nothing_acknowledged_is_lost():
    from filestream.testing.faults import PowerCut

    clean = Faulty()
    run_workload(clean, [])
    total = clean.storage.calls
    assert clean.bodies() == WORKLOAD

    for number in range(3, total + 1):
        for torn in (False, True):
            faulty = Faulty()
            acknowledged = []

            def cut(count, name, number=number):
                if count >= number:
                    raise PowerCut

            faulty.storage.before_call = cut
            try:
                run_workload(faulty, acknowledged)
            except PowerCut:
                pass
            left = faulty.storage.after_power_cut(torn=torn)
            again = Faulty(left)
            found = again.bodies()

            assert found[: len(acknowledged)] == acknowledged, (number, torn)
            assert found == WORKLOAD[: len(found)], (number, torn)  # nothing invented or twice
            again.clock.advance(2 * 86_400)
            with again.writer() as writer:
                writer.append(b"next")
            assert again.bodies() == [*found, b"next"]


def test_every_single_call_may_fail_and_nothing_acknowledged_is_lost():
    clean = Faulty()
    run_workload(clean, [])
    total = clean.storage.calls

    for number in range(3, total + 1):
        faulty = Faulty()
        fail_at(faulty.storage, number)
        acknowledged = []
        run_workload(faulty, acknowledged)

        found = faulty.bodies()
        assert [body for body in found if body in acknowledged] == acknowledged, number
        assert len(found) == len(set(found)), number


@on_disk
def test_an_interrupted_close_keeps_the_writer_open_and_its_id(stream, monkeypatch):
    writer = stream.writer("mine")
    writer.append(b"1")
    real = writer._drain.run

    def interrupted(work):
        monkeypatch.setattr(writer._drain, "run", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(writer._drain, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.close()

    with pytest.raises(ConflictError):
        stream.writer("mine")
    writer.append(b"2")
    writer.close()
    assert bodies(stream) == [b"1", b"2"]
    stream.writer("mine").close()
