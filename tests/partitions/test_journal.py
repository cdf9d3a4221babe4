"""Level ``journal``: acknowledged here, in the store soon after, and never lost in between."""

import contextlib
import itertools
import json
import logging
import random
import threading
from pathlib import Path

import pytest

import filestream
from filestream.blocks import End
from filestream.clock import ManualClock
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    FilestreamError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from filestream.partitions import journal_lane, shipper
from filestream.partitions.generations import Generations
from filestream.partitions.journal import Journal, Journals, default_root
from filestream.partitions.layout import Partition, Segment
from filestream.partitions.shipper import Shipper
from filestream.partitions.writer_ids import WriterClaim
from filestream.segment_reader import parse_header
from filestream.storage.generic import GenericStorage
from filestream.storage.local import LocalStorage, _LocalAppender
from filestream.storage.memory import MemoryStorage

OLD = 1_401_408_000_000
HOUR_MS = 3_600_000
_names = itertools.count()


@pytest.fixture
def make():
    def create(**properties):
        given = {"acknowledgement": "journal", "ship_interval": "100ms", "linger": "0"} | properties
        return filestream.create(f"fsspec+memory://journal/s{next(_names)}", **given)

    return create


@pytest.fixture
def stream(make):
    return make()


def is_empty(data):
    """Whether a segment holds no event: one that takes the row."""
    header = parse_header(data)
    return isinstance(header.parse(data, header.size, 0), End)


class Store:
    """Fails the PUTs of segments with events; the first of a row holds none."""

    def __init__(self, monkeypatch):
        self.is_down = False
        self.puts = []
        real = GenericStorage.put_if_absent

        def put(storage, key, data):
            if key.endswith(".dat") and not is_empty(data):
                if self.is_down:
                    raise UnavailableError("the store is down, by order of the test")
                self.puts.append(key)
            real(storage, key, data)

        monkeypatch.setattr(GenericStorage, "put_if_absent", put)


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(shipper, "_PAUSE_S", (0.01, 0.02))
    return Store(monkeypatch)


def die(writer):
    """As a process that is gone: its locks and claims are free, and nothing more is done."""
    writer.forget_parent()


def bodies(stream):
    return [event.body for event in stream.read()]


def wait_for(stream, count):
    with stream.tail("start", timeout="20s") as tail:
        return [event.body for event in itertools.islice(tail, count)]


def test_acknowledged_at_once_and_in_the_store_soon_after(stream, store, tmp_path):
    with stream.writer("mine", journal=tmp_path) as writer:
        store.is_down = True
        offsets = [writer.append(b"%d" % number) for number in range(100)]
        writer.flush()
        assert bodies(stream) == []
        (place,) = stream.journals()
        assert place.writer_id == "mine"
        assert place.directory.startswith(str(tmp_path))
        store.is_down = False
        assert wait_for(stream, 100) == [b"%d" % number for number in range(100)]
        assert [event.offset for event in stream.read()] == offsets

    assert stream.journals() == []
    assert list((tmp_path / stream.id).iterdir()) == []
    assert list(stream.verify()) == []
    assert len(store.puts) < 20


def test_what_a_dead_writer_left_goes_to_the_store_before_anything_else(stream, store, tmp_path):
    store.is_down = True
    writer = stream.writer("mine", journal=tmp_path)
    offsets = list(writer.append_many([b"a", b"b"]))
    writer.roll()
    offsets.append(writer.append(b"c", {"k": "v"}))
    die(writer)
    with pytest.raises(UnavailableError):
        stream.writer("mine", journal=tmp_path)
    store.is_down = False

    with stream.writer("mine", journal=tmp_path) as again:
        assert bodies(stream) == [b"a", b"b", b"c"]
        offsets.append(again.append(b"d"))
    found = list(stream.read())
    assert [event.offset for event in found] == offsets
    assert found[2].headers == {"k": "v"}
    assert list(stream.verify()) == []


