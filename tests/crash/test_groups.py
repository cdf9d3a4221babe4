"""A group of three processes that are killed, stopped, sent away and replaced while they work.

Each worker writes what it is about to commit into its own log, commits, and writes that it has. Of a
worker that died in between nobody can tell from the log whether its commit took place; but then
either all of its events come again, or none. So: no event is in two batches that were committed for
sure; every event is in one, or in a batch of the dead; and such a batch counts whole or not at all.
"""

import contextlib
import itertools
import os
import random
import signal
import sqlite3
import time
import traceback
from collections import Counter

import pytest

import filestream
from filestream.consumers.sqlite import SqlitePositions
from filestream.errors import ConflictError, FencedError, UnavailableError

pytestmark = pytest.mark.crash

RUNS = int(os.environ.get("FILESTREAM_GROUP_RUNS", "200"))
EVENTS = 20_000
MODES = [
    {"strategy": "fifo", "instances": 3},
    {"strategy": "fifo", "instances": "auto"},
    {"strategy": "round_robin", "instances": 3},
    {"strategy": "hash", "key_header": "key", "instances": "auto"},
    {"strategy": "round_robin", "instances": "auto"},
    {"strategy": "hash", "key_header": "key", "instances": 3, "max_deliver": 1000},
]


class Workers:
    """Three processes of one group."""

    def __init__(self, url, folder, mode, chance):
        self.url, self.folder, self.mode, self.chance = url, folder, mode, chance
        self.logs = itertools.count()
        self.pids = {}

    def start(self, instance):
        log = self.folder / f"log.{next(self.logs)}"
        seed = self.chance.random()
        child = os.fork()
        if not child:
            code = 1
            try:
                signal.signal(signal.SIGTERM, lambda *_: leave())
                work(self.url, log, self.mode, instance, random.Random(seed))
                code = 0
            except Leave:
                code = 0
            except BaseException:
                (self.folder / f"{log.name}.error").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        self.pids[instance] = child

    def end(self, instance, number):
        pid = self.pids.pop(instance)
        os.kill(pid, number)
        if number == signal.SIGTERM:
            os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)

    def stop_all(self):
        for instance in list(self.pids):
            self.end(instance, signal.SIGTERM)

    def errors(self):
        return [path.read_text() for path in self.folder.glob("*.error")]


class Leave(BaseException):
    """Raised where the worker may be sent away."""


leaving = []


def leave():
    leaving.append(1)


def work(url, log, mode, instance, chance):
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        try:
            with open_consumer(url, mode, instance) as consumer:
                for number in itertools.count():
                    if leaving:
                        raise Leave
                    try:
                        batch = consumer.fetch(chance.randint(1, 1500), 0.1)
                        if not batch:
                            continue
                        bodies = b" ".join(event.body for event in batch)
                        os.write(descriptor, b"t %d %s\n" % (number, bodies))
                        consumer.commit()
                    except FencedError:
                        os.write(descriptor, b"r %d\n" % number)
                        consumer.rollback()
                    except UnavailableError:
                        # Nobody knows: as if we had died here.
                        os.write(descriptor, b"u %d\n" % number)
                        consumer.rollback()
                        break
                    else:
                        os.write(descriptor, b"c %d\n" % number)
        except (ConflictError, UnavailableError, FencedError):
            time.sleep(0.02)  # noqa: TID251 - another process is on its way out
        if leaving:
            raise Leave


def open_consumer(url, mode, instance):
    options = dict(mode)
    if mode["instances"] != "auto":
        options["instance"] = instance
    return filestream.open(url).consumer("g", **options)


def read_logs(folder):
    """Batches that were committed for sure, and those of which nobody knows."""
    sure, unknown = [], []
    for path in sorted(folder.glob("log.*")):
        if path.suffix == ".error":
            continue
        pending = None
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue  # Cut by the kill, before its commit.
            kind, _, *bodies = line.split()
            if kind == b"t":
                pending = [int(body) for body in bodies]
            elif pending is not None:
                if kind == b"c":
                    sure.append(pending)
                elif kind == b"u":
                    unknown.append(pending)
                pending = None
        if pending is not None:
            unknown.append(pending)
    return sure, unknown


