"""Packs of small segments: nothing changes for readers, whatever happens to whoever makes them."""

import json
import os
import random
import signal
import threading
from dataclasses import replace

import pytest

import filestream
from filestream.clock import ManualClock
from filestream.coordination.embedded import EmbeddedPropertyStore
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from filestream.packfile import encode_index, parse_index
from filestream.partitions.compaction import CompactionSettings, Compactor, compact
from filestream.partitions.generations import Generations
from filestream.partitions.journal import Journals
from filestream.partitions.layout import Pack, Partition, Segment
from filestream.partitions.packed_storage import PackedStorage
from filestream.partitions.packs import put_pack
from filestream.partitions.scan import Scan
from filestream.partitions.segment_heads import SegmentHeads
from filestream.partitions.snapshot import StreamView
from filestream.partitions.writer import StreamWriter
from filestream.segment_encoder import SegmentEncoder
from filestream.settings import StreamProperties
from filestream.storage.generic import GenericStorage
from filestream.storage.memory import MemoryStorage
from filestream.testing.faults import FaultyStorage, PowerCut

pytestmark = pytest.mark.usefixtures("no_grace")

OLD = 1_401_408_000_000
HOUR_MS = 3_600_000


def fill(stream, writers=2, segments=20, start_ms=OLD):
    """Small segments of several writers in one partition; returns what was appended, by offset."""
    made = {}
    for number in range(writers):
        with stream.writer(f"w{number}") as writer:
            for n in range(segments):
                body = b"%d %d" % (number, n)
                made[writer.append(body, timestamp_ms=start_ms + n * 1000 + number)] = body
                writer.roll()
    return made


def events(stream, *bounds):
    return [(event.offset, event.body, event.timestamp_ms) for event in stream.read(*bounds)]


def files(stream, suffix):
    storage = stream.view().storage.inner
    return sorted(
        f"{directory}/{entry.name}"
        for generation in storage.list("")
        if generation.name.isdigit()
        for part in storage.list(generation.name)
        for directory in [f"{generation.name}/{part.name}"]
        for entry in storage.list(directory)
        if entry.name.endswith(suffix)
    )


class TestOnEveryStore:
    def test_offsets_hold_and_the_small_files_go(self, make):
        stream = make("s", partition_duration="1h")
        made = fill(stream)
        before = events(stream)
        summary = stream.summary()

        first = stream.compact()
        assert [(pack.segments, pack.key[-18:]) for pack in first.packs] == [
            (20, ".000000-000019.seg")
        ] * 2
        assert (first.removed, first.waiting, len(files(stream, ".dat"))) == (0, 40, 40)
        assert events(stream) == before

        second = stream.compact(grace=0)
        assert (second.packs, second.removed, second.waiting) == ([], 40, 0)
        assert files(stream, ".dat") == []
        assert len(files(stream, ".seg")) == len(files(stream, ".idx")) == 2
        assert stream.compact(grace=0) == type(second)()

        again = filestream.open(stream.url)
        for each in (stream, again):
            assert events(each) == before
            assert each.summary() == summary
            assert list(each.verify()) == []
        place = [offset for offset, _, _ in before].index(list(made)[33])
        assert events(again, list(made)[33]) == before[place:]
        assert events(again, "-7") == before[-7:]

    def test_late_events_follow_what_was_packed(self, make):
        stream = make("s", partition_duration="1h")
        fill(stream, writers=1, segments=3)
        stream.compact(grace=0)

        with stream.writer("w0") as writer:
            assert writer.append(b"late", timestamp_ms=OLD).sequence == 3
            writer.roll()
            assert writer.append(b"later", timestamp_ms=OLD).sequence == 4
        done = stream.compact(grace=0)

        assert [pack.segments for pack in done.packs] == [2]
        assert len(events(stream)) == 5
        assert list(stream.verify()) == []

    def test_a_reader_and_a_tail_that_began_before(self, make):
        stream = make("s", partition_duration="1h")
        fill(stream)
        before = [body for _, body, _ in events(stream)]
        reading = stream.read()
        found = [next(reading).body for _ in range(10)]
        with stream.tail("start", timeout="2s") as tail:
            seen = [next(tail).body for _ in range(10)]
            # By another process, so that nothing here was told.
            filestream.open(stream.url).compact(grace=0)
            assert found + [event.body for event in reading] == before
            with stream.writer("w0") as writer:
                writer.append(b"new")
            assert seen + [event.body for event in tail] == [*before, b"new"]

    def test_a_group_goes_on(self, make):
        stream = make("s", partition_duration="1h")
        fill(stream)
        with stream.consumer("g", start="start") as consumer:
            taken = [event.body for event in consumer.fetch(15)]
            consumer.commit()
        stream.compact(grace=0)
        with filestream.open(stream.url).consumer("g") as consumer:
            while batch := consumer.fetch(10, timeout=0):
                taken += [event.body for event in batch]
                consumer.commit()

        assert sorted(taken) == sorted(body for _, body, _ in events(stream))
        assert len(taken) == 40