class TestSomewhereElse:
    @pytest.fixture
    def left(self, stream, store, tmp_path):
        store.is_down = True
        writer = stream.writer("mine", journal=tmp_path / "here")
        writer.append(b"left")
        die(writer)
        store.is_down = False
        return stream

    def test_a_writer_does_not_begin(self, left, tmp_path):
        with pytest.raises(ConflictError, match="takeover") as error:
            left.writer("mine", journal=tmp_path / "there")
        assert str(tmp_path / "here") in str(error.value)
        assert bodies(left) == []
        # The refusal holds nothing.
        left.writer("mine", journal=tmp_path / "here").close()
        assert bodies(left) == [b"left"]

    def test_unless_the_events_are_given_up(self, left, tmp_path, caplog):
        with left.writer("mine", journal=tmp_path / "there", takeover=True) as writer:
            writer.append(b"new")
        caplog.set_level(logging.WARNING)
        with left.writer("mine", journal=tmp_path / "here") as writer:
            writer.append(b"newer")
        assert "given up with events in it" in caplog.text
        assert bodies(left) == [b"new", b"newer"]
        assert list(tmp_path.glob("here/*/mine.*/0*/*/*.dat"))

    def test_a_writer_without_a_name_takes_another(self, stream, store, tmp_path):
        store.is_down = True
        writer = stream.writer(journal=tmp_path / "here")
        assert writer.writer_id == "file.0"
        writer.append(b"left")
        die(writer)
        store.is_down = False
        with stream.writer(journal=tmp_path / "there") as other:
            assert other.writer_id == "file.1"
        assert bodies(stream) == []
        # Here the next one brings it along, whoever that is.
        with stream.writer("other", journal=tmp_path / "here"):
            assert bodies(stream) == [b"left"]
        assert stream.journals() == []

    def test_the_level_may_have_changed(self, left, tmp_path, monkeypatch):
        left.update_properties(acknowledgement="object")
        with pytest.raises(ConflictError):
            left.writer("mine", journal=tmp_path / "there")
        monkeypatch.setenv("FILESTREAM_JOURNAL", str(tmp_path / "here"))
        with left.writer("mine") as writer:
            assert writer.append(b"after").sequence == 2
        assert bodies(left) == [b"left", b"after"]

    def test_one_that_lives_keeps_its_journal(self, stream, store, tmp_path):
        """A process that was taken for dead, and is only stopped."""
        store.is_down = True
        with stream.writer("mine", journal=tmp_path) as sleeper:
            sleeper.append(b"left")
            claims = stream._store
            document = claims.get("_claims/writers/mine")
            claims.compare_and_set("_claims/writers/mine", b"{}", version=document.version)
            with pytest.raises(ConflictError, match="another living process"):
                filestream.open(stream.url).writer("mine", journal=tmp_path)
            store.is_down = False
        assert bodies(stream) == [b"left"]


