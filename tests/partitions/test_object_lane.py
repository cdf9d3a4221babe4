"""Streams whose segments are put whole: commits under way together, in order, and what failures leave."""

import itertools
import threading
import time

import pytest

import filestream
from filestream.clock import ManualClock
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    UnavailableError,
)
from filestream.partitions import read_ahead
from filestream.storage.generic import GenericStorage

_names = itertools.count()


@pytest.fixture
def make():
    def create(**properties):
        properties.setdefault("linger", "0")
        return filestream.create(f"fsspec+memory://lane/s{next(_names)}", **properties)

    return create


@pytest.mark.parametrize("held", [1 << 20, 3000])
def test_a_scan_asks_once_for_each_small_segment_it_can_keep(make, monkeypatch, held):
    stream = make()
    with stream.writer() as writer:
        for number in range(40):
            writer.append(b"%d" % number)
    asked = []
    real = GenericStorage.read

    def read(storage, key, position, size):
        if key.endswith(".dat"):
            asked.append(key)
        return real(storage, key, position, size)

    monkeypatch.setattr(GenericStorage, "read", read)
    monkeypatch.setattr(read_ahead, "_HELD_BYTES_MAX", held)
    assert [event.body for event in stream.read()] == [b"%d" % number for number in range(40)]
    assert len(set(asked)) == 40
    assert (len(asked) == 40) == (held > 3000)
    assert len(asked) <= 80


class Gate:
    """Holds PUTs of segments until they are let through, or made to fail."""

    def __init__(self, monkeypatch):
        self.waiting, self.seen, self.verdicts = set(), set(), {}
        self.most = 0
        self._lock = threading.Condition()
        self._real = GenericStorage.put_if_absent
        gate = self

        def put(storage, key, data):
            if key.endswith(".dat"):
                gate._pass(key)
            gate._real(storage, key, data)

        monkeypatch.setattr(GenericStorage, "put_if_absent", put)

    def _pass(self, key):
        sequence = int(key.split(".")[-2])
        with self._lock:
            self.waiting.add(sequence)
            self.seen.add(sequence)
            self.most = max(self.most, len(self.waiting))
            self._lock.notify_all()
            assert self._lock.wait_for(lambda: self.verdicts.get(sequence), 30)
            self.waiting.remove(sequence)
            if self.verdicts[sequence].pop(0) == "fail":
                raise UnavailableError("the store failed, by order of the test")

    def wait_for(self, *sequences):
        with self._lock:
            assert self._lock.wait_for(lambda: set(sequences) <= self.seen, 30)

    def open(self, sequence, how="pass"):
        """For one PUT of this sequence, before it comes or after."""
        with self._lock:
            self.verdicts.setdefault(sequence, []).append(how)
            self._lock.notify_all()


def in_thread(action):
    outcome = []

    def run():
        try:
            outcome.append(action())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def bodies(stream):
    return [event.body for event in stream.read()]


def test_commits_are_under_way_together_and_acknowledged_in_order(make, monkeypatch):
    stream = make()
    gate = Gate(monkeypatch)
    with stream.writer() as writer:
        calls = []
        for number in range(6):
            calls.append(in_thread(lambda n=number: writer.append(b"%d" % n)))
            if number < 4:
                gate.wait_for(number)
        assert gate.most == 4

        gate.open(1)
        gate.open(2)
        time.sleep(0.05)  # noqa: TID251 - nothing may happen now
        assert not any(outcome for _, outcome in calls), "acknowledged before its predecessor"
        gate.open(0)
        for thread, outcome in calls[:3]:
            thread.join(30)
            assert outcome[0].sequence in (0, 1, 2)
        gate.open(3)
        gate.wait_for(4)
        gate.open(4)
        gate.open(5)  # Two calls may have come together.
        for thread, outcome in calls:
            thread.join(30)
            assert not isinstance(outcome[0], Exception)
    assert sorted(bodies(stream)) == [b"%d" % n for n in range(6)]


def test_what_comes_behind_a_commit_that_failed_has_failed_and_is_not_read(make, monkeypatch):
    stream = make()
    gate = Gate(monkeypatch)
    with stream.writer() as writer:
        gate.open(0)
        writer.append(b"safe")
        first = in_thread(lambda: writer.append(b"lost"))
        gate.wait_for(1)
        second = in_thread(lambda: writer.append(b"behind"))
        gate.wait_for(2)
        gate.open(2)
        gate.open(1, "fail")
        for thread, outcome in (first, second):
            thread.join(30)
            assert isinstance(outcome[0], UnavailableError), outcome

        # The second is there, and nobody was told so: readers stop before the gap.
        assert bodies(stream) == [b"safe"]
        assert [f for f in stream.verify() if f.level == "damage"] == []
        with stream.tail("start", timeout=10) as tail:
            assert next(tail).body == b"safe"
            gate.open(1)
            gate.open(3)
            writer.append(b"after")
            assert [next(tail).body for _ in range(2)] == [b"behind", b"after"]
    assert bodies(stream) == [b"safe", b"behind", b"after"]
    assert [f for f in stream.verify() if f.level != "note"] == []