@pytest.fixture
def stream(tmp_path):
    return filestream.create(
        tmp_path / "s", partition_duration="1h", clock=ManualClock(OLD), chance=random.Random(1)
    )


def finish(stream):
    stream._clock.jump(2 * HOUR_MS)


class TestWhatIsPacked:
    def test_only_finished_partitions(self, stream):
        fill(stream, writers=1, segments=3)
        stream._clock.jump(HOUR_MS + 599_000)
        assert stream.compact().packs == []
        stream._clock.jump(1000)
        assert len(stream.compact().packs) == 1

    def test_an_open_segment_and_what_is_behind_it_alone_stay(self, stream):
        fill(stream, writers=1, segments=3)
        with stream.writer("w0") as writer:
            writer.append(b"open", timestamp_ms=OLD + 5000)
            finish(stream)
            done = stream.compact(grace=0)
            assert [pack.segments for pack in done.packs] == [3]
            assert done.refused == []
            writer.append(b"more", timestamp_ms=OLD + 6000)
        assert [body for _, body, _ in events(stream)][-2:] == [b"open", b"more"]

    def test_large_segments_stay_and_packs_keep_their_size(self, stream):
        with stream.writer("w0") as writer:
            for number in range(40):
                size = 200_000 if number == 20 else 60_000
                writer.append(bytes([number]) * size)
                writer.roll()
        finish(stream)
        before = events(stream)
        done = stream.compact(grace=0, pack_size="1MiB")

        assert all(pack.size_bytes <= 1 << 20 for pack in done.packs)
        assert [key[-10:] for key in files(stream, ".dat")] == ["000020.dat"]
        assert sum(pack.segments for pack in done.packs) == 39
        assert events(stream) == before

    def test_large_segments_are_not_taken_for_damage_in_a_bucket(self):
        url = f"fsspec+memory://compaction/{random.getrandbits(64):x}"
        stream = filestream.create(
            url, partition_duration="1h", linger="0", clock=ManualClock(OLD), compression="none"
        )
        with stream.writer("w0") as writer:
            for size in (10, 20, 300_000, 10):
                writer.append(bytes(size))
        finish(stream)
        done = stream.compact(grace=0, pack_size="1MiB")
        assert ([pack.segments for pack in done.packs], done.refused) == ([2], [])

    def test_damage_is_left_where_it_is_and_named(self, stream, tmp_path):
        fill(stream, writers=1, segments=5)
        finish(stream)
        (path,) = tmp_path.glob("s/0*/*/w0.000002.dat")
        raw = bytearray(path.read_bytes())
        raw[-60] ^= 1
        path.write_bytes(raw)
        done = stream.compact(grace=0)

        assert [key[-13:] for key in done.refused] == ["w0.000002.dat"]
        assert [pack.segments for pack in done.packs] == [2, 2]
        assert path.read_bytes() == raw
        with pytest.raises(CorruptDataError, match="w0.000002.dat"):
            events(stream)

    def test_names_that_somebody_else_padded_stay(self, stream, tmp_path):
        fill(stream, writers=1, segments=5)
        finish(stream)
        for path in tmp_path.glob("s/0*/*/w0.000002.*"):
            path.rename(path.with_name(path.name.replace("000002", "0000002")))
        before = events(stream)
        assert [pack.segments for pack in stream.compact(grace=0).packs] == [2, 2]
        assert [key[-14:] for key in files(stream, ".dat")] == ["w0.0000002.dat"]
        assert events(stream) == before

    def test_a_dry_run_changes_nothing(self, stream):
        fill(stream)
        finish(stream)
        before = files(stream, "")
        done = stream.compact(dry_run=True)
        assert [pack.segments for pack in done.packs] == [20, 20]
        assert files(stream, "") == before

    def test_cdap_files_stay(self, tmp_path):
        stream = filestream.create(
            tmp_path / "e2", format="E2", partition_duration="1h", clock=ManualClock(OLD)
        )
        fill(stream)
        finish(stream)
        assert stream.compact(grace=0) == type(stream.compact())()

    @pytest.mark.parametrize(
        "bad",
        [
            {"after": "59s"},
            {"pack_size": "1"},
            {"pack_size": "2GiB"},
            {"grace": "soon"},
            {"grace": "59s"},
        ],
    )
    def test_bad_settings_are_refused(self, stream, bad, monkeypatch):
        monkeypatch.undo()
        with pytest.raises(InvalidRequestError):
            stream.compact(**bad)

    def test_one_at_a_time(self, stream):
        with stream._store.claim("compaction/0"), pytest.raises(ConflictError, match="compacts"):
            stream.compact()