class TestTheStoreFails:
    def test_for_a_while_and_nobody_waits(self, stream, store, tmp_path):
        with stream.writer("mine", journal=tmp_path) as writer:
            store.is_down = True
            for number in range(5):
                writer.append(b"%d" % number)
                writer.roll()
            store.is_down = False
            assert wait_for(stream, 5) == [b"%d" % number for number in range(5)]
        assert store.puts == sorted(store.puts)

    def test_for_good_and_the_journal_keeps_the_events(self, stream, store, tmp_path, monkeypatch):
        monkeypatch.setattr(shipper, "_FINISH_S_MAX", 0.2)
        writer = stream.writer("mine", journal=tmp_path)
        store.is_down = True
        writer.append(b"safe")
        with pytest.raises(UnavailableError, match="safe in the journal"):
            writer.close()
        assert [place.writer_id for place in stream.journals()] == ["mine"]
        store.is_down = False
        stream.writer("mine", journal=tmp_path).close()
        assert bodies(stream) == [b"safe"]
        assert stream.journals() == []

    def test_a_journal_that_is_full_holds_writers_up(self, stream, store, tmp_path, monkeypatch):
        monkeypatch.setattr(shipper, "_BACKLOG_BYTES_MAX", 2000)
        monkeypatch.setattr(shipper, "_ROOM_S_MAX", 0.2)
        with stream.writer("mine", journal=tmp_path) as writer:
            store.is_down = True
            with pytest.raises(UnavailableError, match="the journal is full"):
                for _ in range(10):
                    writer.append(bytes(1000))
                    writer.roll()
            store.is_down = False

    @pytest.mark.parametrize("when", ["after the PUT", "before the removal"])
    def test_what_was_put_and_not_removed_is_put_once(
        self, stream, store, tmp_path, monkeypatch, when
    ):
        real_put, real_remove = GenericStorage.put_if_absent, Journal.remove
        failures = iter([True])

        def put(storage, key, data):
            real_put(storage, key, data)
            is_segment = key.endswith(".dat") and not is_empty(data)
            if when == "after the PUT" and is_segment and next(failures, False):
                raise UnavailableError("the answer was lost, by order of the test")

        def remove(journal, segment):
            if when == "before the removal" and next(failures, False):
                raise UnavailableError("died, by order of the test")
            real_remove(journal, segment)

        monkeypatch.setattr(GenericStorage, "put_if_absent", put)
        monkeypatch.setattr(Journal, "remove", remove)
        with stream.writer("mine", journal=tmp_path) as writer:
            writer.append(b"once")
        assert bodies(stream) == [b"once"]
        assert next(failures, None) is None

    def test_another_writer_has_the_name(self, stream, store, tmp_path):
        store.is_down = True
        writer = stream.writer("mine", journal=tmp_path)
        offset = writer.append(b"mine")
        key = f"{offset.segment_path}.dat"
        files = stream.view().storage.inner
        other = filestream.create(f"{stream.url}-other", linger="0")
        store.is_down = False
        with other.writer("mine") as foreign:
            source = f"{foreign.append(b'theirs').segment_path}.dat"
        files.put_if_absent(key, other.view().storage.read(source, 0, 1 << 20))

        with pytest.raises(ConflictError, match="another process wrote"):
            while True:
                writer.append(b"more")
                writer.roll()
        with pytest.raises(ConflictError):
            writer.close()
        assert list(tmp_path.glob("*/mine.*/0*/*/*.dat"))
        assert bodies(stream) == [b"theirs"]


class TestWhatACrashLeaves:
    @pytest.fixture
    def crashed(self, make, store, tmp_path):
        """A segment that is in the store, and one of two events that is open in the journal."""
        stream = make(chance=random.Random(1))
        writer = stream.writer("mine", journal=tmp_path)
        writer.append(b"shipped")
        writer.roll()
        wait_for(stream, 1)
        store.is_down = True
        writer.append(b"one")
        writer.append(b"two", timestamp_ms=None)
        die(writer)
        store.is_down = False
        (self.file,) = tmp_path.glob("*/mine.*/0*/*/*.dat")
        self.store = store
        return stream

    def again(self, stream, tmp_path):
        stream.writer("mine", journal=tmp_path).close()
        assert [f for f in stream.verify() if f.level != "note"] == []
        return bodies(stream)

    @pytest.mark.parametrize(
        "torn", [b"", b"\0", bytes(4096), b"\0\0\1\x9d", b"\0\0\1\x9d" + b"x" * 500]
    )
    def test_a_torn_end_is_left_out(self, crashed, tmp_path, torn):
        with self.file.open("ab") as file:
            file.write(torn)
        assert self.again(crashed, tmp_path) == [b"shipped", b"one", b"two"]

    def test_a_segment_cut_anywhere_is_whole_up_to_there(self, crashed, tmp_path):
        """What is acknowledged is synced; this is what whole_segment makes of less."""
        from filestream.segment_reader import SegmentReader
        from filestream.segment_repair import whole_segment
        from filestream.storage.memory import MemoryStorage

        raw = self.file.read_bytes()
        seen = set()
        for size in range(len(raw) + 1):
            storage = MemoryStorage("memory://cut")
            storage.put_if_absent("x.dat", raw[:size])
            whole = whole_segment(storage, "x.dat")
            if whole is None:
                seen.add(None)
                continue
            storage.put_if_absent("y.dat", whole)
            reader = SegmentReader(storage, "y.dat")
            blocks = reader.read_blocks()
            footer = reader.footer()
            assert footer is not None
            assert footer.events == sum(block.event_count for block in blocks) == footer.blocks
            assert whole_segment(storage, "y.dat") == whole
            seen.add(footer.events)
        assert seen == {None, 0, 1, 2}

    def test_a_file_that_died_at_birth_keeps_its_place(self, crashed, tmp_path):
        raw = self.file.read_bytes()
        following = self.file.with_name("mine.000003.dat")
        following.write_bytes(raw[:5])
        assert self.again(crashed, tmp_path) == [b"shipped", b"one", b"two"]
        with crashed.writer("mine", journal=tmp_path) as writer:
            assert writer.append(b"next").sequence == 5  # The row was taken anew.

    def test_damage_is_named_and_nothing_is_thrown_away(self, crashed, tmp_path):
        raw = bytearray(self.file.read_bytes())
        at = raw.index(b"one")
        raw[at] ^= 1
        self.file.write_bytes(raw)
        with pytest.raises(CorruptDataError, match=f"takeover.*{self.file.name}"):
            crashed.writer("mine", journal=tmp_path)
        assert self.file.read_bytes() == raw
        raw[at] ^= 1
        self.file.write_bytes(raw)
        assert self.again(crashed, tmp_path) == [b"shipped", b"one", b"two"]

    def test_truncated_meanwhile(self, crashed, tmp_path):
        crashed.truncate()
        with crashed.writer("mine", journal=tmp_path) as writer:
            assert not self.file.exists()
            writer.append(b"new")
        assert bodies(crashed) == [b"new"]
        assert [key[:5] for key in self.store.puts] == ["00001", "00002"]

    def test_deleted_meanwhile(self, crashed, tmp_path):
        crashed.delete()
        with pytest.raises(NotFoundError):
            crashed.writer("mine", journal=tmp_path)