def check(folder, wanted):
    sure, unknown = read_logs(folder)
    counts = Counter(number for batch in sure for number in batch)
    twice = [number for number, count in counts.items() if count > 1]
    assert not twice, f"committed twice: {twice[:20]}"
    left = frozenset(wanted - counts.keys())
    maybe = [frozenset(wanted.intersection(batch)) for batch in unknown]
    lost = left.difference(*maybe)
    assert not lost, f"never committed: {sorted(lost)[:20]} of {len(lost)}"
    # Of those of which nobody knows, some were committed: whole, and each event by one of them.
    assert can_be_explained(left, maybe), f"no batches make up {sorted(left)[:20]} of {len(left)}"


def can_be_explained(left, batches):
    if not left:
        return True
    number = min(left)
    return any(
        can_be_explained(left - batch, batches)
        for batch in batches
        if number in batch and batch <= left
    )


def test_of_two_who_died_with_the_same_events_one_may_have_committed_them():
    both, more = frozenset({1, 2}), frozenset({1, 2, 3})
    assert can_be_explained(both, [both, both])
    assert can_be_explained(both, [more, both])
    assert can_be_explained(more, [both, more])
    assert not can_be_explained(more, [both])
    assert not can_be_explained(both, [more])


def fill(stream, start, count):
    with stream.writer() as writer:
        for at in range(start, start + count, 2000):
            writer.append_many(
                [
                    (b"%d" % number, {"key": f"k{number % 97}"})
                    for number in range(at, min(at + 2000, start + count))
                ]
            )