class TestDamagedPacks:
    @pytest.fixture
    def packed(self, stream, tmp_path):
        fill(stream, writers=1, segments=6)
        finish(stream)
        self.before = events(stream)
        stream.compact()
        (self.pack,) = tmp_path.glob("s/0*/*/*.seg")
        (self.index,) = tmp_path.glob("s/0*/*/*-*.idx")
        return stream

    def again(self, stream):
        return filestream.open(stream.url, clock=stream._clock)

    @pytest.mark.parametrize("how", ["gone", "cut", "flipped", "foreign"])
    def test_an_index_is_a_hint(self, packed, how):
        raw = self.index.read_bytes()
        foreign = encode_index(replace(parse_index(raw), first=1))
        self.index.write_bytes(
            {"gone": b"", "cut": raw[:9], "flipped": raw[:-1] + b"x", "foreign": foreign}[how]
        )
        if how == "gone":
            self.index.unlink()
        assert events(self.again(packed)) == self.before
        kinds = {(finding.level, finding.kind) for finding in packed.verify()}
        assert kinds == {("suspect", "missing index" if how == "gone" else "wrong index")}
        assert {f.kind for f in packed.verify(rebuild_index=True)} == {"index rebuilt"}
        assert list(packed.verify()) == []
        assert events(self.again(packed)) == self.before

    def test_a_lost_pack_is_no_damage_while_all_it_was_made_from_is_there(self, packed):
        self.pack.unlink()
        assert events(self.again(packed)) == self.before
        packed._clock.jump(24 * HOUR_MS)
        done = packed.compact()
        assert ([made.segments for made in done.packs], done.removed) == ([6], 0)
        assert events(self.again(packed)) == self.before
        packed._clock.jump(2 * HOUR_MS)
        assert packed.compact().removed == 6
        assert events(self.again(packed)) == self.before

    def test_a_lost_pack_is_damage_and_verify_goes_on(self, packed):
        packed.compact(grace=0)
        self.pack.unlink()
        with pytest.raises(CorruptDataError):
            events(self.again(packed))
        fill(packed, writers=1, segments=2, start_ms=OLD + 3 * HOUR_MS)
        found = [f.kind for f in packed.verify() if f.level == "damage"]
        assert found.count("missing event file") == 6

    def test_verify_says_when_a_damaged_pack_can_be_removed(self, packed):
        raw = bytearray(self.pack.read_bytes())
        raw[900] ^= 1
        self.pack.write_bytes(raw)
        advice = [f for f in packed.verify() if "remove this file" in f.message]
        assert [f.url.rpartition(".")[2] for f in advice] == ["seg"]
        self.pack.unlink()
        self.index.unlink()
        assert events(self.again(packed)) == self.before
        assert [f for f in packed.verify() if f.level != "note"] == []

    def test_a_lost_index_is_made_anew_and_the_grace_begins_then(self, packed):
        packed._clock.jump(24 * HOUR_MS)
        self.index.unlink()
        assert packed.compact().waiting == 6
        packed._clock.jump(2 * HOUR_MS)
        assert packed.compact().removed == 6
        assert events(self.again(packed)) == self.before

    @pytest.mark.parametrize("at", [1, 700, -1])
    def test_what_was_packed_is_not_removed_when_the_pack_is_damaged(self, packed, at):
        raw = bytearray(self.pack.read_bytes())
        raw[at] ^= 4
        self.pack.write_bytes(raw)
        done = packed.compact(grace=0)
        assert [key[-17:] for key in done.refused] == ["000000-000005.seg"]
        assert done.removed == 0
        assert packed.compact(grace=0, dry_run=True).refused == done.refused
        assert len(files(packed, ".dat")) == 6
        assert [f for f in packed.verify() if f.level == "damage"]

    def test_a_pack_that_was_cut_is_damage_and_no_end(self, packed):
        packed.compact(grace=0)
        self.pack.write_bytes(self.pack.read_bytes()[:-1])
        with pytest.raises(CorruptDataError, match="000000-000005.seg"):
            events(self.again(packed))
        self.pack.unlink()
        with pytest.raises(CorruptDataError):
            events(packed)