def test_a_truncation_takes_live_writers_along(stream, store, tmp_path):
    with stream.writer("mine", journal=tmp_path) as writer:
        store.is_down = True
        writer.append(b"old")
        filestream.open(stream.url).truncate()
        offset = writer.append(b"new")
        store.is_down = False
    assert offset.generation == 2
    assert bodies(stream) == [b"new"]


def test_gaps_of_earlier_commits_are_filled_first(stream, store, tmp_path):
    """A writer at level ``object`` died with a commit in the air; the next one has a journal."""
    stream.update_properties(acknowledgement="object")
    with stream.writer("mine") as writer:
        keys = []
        for number in range(3):
            keys.append(f"{writer.append(b'%d' % number).segment_path}.dat")
    files = stream.view().storage.inner
    files.delete(keys[1])
    stream.update_properties(acknowledgement="journal")
    with stream.writer("mine", journal=tmp_path) as writer:
        assert writer.append(b"new").sequence == 4
    assert files.exists(keys[1])


def test_shipped_packed_and_shipped_again(tmp_path, store, monkeypatch, no_grace):
    """It died after the PUT; when it is opened again, that segment was packed and removed."""
    clock = ManualClock(OLD)
    stream = filestream.create(
        f"fsspec+memory://journal/s{next(_names)}",
        acknowledgement="journal", partition_duration="1h", clock=clock, chance=random.Random(1),
    )  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", lambda journal, segment: None)
        writer = stream.writer("mine", journal=tmp_path)
        for number in range(3):
            writer.append(b"%d" % number)
            writer.roll()
        while len(set(store.puts)) < 3:
            writer.flush()
        die(writer)
    clock.jump(2 * HOUR_MS)
    assert stream.compact(grace=0).removed == 4
    stream.writer("mine", journal=tmp_path).close()

    assert bodies(stream) == [b"0", b"1", b"2"]
    assert stream.compact(grace=0).removed == 3
    assert bodies(stream) == [b"0", b"1", b"2"]


