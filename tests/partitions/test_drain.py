"""The drain under threads, failures and interrupts: everybody gets an outcome, nobody hangs."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from filestream.errors import FilestreamError, InvalidRequestError, UnavailableError
from filestream.partitions.drain import Drain, Work


class Item(Work):
    __slots__ = ("value",)

    def __init__(self, value=0, size=0):
        super().__init__(size)
        self.value = value


class Background:
    """The thread that an owner lends to its drain."""

    def __init__(self):
        self.wake = threading.Event()
        self.drain = None
        self.stopped = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopped:
            self.wake.wait()
            self.wake.clear()
            if self.drain is not None:
                self.drain.lead_in_background()


@pytest.fixture
def background():
    background = Background()
    yield background
    background.stopped = True
    background.wake.set()
    background.thread.join()


def drain_of(perform, background=None, size=1 << 30):
    drain = Drain(
        perform,
        batch_size_max=size,
        wake_background=background.wake.set if background else lambda: None,
    )
    if background:
        background.drain = drain
    return drain


def run_first_then_queue(drain, threads, entered, gate):
    """Start a leader, let it in, queue the rest behind it, and only then open its gate."""
    threads[0].start()
    assert entered.wait(10)
    for thread in threads[1:]:
        thread.start()
    while len(drain._queue) < len(threads) - 1:
        time.sleep(0.001)  # noqa: TID251 - waits for other threads, not for time
    gate.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_work_is_done_once_in_order_per_thread():
    done = []
    busy = []

    def perform(batch):
        assert not busy
        busy.append(1)
        done.extend(work.value for work in batch)
        busy.pop()

    drain = drain_of(perform)

    def produce(me):
        for number in range(500):
            drain.run(Item((me, number)))

    threads = [threading.Thread(target=produce, args=(me,)) for me in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()

    assert len(done) == 16 * 500 == len(set(done))
    for me in range(16):
        assert [n for who, n in done if who == me] == list(range(500))


def test_waiting_work_is_done_in_one_batch():
    batches = []
    gate, entered = threading.Event(), threading.Event()

    def perform(batch):
        batches.append(len(batch))
        entered.set()
        gate.wait(10)

    drain = drain_of(perform)
    threads = [threading.Thread(target=drain.run, args=(Item(),)) for _ in range(10)]
    run_first_then_queue(drain, threads, entered, gate)

    assert batches == [1, 9]


def test_a_failure_reaches_everyone_in_the_batch_and_nobody_else():
    def perform(batch):
        if any(work.value == 13 for work in batch):
            raise UnavailableError("by order of the test")

    drain = drain_of(perform)
    outcomes = []

    def produce(value):
        try:
            drain.run(Item(value))
            outcomes.append("ok")
        except UnavailableError:
            outcomes.append("failed")

    threads = [threading.Thread(target=produce, args=(value,)) for value in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(outcomes) == 64
    assert "failed" in outcomes
    drain.run(Item(1))


def test_an_unexpected_exception_is_an_error_of_ours():
    def perform(batch):
        raise ZeroDivisionError

    with pytest.raises(UnavailableError, match="ZeroDivisionError"):
        drain_of(perform).run(Item())


def test_an_interrupted_leader_frees_the_others():
    entered, gate = threading.Event(), threading.Event()
    calls = []

    def perform(batch):
        calls.append(len(batch))
        if len(calls) == 1:
            entered.set()
            gate.wait(10)
            raise KeyboardInterrupt

    drain = drain_of(perform)
    outcomes = []

    def produce():
        try:
            drain.run(Item())
            outcomes.append("ok")
        except KeyboardInterrupt:
            outcomes.append("interrupted")
        except FilestreamError:
            outcomes.append("failed")

    threads = [threading.Thread(target=produce) for _ in range(8)]
    run_first_then_queue(drain, threads, entered, gate)

    assert sorted(outcomes) == ["interrupted"] + ["ok"] * 7


def test_two_leaders_that_wake_at_once_leave_nobody_asleep():
    """While one tells a thread, the next leader tells the same one and is faster."""
    entered, gate = threading.Event(), threading.Event()
    items = [Item(value) for value in range(5)]

    class Overtaken:
        def __init__(self, item):
            self.item, self.lock = item, item.parked

        def release(self):
            self.lock.release()
            drain._served.remove(self.item)

    def perform(batch):
        entered.set()
        gate.wait(10)
        for item in batch:
            # Not that of the leader: it is awake.
            if item.value > 1:
                item.parked = Overtaken(item)

    drain = drain_of(perform)
    threads = [threading.Thread(target=drain.run, args=(item,), daemon=True) for item in items]
    run_first_then_queue(drain, threads, entered, gate)

    assert all(item.is_done for item in items)
    assert not drain._served


def test_an_interrupted_waiter_leaves_the_queue(monkeypatch):
    """Also when it has just been made the leader."""
    entered, gate = threading.Event(), threading.Event()

    def perform(batch):
        entered.set()
        gate.wait(10)

    drain = drain_of(perform)
    leader = threading.Thread(target=drain.run, args=(Item("first"),))
    leader.start()
    assert entered.wait(10)

    waiter, last = Item("interrupted"), Item("last")
    real_lock = threading.Lock

    class Interrupting:
        """A lock whose second acquire is cut short by an interrupt, after it was released."""

        def __init__(self):
            self._lock = real_lock()
            self._first = True

        def acquire(self):
            if self._first:
                self._first = False
                return self._lock.acquire()
            self._lock.acquire()
            raise KeyboardInterrupt

        def release(self):
            self._lock.release()

        def locked(self):
            return self._lock.locked()

    caught = []

    def wait():
        try:
            drain.run(waiter)
        except KeyboardInterrupt:
            caught.append(True)

    monkeypatch.setattr("filestream.partitions.drain.threading", SimpleNamespace(Lock=Interrupting))
    thread = threading.Thread(target=wait)
    thread.start()
    while len(drain._queue) < 1:
        time.sleep(0.001)  # noqa: TID251 - waits for other threads, not for time
    monkeypatch.undo()
    other = threading.Thread(target=drain.run, args=(last,))
    other.start()
    while len(drain._queue) < 2:
        time.sleep(0.001)  # noqa: TID251 - waits for other threads, not for time
    gate.set()
    for each in (leader, thread, other):
        each.join(10)
        assert not each.is_alive()

    assert caught == [True]
    assert last.is_done
    drain.run(Item())


def test_a_batch_has_a_limit_and_the_leader_goes_on_until_its_own_work_is_done(background):
    sizes = []
    drain = drain_of(lambda batch: sizes.append(sum(w.size for w in batch)), background, size=100)
    background.drain = None  # nobody leads yet
    for _ in range(10):
        drain.post(Item(size=60))
    background.drain = drain
    background.wake.set()
    drain.run(Item(size=10))

    assert max(sizes) <= 100
    assert sum(sizes) >= 10


def test_posted_work_is_done_by_the_background_thread(background):
    names = []
    drain = drain_of(lambda batch: names.append(threading.current_thread().name), background)

    drain.post(Item())
    drain.run(Item())
    drain.post(Item())
    drain.run(Item())

    assert names


def test_tasks_share_batches_and_get_their_own_errors(background):
    batches = []

    def perform(batch):
        batches.append(len(batch))
        for work in batch:
            if work.value == 3:
                work.error = InvalidRequestError("three")

    drain = drain_of(perform, background)

    async def produce(value):
        work = Item(value)
        work.future = asyncio.get_running_loop().create_future()
        drain.post(work)
        await work.future
        return value

    async def main():
        return await asyncio.gather(*(produce(v) for v in range(100)), return_exceptions=True)

    results = asyncio.run(main())

    assert [r for r in results if isinstance(r, int)] == [v for v in range(100) if v != 3]
    assert isinstance(results[3], InvalidRequestError)
    assert len(batches) < 100


def test_a_cancelled_task_does_not_disturb_the_others(background):
    gate = threading.Event()
    drain = drain_of(lambda batch: not gate.wait(10), background)

    async def produce():
        work = Item()
        work.future = asyncio.get_running_loop().create_future()
        drain.post(work)
        await work.future
        return True

    async def main():
        tasks = [asyncio.create_task(produce()) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())

    assert [r is True for r in results] == [True, True, False, True, True]


def test_a_closed_drain_refuses_work_and_finishes_what_waits():
    drain = drain_of(lambda batch: None)
    drain.close(InvalidRequestError("closed"))

    with pytest.raises(InvalidRequestError, match="closed"):
        drain.run(Item())
    with pytest.raises(InvalidRequestError, match="closed"):
        drain.post(Item())


def test_failures_under_load_leave_no_thread_behind(seed):
    """Random failures, interrupts and posted work; then every thread has ended."""
    import random

    chance = random.Random(seed)
    background = Background()

    def perform(batch):
        roll = chance.random()
        if roll < 0.1:
            raise UnavailableError("by chance")
        if roll < 0.15:
            raise RuntimeError("by chance")

    drain = drain_of(perform, background)
    count = []

    def produce():
        for number in range(300):
            try:
                if number % 5:
                    drain.run(Item(size=1))
                else:
                    drain.post(Item(size=1))
            except FilestreamError:
                pass
            count.append(1)

    threads = [threading.Thread(target=produce) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    drain_left = Item()
    while True:
        try:
            drain.run(drain_left)
            break
        except FilestreamError:
            drain_left = Item()
    background.stopped = True
    background.wake.set()
    background.thread.join(10)

    assert len(count) == 12 * 300
    assert drain._leader is None or drain.needs_background