def test_truncation_and_retention_take_packs_along(stream):
    fill(stream)
    finish(stream)
    stream.compact(grace=0)
    stream.truncate()
    assert events(stream) == []
    stream._clock.jump(30 * 24 * HOUR_MS)
    assert [removal.reason for removal in stream.apply_retention()] == ["truncated"]
    assert files(stream, "") == []


def test_truncated_while_it_was_compacted(stream):
    fill(stream)
    finish(stream)
    chores = []

    def work(planned):
        chores.extend(planned)
        stream.truncate()
        stream._clock.jump(30 * 24 * HOUR_MS)
        stream.apply_retention()
        return map(Compactor(stream.view(), CompactionSettings()).do, planned)

    assert stream.compact(work=work).packs == []
    assert len(chores) == 2


def test_a_worker_may_do_again_what_was_done(stream):
    fill(stream)
    finish(stream)
    before = events(stream)

    def work(planned):
        first = [Compactor(stream.view(), CompactionSettings(grace_ms=0)).do(c) for c in planned]
        # Another process: it has listed nothing.
        view = filestream.open(stream.url, clock=stream._clock).view()
        second = [Compactor(view, CompactionSettings(grace_ms=0)).do(c) for c in planned]
        assert [done.packs for done in second] == [[], []]
        return first

    assert stream.compact(work=work).removed == 40
    assert events(stream) == before


def test_two_at_once_do_no_harm(stream):
    """Neither the claim nor the plan is what protects the events."""
    fill(stream)
    finish(stream)
    before = events(stream)

    def work(planned):
        for _ in range(2):
            yield from map(Compactor(stream.view(), CompactionSettings()).do, planned)

    done = stream.compact(work=work)
    assert [pack.segments for pack in done.packs] == [20] * 4
    assert events(stream) == before
    assert stream.compact(grace=0).removed == 40
    assert events(stream) == before


class Bare:
    """A stream on a storage that can be cut off at any call."""

    def __init__(self, storage):
        self.storage = storage
        self.clock = ManualClock(OLD)
        self.store = EmbeddedPropertyStore(MemoryStorage("memory://store"), "store")
        self.generations = Generations(self.store, "memory://s")
        self.generations.begin(1, OLD)

    def view(self):
        return StreamView(PackedStorage(self.storage), self.generations, self.clock)

    def fill(self):
        properties = StreamProperties.parse({"partition_duration": "1h"})
        for name in ("a", "b"):
            with StreamWriter(
                PackedStorage(self.storage), self.store, stream_name="s", properties=properties,
                clock=self.clock, chance=random.Random(1), writer_id=name,
                journals=Journals(self.store, "nowhere", "id", "url"),
            ) as writer:  # fmt: skip
                for number in range(6):
                    writer.append(b"%d" % number)
                    writer.roll()
        self.clock.jump(2 * HOUR_MS)

    def events(self):
        return [(e.offset, e.body) for e in Scan(self.view(), "start", "end").events()]

    def compact(self, **settings):
        return compact(self.view(), self.store, CompactionSettings(**settings))