class TestTheLocalDisk:
    @pytest.fixture
    def disk(self, monkeypatch):
        """How writes with a sync go: ``True`` goes, a number writes so many bytes and fails."""
        self.syncs, self.plan = 0, []
        real = _LocalAppender.write_and_sync

        def write_and_sync(appender, data):
            self.syncs += 1
            step = self.plan.pop(0) if self.plan else True
            if step is not True:
                appender.write(data[:step])
                raise UnavailableError("the disk failed, by order of the test")
            real(appender, data)

        monkeypatch.setattr(_LocalAppender, "write_and_sync", write_and_sync)

    def test_each_acknowledgement_is_a_sync(self, stream, store, disk, tmp_path):
        with stream.writer("mine", journal=tmp_path) as writer:
            writer.append(b"first")
            before = self.syncs
            for _ in range(5):
                writer.append(b"x")
            assert self.syncs >= before + 5

    def test_a_failed_sync_gives_the_segment_up_and_what_is_whole_in_it_is_shipped(
        self, stream, store, disk, tmp_path
    ):
        with stream.writer("mine", journal=tmp_path) as writer:
            store.is_down = True
            writer.append(b"safe")
            self.plan = [7]
            with pytest.raises(UnavailableError):
                writer.append(b"torn")
            assert writer.append(b"after").sequence == 2
            store.is_down = False
        assert bodies(stream) == [b"safe", b"after"]
        assert list(stream.verify()) == []

    def test_a_segment_that_is_never_born_leaves_no_gap(self, stream, store, tmp_path, monkeypatch):
        real, failures = LocalStorage.create, iter([False, True])

        def create(storage, key, *, durable_name=True):
            if key.endswith(".dat") and next(failures, False):
                raise UnavailableError("the disk is full, by order of the test")
            return real(storage, key, durable_name=durable_name)

        monkeypatch.setattr(LocalStorage, "create", create)
        with stream.writer("mine", journal=tmp_path) as writer:
            writer.append(b"safe")
            writer.roll()
            with pytest.raises(UnavailableError):
                writer.append(b"lost")
            writer.append(b"after")
            writer.roll()
            assert wait_for(stream, 2) == [b"safe", b"after"]
        assert list(stream.verify()) == []

    def test_a_segment_that_dies_at_birth_leaves_no_gap(self, stream, store, disk, tmp_path):
        with stream.writer("mine", journal=tmp_path) as writer:
            writer.append(b"safe")
            writer.roll()
            self.plan = [5]
            with pytest.raises(UnavailableError):
                writer.append(b"lost")
            assert writer.append(b"after").sequence == 4  # The row was taken anew.
        assert bodies(stream) == [b"safe", b"after"]
        assert list(stream.verify()) == []


def test_what_is_closed_while_another_is_put_is_shipped_too(stream, store, tmp_path, monkeypatch):
    """Nobody appends any more, so nobody else would wake the thread."""
    real = GenericStorage.put_if_absent
    asked, go = threading.Event(), threading.Event()

    def slow(storage, key, data):
        if key.endswith("mine.000001.dat"):
            asked.set()
            assert go.wait(30)
        real(storage, key, data)

    monkeypatch.setattr(GenericStorage, "put_if_absent", slow)
    with stream.writer("mine", journal=tmp_path) as writer:
        writer.append(b"first")
        writer.roll()
        assert asked.wait(30)
        writer.append(b"second")
        writer.roll()
        go.set()
        assert wait_for(stream, 2) == [b"first", b"second"]


def test_an_event_is_shipped_although_the_next_one_failed(stream, store, tmp_path, monkeypatch):
    real, failures = Generations.is_current, iter([False, True])

    def is_current(generations, generation):
        if next(failures, False):
            raise UnavailableError("nobody answers, by order of the test")
        return real(generations, generation)

    with stream.writer("mine", journal=tmp_path) as writer:
        writer.append(b"acknowledged")
        monkeypatch.setattr(Generations, "is_current", is_current)
        for _ in range(2):
            with contextlib.suppress(UnavailableError):
                writer.append(b"maybe")
        monkeypatch.undo()
        assert wait_for(stream, 1) == [b"acknowledged"]


