"""Kills, stops and zombies on HDFS and object stores: what was acknowledged is there, once, in order."""

import contextlib
import os
import random
import signal
import struct
import threading
import time

import pytest
from servers.processes import kill, pipe, start

import filestream
from filestream.errors import FilestreamError
from filestream.partitions import compaction

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

COMPACTIONS = int(os.environ.get("FILESTREAM_COMPACTION_KILLS", "20"))
WRITERS = 4
KILLS = int(os.environ.get("FILESTREAM_STORE_KILLS", "200"))
ACK = struct.Struct(">ii")

STORES = [
    "file",
    pytest.param("hdfs", marks=pytest.mark.hdfs),
    pytest.param("s3", marks=pytest.mark.s3),
]
remote = pytest.mark.parametrize(
    "home",
    [
        pytest.param("hdfs", marks=pytest.mark.hdfs),
        pytest.param("s3", marks=pytest.mark.s3),
    ],
    indirect=True,
)


def produce_for_ever(url, name, cycle, sender):
    """Two threads append and say what was acknowledged, until they are killed."""
    writer = filestream.open(url).writer(name)
    telling = threading.Lock()

    def produce(me):
        for number in range(100_000):
            body = b"%d %d %d" % (cycle, me, number)
            if number % 3:
                writer.append(body)
            else:
                writer.append_many([body, body + b" more"])
            with telling:
                sender.send_bytes(ACK.pack(me, number))

    threads = [threading.Thread(target=produce, args=(me,), daemon=True) for me in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def received(receiver, wait_s=0.0):
    acks = []
    # The end of the pipe is that of the process.
    with contextlib.suppress(EOFError, OSError):
        while receiver.poll(wait_s):
            acks.append(ACK.unpack(receiver.recv_bytes()))
            wait_s = 0.0
    return acks


def bodies_of(cycle, acks):
    for me, number in acks:
        yield b"%d %d %d" % (cycle, me, number)
        if number % 3 == 0:
            yield b"%d %d %d more" % (cycle, me, number)


def check(found, acknowledged):
    assert not set(acknowledged) - set(found), "an acknowledged event is lost"
    assert len(found) == len(set(found)), "an event is there twice"
    last = {}
    for body in found:
        cycle, me, number, *rest = body.split()
        here = (int(number), bool(rest))
        assert int(me) < 2, "an event was invented"
        assert here > last.get((cycle, me), (-1, True)), "events are out of order"
        last[cycle, me] = here


@remote
def test_kills_and_stops_lose_invent_and_reorder_nothing(make, seed):
    stream = make("s", segment_size="64KiB", linger="5ms")
    assert kill_again_and_again(stream, seed, KILLS) >= KILLS


@pytest.mark.s3
@pytest.mark.parametrize("home", ["s3"], indirect=True)
def test_kills_and_stops_of_writers_with_a_journal(make, seed, monkeypatch, tmp_path):
    """What was acknowledged and not shipped is there when the writer has come back."""
    monkeypatch.setenv("FILESTREAM_JOURNAL", str(tmp_path / "journals"))
    stream = make("s", acknowledgement="journal", ship_interval="100ms", commit_size="16KiB")
    assert kill_again_and_again(stream, seed, KILLS // 4) >= KILLS // 4 // WRITERS * WRITERS
    assert [place.writer_id for place in stream.journals()] == []


def kill_again_and_again(stream, seed, kills):
    """Several writers side by side, so that they wait for the store and not for each other.

    Checks what was read against what was acknowledged; returns how many events that were.
    """
    chance = random.Random(seed)
    has_journal = stream.properties.acknowledgement == "journal"
    acknowledged = []
    for cycle in range(kills // WRITERS):
        writers = [Victim(stream.url, cycle, number) for number in range(WRITERS)]
        for writer in writers:
            assert writer.take(30), "nothing was acknowledged"
        time.sleep(chance.random() * 0.03)  # noqa: TID251 - at any moment
        if cycle % 5 == 0:
            # Stopped, looked at, and let go on before they are killed.
            for writer in writers:
                os.kill(writer.process.pid, signal.SIGSTOP)
            assert list(stream.read("-20")) or has_journal
            for writer in writers:
                os.kill(writer.process.pid, signal.SIGCONT)
        for writer in writers:
            acknowledged += writer.end()

    for number in range(WRITERS):
        stream.writer(f"mine{number}").close()
    found = [event.body for event in stream.read()]
    check(found, acknowledged)
    print(f"kills={kills} acknowledged={len(acknowledged)} more={len(found) - len(acknowledged)}")
    assert [f for f in stream.verify() if f.level == "damage"] == []
    return len(acknowledged)


class Victim:
    """A process that writes until it is killed, and what it said was acknowledged."""

    def __init__(self, url, cycle, number):
        receiver, sender = pipe()
        self.cycle = cycle * WRITERS + number
        self.process = start(produce_for_ever, url, f"mine{number}", self.cycle, sender)
        sender.close()
        self.receiver = receiver
        self.acks = []

    def take(self, wait_s=0.0):
        acks = received(self.receiver, wait_s)
        self.acks += acks
        return acks

    def end(self):
        kill(self.process)
        self.process.join(30)
        self.take()
        self.receiver.close()
        return bodies_of(self.cycle, self.acks)


def compact_for_ever(url, sender):
    compaction._GRACE_MS_MIN = 0
    stream = filestream.open(url)
    sender.send_bytes(b"begins")
    while True:
        stream.compact(grace=0)


@pytest.mark.parametrize("home", STORES, indirect=True)
def test_compaction_killed_again_and_again(make, seed, no_grace):
    """Late events keep coming to a partition that is over; every one is read once, with its offset."""
    chance = random.Random(seed)
    stream = make("s", partition_duration="1h")
    expected = []
    for cycle in range(COMPACTIONS):
        for name in ("a", "b"):
            with stream.writer(name) as writer:
                for number in range(8):
                    body = b"%d %s %d" % (cycle, name.encode(), number)
                    stamp = 1_401_408_000_000 + 100 * cycle + number
                    expected.append((stamp, writer.append(body, timestamp_ms=stamp), body))
                    writer.roll()
        receiver, sender = pipe()
        process = start(compact_for_ever, stream.url, sender)
        sender.close()
        assert receiver.recv_bytes() == b"begins"
        time.sleep(chance.random() * 0.15)  # noqa: TID251 - at any moment
        kill(process)
        process.join(30)
        receiver.close()
        found = [(event.timestamp_ms, event.offset, event.body) for event in stream.read()]
        assert sorted(found) == sorted(expected)
    storage = stream.view().storage.inner
    names = [entry.name for entry in storage.list("00001/1401408000.03600")]
    packs = sum(name.endswith(".seg") for name in names)
    print(f"cycles={COMPACTIONS} events={len(expected)} packs={packs}")
    assert packs
    stream.compact(grace=0)
    assert [finding for finding in stream.verify() if finding.level != "note"] == []


def append_until_refused(url, sender):
    """Append, and say how each ended; a lost id is the end."""
    writer = filestream.open(url).writer("mine")
    for number in range(1_000_000):
        body = b"0 0 %d" % number
        try:
            writer.append(body)
        except FilestreamError as error:
            sender.send_bytes(type(error).__name__.encode())
            os._exit(0)
        sender.send_bytes(body)


@remote
@pytest.mark.parametrize("turn", range(2))
def test_a_zombie_is_fenced(make, turn):
    """Stopped in the middle, taken for dead, woken up: it may not acknowledge behind its heir."""
    stream = make("s", linger="0")
    receiver, sender = pipe()
    zombie = start(append_until_refused, stream.url, sender)
    sender.close()
    acknowledged = [receiver.recv_bytes() for _ in range(5 + turn)]
    os.kill(zombie.pid, signal.SIGSTOP)
    try:
        while receiver.poll(0.1):
            acknowledged.append(receiver.recv_bytes())
        # What would be the end of its lease: its name is given to another.
        document = stream._store.get("_claims/writers/mine")
        stream._store.compare_and_set("_claims/writers/mine", b"{}", version=document.version)
        with stream.writer("mine") as heir:
            acknowledged += [b"0 1 %d" % n for n in range(10)]
            for body in acknowledged[-10:]:
                heir.append(body)
            os.kill(zombie.pid, signal.SIGCONT)
            told = []
            with contextlib.suppress(EOFError):
                while receiver.poll(60):
                    told.append(receiver.recv_bytes())
            zombie.join(60)
            heir.append(b"0 1 10")
            acknowledged.append(b"0 1 10")
    finally:
        kill(zombie)

    # At most what was on its way when it was stopped.
    assert told[-1] in (b"ConflictError", b"UnavailableError", b"FencedError"), told
    assert len(told) <= 2
    found = [event.body for event in stream.read()]
    check(found, acknowledged + told[:-1])
    assert [f for f in stream.verify() if f.level == "damage"] == []