@pytest.mark.parametrize("error", [PowerCut, UnavailableError])
@pytest.mark.parametrize("torn", [False, True])
def test_stopped_after_every_single_call_every_event_is_there_once(error, torn):
    number = 0
    while True:
        bare = Bare(FaultyStorage())
        bare.fill()
        before = bare.events()
        first = bare.storage.calls

        def stop(count, _name, last=first + number):
            if count > last:
                raise error("by order of the test")

        bare.storage.before_call = stop
        number += 1
        try:
            done = bare.compact(grace_ms=0)
            break
        except error:
            pass
        assert bare.events() == before
        bare.storage = bare.storage.after_power_cut(torn=torn)
        assert bare.events() == before
        done = bare.compact(grace_ms=0)
        assert done.refused == []
        assert bare.events() == before
        assert not [key for key in bare.storage.files() if key.endswith(".dat")]
    assert number > 25
    assert done.removed == 12


class TestASleeper:
    """A writer that slept while its heir's segments were packed and removed."""

    @pytest.fixture
    def sleeper(self):
        clock = ManualClock(OLD)
        url = f"fsspec+memory://compaction/{random.getrandbits(64):x}"
        self.stream = filestream.create(
            url, partition_duration="1h", linger="0", clock=clock, chance=random.Random(1)
        )
        writer = self.stream.writer("mine")
        writer.append(b"before")
        # What would be the end of its lease.
        store = self.stream._store
        document = store.get("_claims/writers/mine")
        store.compare_and_set("_claims/writers/mine", b"{}", version=document.version)
        with filestream.open(url, clock=clock).writer("mine") as heir:
            for number in range(5):
                heir.append(b"heir %d" % number)
        return writer

    def test_may_not_take_the_name_of_what_was_removed(self, sleeper):
        finish(self.stream)
        filestream.open(self.stream.url, clock=self.stream._clock).compact(grace=0)
        assert files(self.stream, ".dat") == []

        with pytest.raises(ConflictError, match="another process writes"):
            sleeper.append(b"lost", timestamp_ms=OLD + 1000)
        # Also for those who have not heard of the pack.
        assert files(self.stream, ".dat") == []

        found = [body for _, body, _ in events(self.stream)]
        assert found == [b"before", *(b"heir %d" % number for number in range(5))]
        self.stream.compact(grace=0)
        assert files(self.stream, ".dat") == []

    def test_not_with_what_was_on_its_way_either(self, sleeper, monkeypatch):
        real = GenericStorage.put_if_absent
        asked, go = threading.Event(), threading.Event()
        told = []

        def late(storage, key, data):
            if key.endswith(".dat"):
                asked.set()
                assert go.wait(30)
            real(storage, key, data)

        def append():
            try:
                sleeper.append(b"lost")
            except (ConflictError, UnavailableError) as error:
                told.append(error)

        with monkeypatch.context() as patched:
            patched.setattr(GenericStorage, "put_if_absent", late)
            thread = threading.Thread(target=append)
            thread.start()
            assert asked.wait(30)
        finish(self.stream)
        filestream.open(self.stream.url, clock=self.stream._clock).compact(grace=0)
        go.set()
        thread.join(30)

        assert len(told) == 1
        assert b"lost" not in [body for _, body, _ in events(self.stream)]


def test_a_sleeper_may_not_make_a_file_of_that_name_either():
    """Where files grow: its heir's was packed and removed between its listing and its creation."""

    class Slow(MemoryStorage):
        steps = ()

        def create(self, key, *, durable_name=True):
            for step in self.steps:
                step(key)
            return super().create(key, durable_name=durable_name)

    bare = Bare(Slow("memory://slow"))
    bare.fill()
    bare.storage.steps = [
        lambda key: put_pack(
            bare.storage, Pack(key.rpartition("/")[0], "a", 6, 7), [b"heir's", b"too"], 0
        )
    ]
    properties = StreamProperties.parse({"partition_duration": "1h"})
    with (
        StreamWriter(
            PackedStorage(bare.storage), bare.store, stream_name="s", properties=properties,
            clock=bare.clock, chance=random.Random(1), writer_id="a",
            journals=Journals(bare.store, "nowhere", "id", "url"),
        ) as writer,
        pytest.raises(ConflictError, match="another process writes"),
    ):  # fmt: skip
        writer.append(b"lost", timestamp_ms=OLD)