def test_segments_of_a_row_are_shipped_in_order(tmp_path):
    """Also when one is closed, and the next begun, between a look at what grows and the listing."""
    part = Partition.of(1, OLD, HOUR_MS)
    row = [Segment(part, "mine", sequence) for sequence in range(4)]
    left, shipped = list(row), []

    class Held:
        writer_id, url, storage = "mine", "file:///j", MemoryStorage("memory://j")

        def segments(self):
            # Listed late: meanwhile 2 was closed and 3 begun.
            if shipper._growing == row[2]:
                shipper.grows(row[3])
            return list(left)

        def size(self, segment):
            return 1

    class Ship:
        def ship(self, journal, segment):
            if segment == row[1]:
                shipper.grows(None)
            left.remove(segment)
            shipped.append(segment)

    shipper = Shipper(Ship(), Held())
    shipper._is_over = True  # No thread: the test goes step by step.
    shipper.grows(row[2])
    shipper._is_over = False
    shipper._start = lambda: None
    while left:
        shipper._ship_what_is_closed()
    assert shipped == row


class TestInterrupts:
    @pytest.fixture
    def interrupted(self, stream, store, tmp_path, monkeypatch):
        """Ctrl-C while the end of a segment is synced."""
        writer = stream.writer("mine", journal=tmp_path)
        writer.append(b"acknowledged")
        real = _LocalAppender.write_and_sync
        with monkeypatch.context() as patched:

            def interrupt(appender, data):
                if data[:8] == b"\xff" * 8:
                    raise KeyboardInterrupt
                real(appender, data)

            patched.setattr(_LocalAppender, "write_and_sync", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.roll()
        self.writer = writer
        return stream

    def test_and_closed(self, interrupted):
        self.writer.close()
        assert bodies(interrupted) == [b"acknowledged"]

    def test_and_gone_on_with(self, interrupted):
        self.writer.append(b"more")
        assert wait_for(interrupted, 2) == [b"acknowledged", b"more"]
        self.writer.close()
        assert list(interrupted.verify()) == []


class TestTakenOver:
    """A process that was taken for dead, and is not."""

    @pytest.fixture
    def sleeper(self, stream, store, tmp_path):
        writer = stream.writer("mine", journal=tmp_path / "here")
        writer.append(b"shipped")
        writer.roll()
        wait_for(stream, 1)
        self.there = tmp_path / "there"
        self.stream = stream
        yield writer
        store.is_down = False
        with contextlib.suppress(FilestreamError):
            writer.close()

    def lose(self, writer):
        documents = self.stream._store
        name = f"_claims/writers/{writer.writer_id}"
        document = documents.get(name)
        documents.compare_and_set(name, b"{}", version=document.version)
        writer._claim._lock.is_lost = True

    def heir(self):
        stream = filestream.open(self.stream.url)
        return stream.writer("mine", journal=self.there, takeover=True)

    def test_leaves_the_name_of_its_heirs_journal(self, sleeper, store):
        self.lose(sleeper)
        with self.heir() as heir:
            heir.append(b"heir")
            sleeper.close()
            (place,) = self.stream.journals()
            assert place.directory.startswith(str(self.there))
        assert bodies(self.stream) == [b"shipped", b"heir"]

    def test_acknowledges_nothing_when_it_wakes(self, sleeper, store):
        self.lose(sleeper)
        with self.heir() as heir:
            heir.append(b"heir")
        for _ in range(2):
            with pytest.raises((ConflictError, FencedError)):
                sleeper.append(b"lost")
        assert bodies(self.stream) == [b"shipped", b"heir"]

    @pytest.mark.parametrize("is_open", [True, False])
    def test_acknowledges_nothing_either_when_the_answer_fails_at_first(
        self, sleeper, store, monkeypatch, is_open
    ):
        sleeper.append(b"open")
        if not is_open:
            sleeper.roll()
            wait_for(self.stream, 2)
        self.lose(sleeper)
        with self.heir() as heir:
            heir.append(b"heir")
        real, failures = Journals.named, iter([True])

        def named(journals, writer_id):
            if next(failures, False):
                raise UnavailableError("by order of the test")
            return real(journals, writer_id)

        monkeypatch.setattr(Journals, "named", named)
        for _ in range(3):
            with pytest.raises((ConflictError, FencedError, UnavailableError)):
                sleeper.append(b"lost")
        assert b"lost" not in bodies(self.stream)

    def test_also_one_that_holds_its_journal_can_be_taken_over(self, sleeper, store, tmp_path):
        store.is_down = True
        sleeper.append(b"given up")
        self.lose(sleeper)
        stream = filestream.open(self.stream.url)
        with pytest.raises(ConflictError):
            stream.writer("mine", journal=tmp_path / "here")
        with stream.writer("mine", journal=tmp_path / "here", takeover=True) as heir:
            heir.append(b"heir")
            store.is_down = False
        assert bodies(self.stream) == [b"shipped", b"heir"]

    def test_ships_nothing_in_place_of_its_heir(self, sleeper, store):
        store.is_down = True
        sleeper.append(b"given up")
        sleeper.roll()
        self.lose(sleeper)
        with self.heir() as heir:
            heir.append(b"heir")
            store.is_down = False
            with pytest.raises(ConflictError):
                sleeper.close()
        assert bodies(self.stream) == [b"shipped", b"heir"]
        assert [f for f in self.stream.verify() if f.level != "note"] == []

    def test_what_cannot_be_shipped_here_can_be_given_up_too(self, sleeper, store, tmp_path):
        store.is_down = True
        offset = sleeper.append(b"given up")
        die(sleeper)
        store.is_down = False
        segment = f"{offset.segment_path}.dat"
        other = filestream.create(f"{self.stream.url}-other", linger="0")
        with other.writer("mine") as foreign:
            source = f"{foreign.append(b'theirs').segment_path}.dat"
        theirs = other.view().storage.read(source, 0, 1 << 20)
        self.stream.view().storage.inner.put_if_absent(segment, theirs)
        with pytest.raises(ConflictError, match="another process wrote"):
            self.stream.writer("mine", journal=tmp_path / "here")
        with self.stream.writer("mine", journal=tmp_path / "here", takeover=True) as writer:
            writer.append(b"on")
        assert bodies(self.stream)[-1] == b"on"

    def test_a_nameless_one_keeps_the_id_that_its_journal_has(self, stream, store, tmp_path):
        self.stream = stream
        writer = stream.writer(journal=tmp_path / "here")
        writer.append(b"before")
        writer.roll()
        self.lose(writer)
        with stream._store.claim("writers/file.0"), pytest.raises(ConflictError):
            writer.append(b"after")
        assert writer.writer_id == "file.0"
        writer.close()
        assert bodies(stream) == [b"before"]


def test_one_call_is_not_one_object(make, store, tmp_path):
    stream = make(commit_size="64KiB", block_size="8KiB")
    with stream.writer("mine", journal=tmp_path) as writer:
        offsets = list(writer.append_many([bytes(1000)] * 1000))
    assert len(store.puts) > 10
    storage = stream.view().storage
    assert max(storage.size(key) for key in store.puts) < 70 << 10
    assert [event.offset for event in stream.read()] == offsets


def test_a_damaged_journal_is_in_nobodys_way_but_its_own(stream, store, tmp_path):
    store.is_down = True
    writer = stream.writer(journal=tmp_path)
    writer.append(b"damaged")
    writer.append(b"behind")
    die(writer)
    store.is_down = False
    (path,) = tmp_path.glob("*/file.0.*/0*/*/*.dat")
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"damaged")] ^= 1
    path.write_bytes(raw)
    with stream.writer(journal=tmp_path) as other:
        assert other.writer_id == "file.1"
    with pytest.raises(CorruptDataError):
        stream.writer("file.0", journal=tmp_path)


