"""Processes that are killed, stopped and cut off: what was acknowledged is there, and nothing else."""

import os
import random
import resource
import select
import signal
import struct
import threading
import time

import pytest

import filestream
from filestream.errors import UnavailableError

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

START = 1_401_408_000_000
KILLS = int(os.environ.get("FILESTREAM_KILLS", "1000"))
ACK = struct.Struct(">ii")


def child(work):
    """Run ``work`` in a forked process; it never returns to the test."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def read_all(descriptor, *, until_closed=False, timeout=0.0):
    data = b""
    while select.select([descriptor], [], [], timeout)[0]:
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            break
        data += piece
    return data


def test_a_thousand_kills_lose_invent_and_reorder_nothing(tmp_path, seed):
    chance = random.Random(seed)
    stream = filestream.create(tmp_path / "s", segment_size="64KiB")
    acknowledged, unacknowledged = [], []
    for cycle in range(KILLS):
        receiver, sender = os.pipe()

        def work(cycle=cycle, sender=sender):
            writer = filestream.open(stream.url).writer("mine")

            def produce(me):
                for number in range(1000):
                    body = b"%d %d %d" % (cycle, me, number)
                    if number % 3:
                        writer.append(body)
                    else:
                        writer.append_many([body, body + b" more"])
                    # Written after the acknowledgement, so what arrives was acknowledged.
                    os.write(sender, ACK.pack(me, number))

            threads = [threading.Thread(target=produce, args=(me,), daemon=True) for me in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        pid = child(work)
        os.close(sender)
        select.select([receiver], [], [], 10)  # the first acknowledgement
        time.sleep(chance.random() * 0.012)  # noqa: TID251 - killed at any moment
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        data = read_all(receiver)
        os.close(receiver)
        for at in range(0, len(data) - len(data) % ACK.size, ACK.size):
            me, number = ACK.unpack_from(data, at)
            acknowledged.append(b"%d %d %d" % (cycle, me, number))
            if number % 3 == 0:
                acknowledged.append(b"%d %d %d more" % (cycle, me, number))

    found = [event.body for event in stream.read()]
    assert len(acknowledged) > KILLS
    assert not set(acknowledged) - set(found), "an acknowledged event is lost"
    assert len(found) == len(set(found)), "an event is there twice"
    last = {}
    for body in found:
        cycle, me, number, *rest = body.split()
        key = (int(cycle), int(me))
        here = (int(number), bool(rest))
        assert int(cycle) < KILLS, "an event was invented"
        assert int(me) < 2, "an event was invented"
        assert here > last.get(key, (-1, True)), "events are out of order"
        last[key] = here
    unacknowledged = set(found) - set(acknowledged)
    print(f"kills={KILLS} acknowledged={len(acknowledged)} more={len(unacknowledged)}")
    damage = [f for f in stream.verify() if f.level == "damage"]
    assert damage == []


def test_a_tail_in_another_process_sees_each_event_once(tmp_path):
    """While the stream is rolled, crosses partitions, gains writers, and is truncated."""
    stream = filestream.create(tmp_path / "s", partition_duration="1h")
    receiver, sender = os.pipe()

    def follow():
        with filestream.open(stream.url).tail("start", timeout="30s") as tail:
            for event in tail:
                os.write(sender, event.body.ljust(16))

    pid = child(follow)
    os.close(sender)
    seen = []

    def catch_up(count):
        until = time.monotonic() + 30
        while len(seen) < count and time.monotonic() < until:
            data = b""
            while len(data) % 16 or not data:
                data += (
                    os.read(receiver, 1 << 16) if select.select([receiver], [], [], 1)[0] else b""
                )
                if not data:
                    break
            seen.extend(data[at : at + 16].strip() for at in range(0, len(data), 16))
        assert len(seen) == count

    sent = []
    chance = random.Random(5)
    with stream.writer() as one, stream.writer() as two:
        for life in range(3):
            for step in range(150):
                writer = chance.choice([one, two])
                bodies = [b"%d-%d-%d" % (life, step, n) for n in range(chance.randrange(1, 4))]
                hour = step // 30 if chance.random() < 0.9 else chance.randrange(5)
                writer.append_many(bodies, START + hour * 3_600_000 + step * 1000)
                sent += bodies
                if not chance.randrange(15):
                    writer.roll()
            catch_up(len(sent))
            assert sorted(seen) == sorted(sent)
            stream.truncate()
            if life == 1:
                stream.apply_retention()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(receiver)
    assert len(seen) == len(set(seen)) == len(sent)


def test_a_writer_that_was_stopped_across_a_truncation_acknowledges_nothing_before_it(tmp_path):
    stream = filestream.create(tmp_path / "s")
    chance = random.Random(7)
    for _ in range(10):
        receiver, sender = os.pipe()

        def work(sender=sender):
            with filestream.open(stream.url).writer() as writer:
                while True:
                    os.write(sender, struct.pack(">i", writer.append(b"x").generation))

        pid = child(work)
        os.close(sender)
        os.read(receiver, 4)
        time.sleep(chance.random() * 0.01)  # noqa: TID251 - stopped at any moment
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        read_all(receiver)
        now = stream.truncate().generation
        os.kill(pid, signal.SIGCONT)
        data = b""
        while len(data) < 40:
            data += os.read(receiver, 4096)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(receiver)
        generations = [g for (g,) in struct.iter_unpack(">i", data[: len(data) // 4 * 4])]
        # The first may have been confirmed before the stop and merely reported after it.
        assert set(generations[1:]) == {now}


def test_a_full_disk_in_another_process_is_said_and_survived(tmp_path):
    """A limit on file sizes stands for the disk: the same short writes, the same errors."""
    stream = filestream.create(tmp_path / "s")

    def work():
        with filestream.open(stream.url).writer() as writer:
            writer.append(b"before")
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
            refused = 0
            for number in range(100):
                try:
                    writer.append(b"%03d" % number + bytes(97))
                except UnavailableError as error:
                    assert "write" in str(error)
                    refused += 1
            assert refused
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            writer.append(b"after")

    pid = child(work)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    found = [event.body[:3] for event in stream.read()]
    assert found[0] == b"bef"
    assert found[-1] == b"aft"
    assert len(found) == len(set(found))
    assert [f for f in stream.verify() if f.level == "damage"] == []


def test_every_kill_leaves_the_writer_id_free(tmp_path):
    stream = filestream.create(tmp_path / "s")
    for sequence in range(5):
        receiver, sender = os.pipe()

        def work(sender=sender):
            writer = filestream.open(stream.url).writer("mine")
            writer.append(b"x")
            os.write(sender, b"x")
            signal.pause()

        pid = child(work)
        os.close(sender)
        os.read(receiver, 1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(receiver)
        assert stream.summary().segments == sequence + 1
    with stream.writer("mine") as writer:
        assert writer.append(b"x").sequence == 5