def test_a_gap_that_nobody_acknowledged_stays_one():
    """As a writer leaves it that died with two commits in the air, the first of which never came."""
    clock = ManualClock(OLD)
    url = f"fsspec+memory://compaction/{random.getrandbits(64):x}"
    stream = filestream.create(
        url, partition_duration="1h", linger="0", clock=clock, chance=random.Random(1)
    )
    heads = SegmentHeads("s", stream.properties, random.Random(1))
    for sequence, settled in ((0, 0), (1, 1), (2, 2), (4, 3), (5, 3)):
        segment = Segment(Partition.of(1, OLD, HOUR_MS), "mine", sequence)
        encoder = SegmentEncoder(heads.head(segment, settled), heads.options)
        encoder.add([b"\2%d\0" % sequence], OLD + sequence)
        stream.view().storage.put_if_absent(segment.data_key, encoder.whole(OLD))
    finish(stream)
    before = events(stream)
    assert [body for _, body, _ in before] == [b"0", b"1", b"2"]

    assert [pack.segments for pack in stream.compact(grace=0).packs] == [3, 2]
    assert files(stream, ".dat") == []
    assert events(stream) == before
    with stream.writer("mine") as writer:
        assert writer.append(b"back", timestamp_ms=OLD + 9).sequence == 6
    assert [body for _, body, _ in events(stream)] == [b"0", b"1", b"2", b"4", b"5", b"back"]


def test_one_damaged_pack_does_not_stop_the_others(stream, tmp_path):
    fill(stream, writers=1, segments=3)
    finish(stream)
    stream.compact()
    (pack,) = tmp_path.glob("s/0*/*/*.seg")
    pack.write_bytes(pack.read_bytes()[:-1])
    fill(stream, writers=1, segments=3, start_ms=OLD + HOUR_MS)
    stream._clock.jump(2 * HOUR_MS)
    done = stream.compact()
    assert (len(done.refused), [made.segments for made in done.packs]) == (1, [3])


def test_a_listing_that_ran_beside_a_compaction(tmp_path):
    """Its first page is from before the pack, its second from after the removal."""

    class Slow(MemoryStorage):
        stale = None

        def list(self, prefix):
            if self.stale is not None and prefix.count("/") == 1:
                stale, self.stale = self.stale, None
                return stale
            return super().list(prefix)

    bare = Bare(Slow("memory://slow"))
    bare.fill()
    before = bare.events()
    folder = next(key for key in bare.storage.files() if key.endswith(".dat")).rpartition("/")[0]
    names = sorted(bare.storage.list(folder))
    bare.compact(grace_ms=0)
    # Of the first page a few, of the second nothing but what is behind the packed ones.
    bare.storage.stale = [entry for entry in names if "b.000005" in entry.name]
    assert bare.events() == before


def test_a_forked_child_reads_packs_although_a_thread_of_its_parent_did(stream):
    fill(stream, writers=1, segments=3)
    finish(stream)
    stream.compact()
    storage = stream.view().storage
    with storage._mutex:
        child = os.fork()
        if not child:
            signal.alarm(20)
            os._exit(0 if len(events(stream)) == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_packs_of_hostile_names_are_none(stream):
    fill(stream, writers=1, segments=3)
    storage = stream.view().storage.inner
    folder = files(stream, ".dat")[0].rpartition("/")[0]
    before = events(stream)
    for name in (
        "w0.000002-000000",
        "w0.0000000-000002",
        "w0.-000002",
        ".w0.000000-000002",
        "w0.0-2",
    ):
        storage.put_if_absent(f"{folder}/{name}.seg", b"")
    assert events(stream) == before
    storage.put_if_absent(f"{folder}/w0.000000-000002.seg", b"")
    with pytest.raises(CorruptDataError, match="number of segments"):
        events(filestream.open(stream.url))


def test_json_of_a_chore_is_small(stream):
    """They travel to workers."""
    fill(stream)
    finish(stream)
    chores = Compactor(stream.view(), CompactionSettings()).plan()
    assert [(chore.first, chore.last, chore.left) for chore in chores] == [(0, 19, ())] * 2
    assert len(json.dumps([str(chore) for chore in chores])) < 1000


def test_a_stream_that_is_gone(stream):
    stream.delete()
    with pytest.raises(NotFoundError):
        stream.compact()