def test_a_segment_that_was_settled_and_is_gone_is_damage(make):
    stream = make()
    with stream.writer("mine") as writer:
        offsets = [writer.append(body) for body in (b"0", b"1", b"2")]
    stream._storage.delete(f"{offsets[1].segment_path}.dat")

    # The head of the last says that all before it was settled.
    with pytest.raises(CorruptDataError, match="missing"):
        bodies(stream)
    assert any(f.level == "damage" for f in stream.verify())
    assert [e.body for e in stream.read(on_corrupt="skip")] == [b"0", b"2"]


def test_large_batches_are_cut_and_small_ones_share(make):
    stream = make(commit_size="64KiB")
    with stream.writer() as writer:
        offsets = writer.append_many([bytes(1000)] * 500)
        assert {offset.sequence for offset in offsets} == set(range(8))
        assert writer.append(bytes(200_000)).sequence == 8
    assert stream.summary().events == 501
    assert len(bodies(stream)) == 501


def test_linger_is_a_pause_between_commits(make):
    clock = ManualClock()
    stream = make(linger="250ms", clock=clock)
    with stream.writer() as writer:
        assert writer.append(b"at once").sequence == 0
        calls = [in_thread(lambda n=n: writer.append(b"%d" % n)) for n in range(5)]
        time.sleep(0.05)  # noqa: TID251 - nothing may happen now
        assert not any(outcome for _, outcome in calls)
        clock.advance(0.3)
        for thread, outcome in calls:
            thread.join(30)
            assert outcome[0].sequence == 1
        # Nobody waits who asks for a flush.
        writer.append_nowait(b"soon")
        writer.flush()
        clock.advance(0.3)
        assert writer.append(b"later").sequence == 3
    assert len(bodies(stream)) == 8


def test_tasks_and_events_nobody_waits_for(make):
    import asyncio

    stream = make()

    async def main(writer):
        return await asyncio.gather(*(writer.append_async(b"t%d" % n) for n in range(50)))

    with stream.writer() as writer:
        offsets = asyncio.run(main(writer))
        assert len(set(offsets)) == 50
        for number in range(1000):
            writer.append_nowait(b"n%d" % number)
        writer.flush()
        assert stream.summary().events == 1050


def test_events_that_nobody_waited_for_and_that_failed_are_told_by_flush(make, monkeypatch):
    stream = make()
    gate = Gate(monkeypatch)
    with stream.writer() as writer:
        gate.open(0, "fail")
        writer.append_nowait(b"lost")
        with pytest.raises(UnavailableError, match="events were lost"):
            writer.flush()
        gate.open(0)
        assert writer.append(b"kept").sequence == 0
    assert bodies(stream) == [b"kept"]


def test_another_who_writes_under_our_name_is_noticed(make):
    stream = make()
    with stream.writer("mine") as writer:
        first = writer.append(b"ours")
        key = f"{first.segment_path[:-6]}000001.dat"
        stream._storage.put_if_absent(key, b"E3 of another process")
        with pytest.raises(ConflictError, match="another process writes as 'mine'"):
            writer.append(b"refused")


def test_truncation_while_commits_are_under_way(make, monkeypatch):
    stream = make()
    gate = Gate(monkeypatch)
    with stream.writer() as writer:
        calls = [in_thread(lambda: writer.append(b"a"))]
        gate.wait_for(0)
        calls.append(in_thread(lambda: writer.append(b"b")))
        gate.wait_for(1)
        stream.truncate()
        gate.open(0)
        gate.open(1)
        for sequence in (0, 1):
            gate.open(sequence)  # Once more, in the new generation.
        for thread, outcome in calls:
            thread.join(30)
            assert outcome[0].generation == 2
    assert bodies(stream) == [b"a", b"b"]