def test_without_a_thread_segments_are_shipped_at_the_end(stream, store, tmp_path, monkeypatch):
    real = threading.Thread.start

    def start(thread):
        if thread.name.startswith("filestream-shipper"):
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with stream.writer("mine", journal=tmp_path) as writer:
        for number in range(3):
            writer.append(b"%d" % number)
            writer.roll()
        assert bodies(stream) == []
    assert bodies(stream) == [b"0", b"1", b"2"]


def test_a_process_without_a_home(make, tmp_path, monkeypatch):
    def expanduser(path):
        raise RuntimeError("Could not determine home directory.")

    local = filestream.create(tmp_path / "s")
    far, journaled = make(acknowledgement="object"), make()
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("FILESTREAM_JOURNAL", raising=False)
    monkeypatch.setattr(Path, "expanduser", expanduser)
    for stream in (local, far):
        with stream.writer() as writer:
            writer.append(b"fine")
    with pytest.raises(InvalidRequestError, match="FILESTREAM_JOURNAL"):
        journaled.writer()


def test_an_id_that_may_not_be_used_is_given_back(stream):
    def fail(name):
        raise UnavailableError("by order of the test")

    with pytest.raises(UnavailableError):
        WriterClaim(stream._store, None, fail)
    WriterClaim(stream._store, "file.0").close()