def run(stream, folder, chance, mode, *, actions=8, pause_s=0.04, deadline_s=60):
    folder.mkdir()
    fill(stream, 0, EVENTS // 2)
    workers = Workers(stream.url, folder, mode, chance)
    wanted = set(range(EVENTS))
    stopped = None
    truncate_at = chance.randrange(actions) if chance.random() < 0.3 else None
    try:
        for instance in range(3):
            workers.start(instance)
        for step in range(actions):
            time.sleep(chance.random() * pause_s)  # noqa: TID251 - other processes work
            instance = chance.randrange(3)
            kind = chance.choice(["kill", "kill", "stop", "leave"])
            if stopped is not None:
                os.kill(workers.pids[stopped], signal.SIGCONT)
                stopped = None
            if kind == "stop":
                os.kill(workers.pids[instance], signal.SIGSTOP)
                stopped = instance
            else:
                workers.end(instance, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
                workers.start(instance)
            if step == truncate_at:
                stream.truncate()
                wanted -= set(range(EVENTS // 2))
            if step == actions // 2:
                if truncate_at is not None and truncate_at > step:
                    stream.truncate()
                    wanted -= set(range(EVENTS // 2))
                    truncate_at = None
                fill(stream, EVENTS // 2, EVENTS - EVENTS // 2)
        if stopped is not None:
            os.kill(workers.pids[stopped], signal.SIGCONT)
        until_s = time.monotonic() + deadline_s
        while lag_of(stream):
            assert time.monotonic() < until_s, "the group does not finish"
            time.sleep(0.02)  # noqa: TID251 - other processes work
    finally:
        workers.stop_all()
    assert not workers.errors(), workers.errors()[0]
    check(folder, wanted)


def lag_of(stream):
    try:
        return stream.group("g").lag().events
    except (UnavailableError, filestream.NotFoundError):
        return 1


def test_every_event_is_committed_once_whatever_happens_to_the_members(tmp_path, seed):
    chance = random.Random(seed)
    for number in range(RUNS):
        mode = MODES[number % len(MODES)]
        stream = filestream.create(tmp_path / f"s{number}", acknowledgement="os")
        try:
            run(stream, tmp_path / f"logs{number}", chance, mode)
        except BaseException:
            print(f"run={number} mode={mode}")
            raise
        stream.delete()


def test_results_in_sqlite_are_exactly_the_events_although_the_process_is_killed(tmp_path, seed):
    """The position stands in the same transaction as the results, so they agree at every moment."""
    chance = random.Random(seed)
    stream = filestream.create(tmp_path / "s", acknowledgement="os")
    fill(stream, 0, 4000)
    path = tmp_path / "results.db"
    with sqlite3.connect(path) as database:
        database.execute("create table results (number integer)")
    database.close()

    def consume():
        database = sqlite3.connect(path, timeout=30)
        inside = random.Random(chance.random())
        with filestream.open(stream.url).consumer(
            "sums", positions=SqlitePositions(database), takeover=True
        ) as consumer:
            while not done(path):
                with database, consumer.transaction(inside.randint(1, 20), 0) as events:
                    database.executemany(
                        "insert into results values (?)", [(int(e.body),) for e in events]
                    )

    kills = 0
    while not done(path):
        child = os.fork()
        if not child:
            code = 1
            try:
                consume()
                code = 0
            finally:
                os._exit(code)
        time.sleep(0.02 + chance.random() * 0.05)  # noqa: TID251 - killed at any moment
        os.kill(child, signal.SIGKILL)
        kills += os.waitpid(child, 0)[1] == signal.SIGKILL

    with sqlite3.connect(path) as database:
        found = [row[0] for row in database.execute("select number from results order by rowid")]
    database.close()
    assert found == list(range(4000))
    assert kills > 5


def done(path):
    database = sqlite3.connect(path, timeout=30)
    (count,) = database.execute("select count(*) from results").fetchone()
    database.close()
    return count >= 4000


@pytest.mark.zookeeper
@pytest.mark.parametrize("mode", [MODES[0], MODES[3], MODES[2]], ids=["fifo", "auto", "fixed"])
def test_also_when_zookeeper_dies_and_sessions_end(tmp_path, seed, own_zookeeper, mode):
    """Members are stopped for longer than their session lasts, and killed; the server is, too."""
    chance = random.Random(seed)
    stream = filestream.create(
        tmp_path / "s",
        acknowledgement="os",
        coordination=f"zk://{own_zookeeper.hosts}/groups?timeout=1s",
    )
    folder = tmp_path / "logs"
    folder.mkdir()
    workers = Workers(stream.url, folder, mode, chance)
    producer = os.fork()
    if not producer:
        produce(stream.url)
    try:
        for instance in range(3):
            workers.start(instance)
        for kind in ("expire", "kill", "server", "expire"):
            time.sleep(0.2 + chance.random() * 0.3)  # noqa: TID251 - other processes work
            instance = chance.randrange(3)
            if kind == "expire":
                os.kill(workers.pids[instance], signal.SIGSTOP)
                time.sleep(2.5)  # noqa: TID251 - longer than the session
                os.kill(workers.pids[instance], signal.SIGCONT)
            elif kind == "kill":
                workers.end(instance, signal.SIGKILL)
                workers.start(instance)
            else:
                own_zookeeper.kill()
                time.sleep(chance.random())  # noqa: TID251 - the server is down
                own_zookeeper.start()
        os.kill(producer, signal.SIGKILL)
        os.waitpid(producer, 0)
        producer = 0
        until_s = time.monotonic() + 120
        while lag_of(stream):
            assert time.monotonic() < until_s, "the group does not finish"
            time.sleep(0.1)  # noqa: TID251 - other processes work
    finally:
        workers.stop_all()
        if producer:
            os.kill(producer, signal.SIGKILL)
            os.waitpid(producer, 0)
    assert not workers.errors(), workers.errors()[0]
    bodies = [int(event.body) for event in stream.read()]
    assert len(bodies) == len(set(bodies)) > 1000
    check(folder, set(bodies))


def produce(url):
    """A child that appends until it is killed; what was not acknowledged is not appended again."""
    try:
        with filestream.open(url).writer() as writer:
            for number in itertools.count():
                with contextlib.suppress(UnavailableError):
                    writer.append_many(
                        [(b"%d" % (50 * number + n), {"key": f"k{n}"}) for n in range(50)]
                    )
                time.sleep(0.01)  # noqa: TID251 - a steady stream
    finally:
        os._exit(1)