def test_one_who_waited_across_a_truncation_is_not_acknowledged_before_it(make, monkeypatch):
    """The second commit lands first, and waits for the first; meanwhile the stream is truncated."""
    stream = make()
    gate = Gate(monkeypatch)
    with stream.writer() as writer:
        calls = [in_thread(lambda: writer.append(b"first"))]
        gate.wait_for(0)
        calls.append(in_thread(lambda: writer.append(b"second")))
        gate.wait_for(1)
        gate.open(1)
        time.sleep(0.05)  # noqa: TID251 - it lands
        stream.truncate()
        for sequence in (0, 0, 1):
            gate.open(sequence)
        for thread, outcome in calls:
            thread.join(30)
            assert outcome[0].generation == 2
    assert bodies(stream) == [b"first", b"second"]


def test_whatever_a_commit_fails_of_whoever_waits_hears_of_it(make, monkeypatch):
    stream = make()
    with stream.writer() as writer:
        writer.append(b"before")

        def fail(storage, key, data):
            raise ZeroDivisionError("by order of the test")

        with monkeypatch.context() as patch:
            patch.setattr(GenericStorage, "put_if_absent", fail)
            with pytest.raises(UnavailableError, match="ZeroDivisionError"):
                writer.append(b"lost")
            writer.append_nowait(b"lost too")
            with pytest.raises(UnavailableError, match="events were lost"):
                writer.flush()
        writer.append(b"after")
    assert bodies(stream) == [b"before", b"after"]


def test_a_segment_that_was_put_whole_and_is_cut_is_damage(make):
    stream = make()
    with stream.writer() as writer:
        offsets = [writer.append(b"%d" % n * 50) for n in range(3)]
    key = f"{offsets[1].segment_path}.dat"
    data = stream._storage.read(key, 0, 1 << 20)
    for size in (0, 1, 40, len(data) // 2, len(data) - 20, len(data) - 1):
        stream._storage.delete(key)
        stream._storage.put_if_absent(key, data[:size])

        with pytest.raises(CorruptDataError):
            bodies(stream)
        assert any(f.level == "damage" for f in stream.verify()), size
        kept = [e.body for e in stream.read(on_corrupt="skip")]
        assert kept[0] == b"0" * 50
        assert kept[-1] == b"2" * 50
        with pytest.raises(CorruptDataError):
            list(stream.tail("start", timeout=1))


def test_many_partitions_at_once_and_late_events(make):
    stream = make(partition_duration="1h")
    hours = [1_401_408_000_000 + n * 3_600_000 for n in range(150)]
    with stream.writer("me") as writer:
        for turn in range(3):
            tasks = [
                in_thread(lambda: writer.append_many([b"x"] * len(hours), hours)),
                in_thread(lambda t=turn: writer.append(b"late", timestamp_ms=hours[t])),
            ]
            for thread, outcome in tasks:
                thread.join(30)
                assert not isinstance(outcome[0], Exception), outcome
    assert stream.summary().events == 3 * 151
    assert len(bodies(stream)) == 3 * 151


def test_an_interrupt_between_laying_and_sending_holds_nobody_up(make, monkeypatch):
    stream = make()
    with stream.writer() as writer:
        writer.append(b"before")

        def interrupt(fly):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(writer._flights, "send", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer._lane.begin([([b"\x02x\x00"], None)])
                writer._flights.send(None)
        writer.append(b"after")
        writer.flush()
    assert bodies(stream)[0] == b"before"
    assert bodies(stream)[-1] == b"after"


def test_a_system_without_threads_left_commits_all_the_same(make, monkeypatch):
    stream = make()
    with stream.writer() as writer:
        monkeypatch.setattr(
            "concurrent.futures.thread.threading.Thread.start",
            lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread")),
        )
        for number in range(3):
            writer.append(b"%d" % number)
        writer.flush()
        monkeypatch.undo()
    assert bodies(stream) == [b"0", b"1", b"2"]


def test_a_put_that_was_given_up_and_arrives_late_is_no_other_process(make, monkeypatch):
    stream = make()
    with stream.writer() as writer:
        real = GenericStorage.put_if_absent
        late = []

        def give_up(storage, key, data):
            if not key.endswith(".dat"):
                return real(storage, key, data)
            if not late:
                late.append((key, data))
                raise UnavailableError("no answer, by order of the test")
            if len(late) == 1:
                late.append(None)
                real(storage, *late[0])
            return real(storage, key, data)

        monkeypatch.setattr(GenericStorage, "put_if_absent", give_up)
        with pytest.raises(UnavailableError, match="no answer"):
            writer.append(b"late")
        with pytest.raises(UnavailableError, match="overtaken"):
            writer.append(b"overtaken")
        assert writer.append(b"after").sequence == 1
    assert bodies(stream) == [b"late", b"after"]