def test_more_partitions_than_are_kept_in_mind(stream, store, tmp_path, monkeypatch):
    """What is in the journal, and not in the store yet, keeps its sequence."""
    monkeypatch.setattr(journal_lane, "_PARTITIONS_MAX", 1)
    made = []
    with stream.writer("mine", journal=tmp_path) as writer:
        store.is_down = True
        for number in range(12):
            stamp = OLD + number % 4 * 24 * HOUR_MS + number
            made.append((stamp, writer.append(b"%d" % number, timestamp_ms=stamp)))
        store.is_down = False
    assert [(event.timestamp_ms, event.offset) for event in stream.read()] == sorted(made)
    assert len(set(made)) == 12


def test_a_sleeper_whose_journal_was_given_up_stops(stream, store, tmp_path):
    with stream.writer("mine", journal=tmp_path / "here") as sleeper:
        sleeper.append(b"before")
        documents = stream._store
        document = documents.get("_claims/writers/mine")
        documents.compare_and_set("_claims/writers/mine", b"{}", version=document.version)
        there = tmp_path / "there"
        filestream.open(stream.url).writer("mine", journal=there, takeover=True).close()
        sleeper._claim._lock.is_lost = True
        with pytest.raises(UnavailableError, match="gave up"):
            sleeper.append(b"after")
        for _ in range(2):
            with pytest.raises(FencedError, match="gave up"):
                sleeper.append(b"after")


def test_only_where_there_is_a_store_and_only_with_checksums(tmp_path, make):
    with pytest.raises(InvalidRequestError, match="acknowledgement is disk or"):
        filestream.create(tmp_path / "s", acknowledgement="journal")
    with pytest.raises(InvalidRequestError, match="E3"):
        make(format="E2")
    with pytest.raises(InvalidRequestError, match="ship_interval"):
        make(ship_interval="10ms")


def test_a_journal_that_cannot_be_written(stream, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidRequestError, match="journal.json"):
        stream.writer("mine", journal=tmp_path / "file" / "below")
    for bad in ("", "s3://bucket/journals"):
        with pytest.raises(InvalidRequestError, match="directory of this machine"):
            stream.writer("mine", journal=bad)
    with pytest.raises(InvalidRequestError, match="in a bucket"):
        filestream.create(tmp_path / "local").writer("mine", journal=tmp_path / "j")
    # The id was given back.
    stream.writer("mine", journal=tmp_path / "fine").close()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FILESTREAM_JOURNAL": "/data/j", "XDG_STATE_HOME": "/x"}, "/data/j"),
        ({"XDG_STATE_HOME": "/x"}, "/x/filestream/journals"),
        ({}, str(Path("~/.local/state/filestream/journals").expanduser())),
    ],
)
def test_where_journals_are_when_nobody_says(environment, expected):
    assert default_root(environment) == expected


def test_the_document_says_where(stream, store, tmp_path):
    with stream.writer("mine", journal=tmp_path):
        raw = json.loads(stream._store.get("journals/mine").value.split(b"\ncrc32c")[0])
        assert set(raw) == {"journal", "host", "directory"}
