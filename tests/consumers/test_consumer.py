"""What members of a group see, on both property stores."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import sqlite3
import threading
from pathlib import Path

import pytest

import filestream
from filestream.clock import ManualClock
from filestream.consumers.assignment import lane_of, splitmix64
from filestream.consumers.lag import Lag
from filestream.consumers.sqlite import SqlitePositions
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
    UnsupportedVersionError,
)
from filestream.storage.local import LocalStorage


@pytest.fixture
def stream(coordination, tmp_path):
    return filestream.create(tmp_path / "s", coordination=coordination)


@pytest.fixture
def local(tmp_path):
    """A stream with the embedded store and a clock of the test's own."""
    return filestream.create(tmp_path / "local", clock=ManualClock(), chance=random.Random(1))


def fill(stream, count, start=0, key=None):
    with stream.writer() as writer:
        writer.append_many(
            [(b"%d" % n, {"key": key(n)} if key else None) for n in range(start, start + count)]
        )


def numbers(batch):
    return [int(event.body) for event in batch]


class TestOneInstance:
    def test_what_is_committed_never_comes_again(self, stream):
        fill(stream, 10)
        with stream.consumer("g") as consumer:
            assert numbers(consumer.fetch(4)) == [0, 1, 2, 3]
            consumer.commit()

        with stream.consumer("g") as consumer:
            assert numbers(consumer.fetch()) == [4, 5, 6, 7, 8, 9]

    def test_what_is_not_committed_comes_again(self, stream):
        fill(stream, 3)
        with stream.consumer("g") as consumer:
            consumer.fetch()

        with stream.consumer("g") as consumer:
            assert numbers(consumer.fetch()) == [0, 1, 2]

    def test_rollback_brings_everything_since_the_commit_again(self, stream):
        fill(stream, 6)
        with stream.consumer("g") as consumer:
            consumer.fetch(1)
            consumer.commit()
            consumer.fetch(2)
            consumer.fetch(2)
            consumer.rollback()

            assert numbers(consumer.fetch()) == [1, 2, 3, 4, 5]

    def test_a_transaction_commits_at_its_end_and_rolls_back_after_an_error(self, stream):
        fill(stream, 4)
        with stream.consumer("g") as consumer:
            with consumer.transaction(2) as events:
                assert numbers(events) == [0, 1]
            with pytest.raises(ZeroDivisionError), consumer.transaction(2) as events:
                raise ZeroDivisionError
            with consumer.transaction(10) as events:
                assert numbers(events) == [2, 3]

    def test_batches_are_committed_when_the_next_is_asked_for(self, stream):
        fill(stream, 6)
        with stream.consumer("g") as consumer:
            for batch in consumer.batches(2):
                if numbers(batch) == [2, 3]:
                    break
            assert numbers(consumer.fetch()) == [2, 3, 4, 5]
            consumer.commit()
            assert list(consumer.batches(timeout=0)) == []

    def test_a_fetch_waits_for_what_comes(self, stream):
        with stream.consumer("g") as consumer:
            assert not consumer.fetch(timeout=0)
            late = threading.Timer(0.2, fill, (stream, 1))
            late.start()

            assert numbers(consumer.fetch(timeout="30s")) == [0]
            late.join()

    def test_an_empty_commit_is_fine(self, stream):
        with stream.consumer("g") as consumer:
            consumer.commit()
            consumer.rollback()
            consumer.close()
            consumer.close()
            with pytest.raises(InvalidRequestError, match="closed"):
                consumer.fetch()

    def test_tasks(self, stream):
        fill(stream, 5)

        async def work():
            found = []
            with stream.consumer("g") as consumer:
                async with consumer.transaction_async(2) as events:
                    found += numbers(events)
                with pytest.raises(ZeroDivisionError):
                    async with consumer.transaction_async(2):
                        raise ZeroDivisionError
                await consumer.fetch_async(1)
                await consumer.rollback_async()
                await consumer.fetch_async(1)
                await consumer.commit_async()
                async for batch in consumer.batches_async(timeout=0):
                    found += numbers(batch)
            return found

        assert asyncio.run(work()) == [0, 1, 3, 4]

    def test_batches_are_record_batches_too(self, local):
        with local.writer() as writer:
            offset = writer.append(b"x", {"a": "b", "c": None}, timestamp_ms=1_401_408_000_123)
        with local.consumer("g") as consumer:
            found = consumer.fetch().to_arrow("*")

        assert found.schema.equals(local.scan(columns="*").schema)
        assert found.to_pylist() == list(local.scan(columns="*").to_table().to_pylist())
        assert found["offset"].to_pylist() == [str(offset)]

    @pytest.mark.parametrize(
        ("start", "expected"),
        [
            ("start", [0, 1, 2, 3, 4]),
            ("end", []),
            ("-2", [3, 4]),
            ("@2014-05-30T00:00:02Z", [2, 3, 4]),
        ],
    )
    def test_a_new_group_begins_where_it_is_told(self, local, start, expected):
        with local.writer("a") as a, local.writer("b") as b:
            for number in range(5):
                writer = (a, b)[number % 2]
                writer.append(b"%d" % number, timestamp_ms=1_401_408_000_000 + 1000 * number)

        with local.consumer("g", start=start) as consumer:
            assert numbers(consumer.fetch(timeout=0)) == expected
            fill(local, 1, start=9)
            assert 9 in numbers(consumer.fetch(timeout=0))

    def test_a_new_group_begins_at_an_offset(self, local):
        offsets = []
        with local.writer("b") as b, local.writer("a") as a, local.writer("c") as c:
            for writer in (a, b, c, a, b, c):
                offsets.append(writer.append(b"%d" % len(offsets), timestamp_ms=1_401_408_000_000))
        merged = numbers(local.read())

        for place, number in enumerate(merged):
            with local.consumer(f"g{number}", start=str(offsets[number])) as consumer:
                assert numbers(consumer.fetch(timeout=0)) == merged[place:]


class TestFifo:
    def test_each_event_goes_to_one(self, stream):
        fill(stream, 20)
        with (
            stream.consumer("g", instances=2, instance=0) as one,
            stream.consumer("g", instance=1) as two,
        ):
            first, second = one.fetch(5), two.fetch(5)
            assert numbers(first) == [0, 1, 2, 3, 4]
            assert numbers(second) == [5, 6, 7, 8, 9]

    def test_an_aborted_instance_retries_its_own_and_the_other_goes_on(self, stream):
        """Behaviour 28."""
        fill(stream, 6)
        with (
            stream.consumer("g", instances=2, instance=0) as one,
            stream.consumer("g", instance=1) as two,
        ):
            one.fetch(1)
            two.fetch(1)
            one.commit()
            two.rollback()

            assert numbers(one.fetch(2)) == [2, 3]
            assert numbers(two.fetch(5)) == [1]
            two.commit()
            assert numbers(two.fetch(5)) == [4, 5]

    def test_shrinking_gives_what_was_not_committed_to_those_that_stay(self, stream):
        """Behaviour 29: three poll, the first commits, two are left: they see all the others."""
        fill(stream, 5)
        members = [stream.consumer("g", instances=3, instance=n) for n in range(3)]
        for member in members:
            member.fetch(1)
        members[0].commit()
        stream.group("g").reconfigure(instances=2)

        found = []
        with stream.consumer("g", instance=0, takeover=True) as one:
            members[1].close()
            with stream.consumer("g", instance=1) as two:
                for _ in range(10):
                    for member in (one, two):
                        found += numbers(member.fetch(1, 0))
                        member.commit()
        members[2].rollback()
        with pytest.raises(FencedError):
            members[2].fetch()
        for member in members:
            member.close()

        assert sorted(found) == [1, 2, 3, 4]

    def test_claims_of_the_dead_are_taken_over(self, stream):
        fill(stream, 4)
        with stream.consumer("g", instances=2, instance=1) as heir:
            dead = stream.consumer("g", instance=0)
            assert numbers(dead.fetch(3)) == [0, 1, 2]
            dead._membership.close()  # What the kernel does, or ZooKeeper.
            heir._hand_out._looked_s = float("-inf")

            assert numbers(heir.fetch(10)) == [0, 1, 2]
            heir.commit()
            assert numbers(heir.fetch(10)) == [3]
            # It was not dead after all: too late.
            with pytest.raises(FencedError, match="given to another"):
                dead.commit()
            dead.close()

    def test_what_was_taken_over_is_the_heir_s_before_he_commits(self, stream):
        """The one who was believed dead comes back while the heir works: too late for him."""
        fill(stream, 2)
        with stream.consumer("g", instances=2, instance=1) as heir:
            dead = stream.consumer("g", instance=0)
            dead.fetch()
            dead._membership.close()
            heir._hand_out._looked_s = float("-inf")
            assert numbers(heir.fetch()) == [0, 1]

            with pytest.raises(FencedError, match="given to another"):
                dead.commit()
            heir.commit()
            dead.close()
        assert stream.group("g").lag().events == 0

    def test_what_was_taken_over_is_handed_out_once(self, stream):
        """Although it was an orphan at the last look at who lives."""
        fill(stream, 3)
        with (
            stream.consumer("g", instances=3, instance=1) as heir,
            stream.consumer("g", instance=2) as other,
        ):
            dead = stream.consumer("g", instance=0)
            dead.fetch(2)
            dead._membership.close()
            heir._hand_out._looked_s = other._hand_out._looked_s = float("-inf")
            # Both see the orphan; one is faster.
            other._hand_out._redelivery._orphans = heir._membership.orphans(
                stream.group("g").state()
            )
            other._hand_out._looked_s = other._clock.monotonic_s()

            assert numbers(heir.fetch(5)) == [0, 1]
            assert numbers(heir.fetch(5)) == [2]
            assert not other.fetch(5, 0)
            heir.commit()
            dead._is_closed = True
            dead._hand_out.forget_reader()

    def test_an_instance_that_comes_back_gets_the_same_batch_first(self, stream):
        fill(stream, 6)
        with stream.consumer("g", instances=2, instance=1) as other:
            before = stream.consumer("g", instance=0)
            batch = numbers(before.fetch(2))
            other.fetch(2)
            before._membership.close()
            before._hand_out.forget_reader()

            with stream.consumer("g", instance=0) as again:
                assert numbers(again.fetch(5)) == batch
            before._is_closed = True


class TestDivided:
    @pytest.mark.parametrize("strategy", ["round_robin", "hash"])
    def test_every_event_belongs_to_exactly_one(self, stream, strategy):
        fill(stream, 200, key=lambda n: f"user-{n % 50}")
        key = "key" if strategy == "hash" else None
        found = []
        for instance in range(4):
            with stream.consumer(
                "g", instance=instance, instances=4, strategy=strategy, key_header=key
            ) as member:
                mine = numbers(member.fetch())
                assert 20 < len(mine) < 90
                found += mine
                member.commit()

        assert sorted(found) == list(range(200))

    def test_a_key_always_goes_to_the_same(self, local):
        fill(local, 100, key=lambda n: f"user-{n % 7}")
        owners = {}
        for instance in range(3):
            with local.consumer(
                "g", instance=instance, instances=3, strategy="hash", key_header="key"
            ) as member:
                for event in member.fetch():
                    owners.setdefault(event.headers["key"], set()).add(instance)

        assert all(len(instances) == 1 for instances in owners.values())
        assert len(owners) == 7

    def test_the_division_is_the_one_that_is_written_down(self, local):
        """Values that any other implementation must find, too."""
        assert splitmix64(0) == 0xE220A8397B1DCDAF
        assert splitmix64(1) == 0x910A2DEC89025CC1
        with local.writer("file.0") as writer:
            writer.append_many(
                [(b"", {"key": "user-1"}), (b"", {"key": "ü"}), (b"", {"key": None}), (b"", None)]
            )
        events = list(local.read())

        assert [lane_of(e, "hash", "key", 1000) for e in events] == [458, 968, 535, 535]
        assert str(events[0].offset) == "00001/1401408000.86400/file.0.000000:342.0"
        assert [lane_of(e, "round_robin", None, 7) for e in events] == [0, 4, 4, 4]

    def test_events_without_the_key_are_one_key(self, local):
        fill(local, 10)
        counts = []
        for instance in range(3):
            with local.consumer(
                "g", instance=instance, instances=3, strategy="hash", key_header="key"
            ) as member:
                counts.append(len(member.fetch(timeout=0)))

        assert sorted(counts) == [0, 0, 10]


class TestNothingIsPassedOver:
    """Whatever happens between reading and committing."""

    OPTIONS = (
        {},
        {"max_deliver": 5},
        {"instances": 2},
        {"instances": "auto"},
        {"instances": "auto", "strategy": "hash", "key_header": "key"},
    )

    @pytest.mark.parametrize("options", OPTIONS)
    @pytest.mark.parametrize("count", [1, 3, 1000])
    def test_late_events_in_a_later_file(self, local, options, count):
        """A place is one for all files of a writer, so they are read one behind the other."""
        with local.writer() as writer:
            for second in range(5):
                writer.append(b"%d" % second, timestamp_ms=1_401_408_010_000 + 1000 * second)
            for second in range(5):
                writer.append(b"%d" % (10 + second), timestamp_ms=1_401_408_000_000 + second)
        found = []
        for _ in range(12):
            with local.consumer("g", **options) as consumer:
                found += numbers(consumer.fetch(count, 0))
                consumer.commit()

        assert sorted(found) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]

    @pytest.mark.parametrize("options", OPTIONS)
    @pytest.mark.parametrize("reads", range(12))
    def test_a_read_that_fails(self, local, monkeypatch, options, reads):
        fill(local, 30)
        with local.writer("other") as writer:
            writer.append_many([b"%d" % n for n in range(30, 60)])
        real = LocalStorage.read
        left = [reads]

        def read(storage, key, position, size):
            if key.endswith(".dat"):
                left[0] -= 1
                if left[0] == -1:
                    raise UnavailableError("the disk failed, by order of the test")
            return real(storage, key, position, size)

        monkeypatch.setattr(LocalStorage, "read", read)
        found = []
        with local.consumer("g", **options) as consumer:
            for _ in range(20):
                try:
                    found += numbers(consumer.fetch(7, 0))
                    consumer.commit()
                except UnavailableError:
                    consumer.rollback()

        assert sorted(found) == list(range(60))

    def test_damage_is_said_each_time_and_not_passed(self, local):
        fill(local, 2000)
        (path,) = Path(local.url.removeprefix("file://")).rglob("*.dat")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with local.consumer("g") as consumer:
            for _ in range(3):
                with pytest.raises(CorruptDataError):
                    consumer.fetch(100_000, 0)
                consumer.commit()
        assert local.group("g").state().layer.high() == {}

    def test_claims_and_events_without_a_claim_are_committed_together(self, local):
        fill(local, 10)
        gone = local.consumer("g", instances=2, instance=1)
        gone.fetch(3)
        gone.close()
        with local.consumer("g", instances=1) as consumer:
            assert numbers(consumer.fetch(5)) == [0, 1, 2]
            assert numbers(consumer.fetch(5)) == [3, 4, 5, 6, 7]
            consumer.commit()
            assert numbers(consumer.fetch(5)) == [8, 9]
        with local.consumer("g") as consumer:
            assert numbers(consumer.fetch(9)) == [8, 9]

    def test_a_commit_that_failed_rolls_the_transaction_back(self, local, monkeypatch):
        fill(local, 4)
        with local.consumer("g") as consumer:
            real = type(consumer._hand_out).commit

            def fail(hand_out):
                monkeypatch.setattr(type(consumer._hand_out), "commit", real)
                raise UnavailableError("the store failed, by order of the test")

            monkeypatch.setattr(type(consumer._hand_out), "commit", fail)
            with pytest.raises(UnavailableError), consumer.transaction(2):
                pass
            assert numbers(consumer.fetch(9)) == [0, 1, 2, 3]

    def test_a_cancelled_fetch_takes_nothing(self, stream):
        async def work():
            found = []
            with stream.consumer("g") as consumer:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.fetch_async(timeout="60s"), 0.2)
                fill(stream, 3)
                found += numbers(await consumer.fetch_async(timeout="30s"))
                # With something in hand, all of it goes back, and the commit says so.
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.fetch_async(timeout="60s"), 0.2)
                # Also what was fetched since: it is all in one hand.
                fill(stream, 2, start=3)
                later = numbers(await consumer.fetch_async())
                assert later == [0, 1, 2, 3, 4]
                with pytest.raises(FencedError, match="cancelled"):
                    await consumer.commit_async()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.fetch_async(1, timeout=0), 0)
                again = numbers(await consumer.fetch_async())
                await consumer.commit_async()
                assert again == later
            return found

        assert asyncio.run(work()) == [0, 1, 2]

    def test_a_fetch_that_is_cancelled_twice_takes_nothing(self, local):
        fill(local, 3)

        async def work():
            with local.consumer("g") as consumer:
                real = consumer._hand_out.take

                def slow(count, until_s):
                    begun.set()
                    gate.wait(30)
                    return real(count, until_s)

                begun, gate = threading.Event(), threading.Event()
                consumer._hand_out.take = slow
                task = asyncio.ensure_future(consumer.fetch_async())
                await asyncio.to_thread(begun.wait, 30)
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0)
                gate.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
                consumer._hand_out.take = real
                return numbers(await consumer.fetch_async())

        assert asyncio.run(work()) == [0, 1, 2]

    def test_a_forked_child_is_refused_and_holds_nothing(self, local):
        fill(local, 3)
        consumer = local.consumer("g")
        assert numbers(consumer.fetch(1)) == [0]
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                for action in (consumer.fetch, consumer.commit):
                    with pytest.raises(FencedError, match="parent"):
                        action()
                code = 0
                os.close(writer)
                os.read(reader, 1)
            finally:
                os._exit(code)
        os.close(reader)
        consumer.commit()
        consumer.close()
        # The child lives, and does not keep the slot.
        with local.consumer("g") as again:
            assert numbers(again.fetch()) == [1, 2]
        os.close(writer)
        assert os.waitpid(child, 0)[1] == 0

    def test_two_threads_at_once_are_refused(self, local):
        with local.consumer("g") as consumer:
            thread = threading.Thread(target=consumer.fetch, args=(1, "20s"))
            thread.start()
            while not consumer._busy.locked():
                pass
            with pytest.raises(InvalidRequestError, match="two threads"):
                consumer.fetch(1, 0)
            fill(local, 1)
            thread.join()


class TestReconfiguration:
    def test_processed_stays_processed_and_nothing_is_left_unread(self, stream):
        fill(stream, 60, key=lambda n: f"{n}")
        done = []
        for step, (strategy, instances) in enumerate(
            [("round_robin", 3), ("hash", 2), ("fifo", 2), ("round_robin", 2), ("fifo", 1)]
        ):
            key = "key" if strategy == "hash" else None
            members = [
                stream.consumer(
                    "g", instance=n, instances=instances, strategy=strategy, key_header=key
                )
                for n in range(instances)
            ]
            for number, member in enumerate(members):
                # Unevenly: the first one far ahead of the others.
                done += numbers(member.fetch(12 if number == 0 else 1 + step, 0))
                member.commit()
            for member in members:
                member.close()
        with stream.consumer("g") as last:
            for batch in last.batches(timeout=0):
                done += numbers(batch)

        assert sorted(done) == list(range(60))
        assert len(stream.group("g").state().layers) == 1

    def test_members_of_the_old_division_are_told(self, stream):
        fill(stream, 10)
        old = stream.consumer("g", instance=0, instances=2, strategy="round_robin")
        old.fetch(3)
        with stream.consumer("g", instance=1, instances=3) as new:
            with pytest.raises(FencedError):
                old.commit()
            with pytest.raises(FencedError, match="instances=3"):
                old.fetch()
            assert sum(len(new.fetch()) for _ in range(1)) > 0
        old.close()

    def test_members_come_and_go(self, stream):
        fill(stream, 40, key=lambda n: f"{n}")
        done = []
        one = stream.consumer("g", instances="auto", strategy="hash", key_header="key")
        done += numbers(one.fetch(5))
        one.commit()
        in_hand = numbers(one.fetch(5))
        two = stream.consumer("g")
        done += numbers(two.fetch(100))
        two.commit()
        assert not set(done) & set(in_hand)
        # What was in hand when the other came can still be committed, and comes to nobody else.
        one.commit()
        done += in_hand
        done += numbers(one.fetch(100))
        one.commit()
        assert sorted(done) == list(range(40))

        fill(stream, 20, start=40, key=lambda n: f"{n}")
        lost = numbers(two.fetch(100))
        assert 0 < len(lost) < 20
        two.close()
        for batch in one.batches(timeout="2s"):
            done += numbers(batch)
        one.close()
        assert sorted(done) == list(range(60))

    def test_the_dead_make_room(self, stream):
        fill(stream, 20, key=lambda n: f"{n}")
        with stream.consumer("g", instances="auto", strategy="round_robin") as one:
            two = stream.consumer("g")
            held = numbers(two.fetch(3))
            two._membership.close()
            one._hand_out._looked_s = float("-inf")
            found = []
            for batch in one.batches(timeout="2s"):
                found += numbers(batch)

            assert sorted(found) == list(range(20))
            assert set(held) <= set(found)
            with pytest.raises(FencedError):
                two.commit()
            two._hand_out.forget_reader()
            two._is_closed = True

    def test_lanes_without_events_do_not_pile_up_layers(self, local):
        clock = local._clock
        standing = [
            local.consumer("g", instances="auto", strategy="hash", key_header="key")
            for _ in range(2)
        ]
        for _ in range(40):
            with local.consumer("g") as guest:
                fill(local, 3, key=lambda n: "the same")
                for member in (*standing, guest):
                    clock.advance(2)
                    member.fetch(timeout=0)
                    member.commit()
        assert len(local.group("g").state().layers) < 6
        for member in standing:
            member.close()

    def test_a_consumer_that_is_refused_changes_nothing(self, local):
        fill(local, 4)
        with local.consumer("g") as consumer:
            consumer.fetch(2)
            for options in (
                {"instances": 4},
                {"instances": 2, "instance": 7},
                {"instances": "auto", "instance": 0},
            ):
                with pytest.raises((ConflictError, InvalidRequestError)):
                    local.consumer("g", **options)
            consumer.commit()
            assert local.group("g").state().instances == 1
        for options in ({"instances": 2, "instance": 5}, {"start": "zzz"}, {"instances": 999}):
            with pytest.raises(InvalidRequestError):
                local.consumer("new", **options)
        assert local.groups() == ["g"]

    def test_a_group_of_a_removed_name_shares_nothing_with_it(self, local):
        """Not even the count of its versions: a member of the old one must not pass for a new one."""
        fill(local, 6)
        old = local.consumer("g")
        old.fetch(1)
        old.commit()
        local.group("g").remove(force=True)
        with pytest.raises(NotFoundError):
            local.group("g").state()
        with local.consumer("g", takeover=True) as new:
            assert numbers(new.fetch(1)) == [0]
            new.commit()
            for action in (lambda: old.fetch(5, 0), old.commit):
                with contextlib.suppress(FencedError):
                    action()
            assert numbers(new.fetch(9)) == [1, 2, 3, 4, 5]
            new.commit()
        old.close()

    def test_a_living_member_of_a_removed_group_does_not_go_on_in_the_new_one(self, local):
        fill(local, 4)
        with local.consumer("g") as consumer:
            consumer.fetch()
            consumer.commit()
            local.group("g").remove(force=True)
            local.create_group("g")
            assert numbers(consumer.fetch(timeout=0)) == [0, 1, 2, 3]
            consumer.commit()
        assert local.group("g").lag().events == 0


class TestTruncation:
    def test_a_group_goes_on_in_the_new_generation(self, stream):
        fill(stream, 5)
        with stream.consumer("g") as consumer:
            consumer.fetch(2)
            consumer.commit()
            consumer.fetch(1)
            stream.truncate()
            with pytest.raises(FencedError, match="truncated"):
                consumer.commit()
            fill(stream, 3, start=10)

            assert numbers(consumer.fetch(timeout="30s")) == [10, 11, 12]
            consumer.commit()
        with stream.consumer("g") as consumer:
            assert not consumer.fetch(timeout=0)

    def test_also_with_claims(self, stream):
        fill(stream, 5)
        with (
            stream.consumer("g", instances=2, instance=0) as one,
            stream.consumer("g", instance=1) as two,
        ):
            one.fetch(2)
            two.fetch(1)
            stream.truncate()
            fill(stream, 4, start=10)
            with pytest.raises(FencedError):
                one.commit()
            found = numbers(one.fetch(2, "30s"))
            two.rollback()
            found += numbers(two.fetch(9, "30s"))
            assert sorted(found) == [10, 11, 12, 13]

    def test_a_group_that_was_away_begins_at_the_new_start(self, stream):
        fill(stream, 5)
        with stream.consumer("g") as consumer:
            consumer.fetch()
            consumer.commit()
        stream.truncate()
        fill(stream, 2)

        assert stream.group("g").lag().events == 2
        with stream.consumer("g") as consumer:
            assert numbers(consumer.fetch()) == [0, 1]

    def test_a_state_of_a_later_generation_is_refused(self, local):
        fill(local, 1)
        local.consumer("g").close()
        document = local.group("g")._document
        document.change(lambda state: state.in_generation(7))

        with local.consumer("g") as consumer, pytest.raises(FencedError, match="later generation"):
            consumer.fetch()


class TestTimeToLive:
    def test_expired_events_are_skipped_and_expired_places_forgotten(self, tmp_path, coordination):
        """Behaviour 30."""
        clock = ManualClock()
        stream = filestream.create(
            tmp_path / "s",
            coordination=coordination,
            clock=clock,
            ttl="10s",
            partition_duration="1s",
        )
        with stream.writer() as writer, stream.consumer("g") as consumer:
            for number in range(30):
                writer.append(b"%d" % number)
                clock.advance(1)
            found = numbers(consumer.fetch(timeout=0))
            assert found == list(range(20, 30))
            consumer.commit()
            clock.advance(60)
            writer.append(b"99")
            assert numbers(consumer.fetch(timeout=0)) == [99]
            # The clock alone is no reason: it may be wrong, and the ttl be changed.
            consumer.commit()
            assert len(stream.group("g").state().layer.lanes[0]) > 5
            stream.apply_retention()
            clock.advance(5)
            writer.append(b"100")
            consumer.fetch()
            consumer.commit()

        (places,) = stream.group("g").state().layer.lanes
        assert len(places) == 2

    def test_events_of_one_partition_and_of_one_timestamp_expire_together(
        self, tmp_path, coordination
    ):
        """Behaviours 30 and 31: groups old and new agree, while events expire between fetches."""
        clock = ManualClock()
        stream = filestream.create(
            tmp_path / "s", coordination=coordination, clock=clock, ttl="10s"
        )
        old = stream.consumer("old")
        with stream.writer() as writer:
            for second in range(20):
                writer.append_many([b"%d" % (10 * second + n) for n in range(10)])
                if second == 5:
                    assert numbers(old.fetch(3, 0)) == [0, 1, 2]
                    old.commit()
                clock.advance(1)
            # An event from before, into another segment: expired too, but for one.
            writer.append(b"900", timestamp_ms=clock.now_ms() - 9_000)
        with stream.consumer("new") as new:
            seen = numbers(new.fetch(timeout=0))
            assert sorted(seen) == [*range(100, 200), 900]
            # A live reader takes a file a round, so two fetches.
            found = numbers(old.fetch(timeout=0)) + numbers(old.fetch(timeout=0))
            assert sorted(found) == sorted(seen)
            clock.advance(5)
            for consumer in (old, new):
                consumer.rollback()
            for consumer in (old, new):
                assert numbers(consumer.fetch(timeout=0)) == list(range(150, 200))
        old.close()

    def test_claims_of_expired_events_end(self, tmp_path, coordination):
        clock = ManualClock()
        stream = filestream.create(
            tmp_path / "s",
            coordination=coordination,
            clock=clock,
            ttl="10s",
            partition_duration="1s",
        )
        fill(stream, 3)
        with stream.consumer("g", instances=2, instance=0) as consumer:
            consumer.fetch(2)
            consumer.rollback()
            clock.advance(60)
            stream.apply_retention()

            assert not consumer.fetch(timeout=0)
            assert stream.group("g").state().claims == ()


class TestDeadLetters:
    def test_an_event_that_cannot_be_processed_is_given_up(self, stream):
        fill(stream, 6)
        tries = {}
        done = []
        for _ in range(30):
            # Each time in a new process: nothing but the state remembers.
            with stream.consumer("g", max_deliver=3) as consumer:
                try:
                    with consumer.transaction(4, timeout=0) as events:
                        for event in events:
                            number = int(event.body)
                            tries[number] = tries.get(number, 0) + 1
                            if number == 2:
                                raise ZeroDivisionError
                        done += numbers(events)
                except ZeroDivisionError:
                    continue

        assert sorted(done) == [0, 1, 3, 4, 5]
        assert tries[2] == 3
        (letter,) = stream.group("g").state().dead
        assert (letter.deliveries, letter.reason) == (3, "delivered too often")
        # It points at the original.
        (original,) = itertools.islice(stream.read(start=letter.offset), 1)
        assert original.body == b"2"

    def test_an_operator_can_skip_an_event(self, stream):
        fill(stream, 3)
        offsets = [event.offset for event in stream.read()]
        stream.consumer("g").close()

        stream.group("g").skip(offsets[1])
        stream.group("g").skip(str(offsets[1]))

        with stream.consumer("g") as consumer:
            assert numbers(consumer.fetch()) == [0, 2]
            consumer.commit()
        assert stream.group("g").lag().events == 0
        assert [letter.reason for letter in stream.group("g").state().dead] == ["skipped"]

    def test_a_disk_that_fails_is_no_delivery(self, local, monkeypatch):
        fill(local, 3)
        real = LocalStorage.read
        with local.consumer("g", max_deliver=3) as consumer:
            consumer.fetch()
            consumer.rollback()

            def read(storage, key, position, size):
                if key.endswith(".dat"):
                    raise UnavailableError("the disk failed, by order of the test")
                return real(storage, key, position, size)

            monkeypatch.setattr(LocalStorage, "read", read)
            for _ in range(5):
                with pytest.raises(UnavailableError):
                    consumer.fetch()
            monkeypatch.setattr(LocalStorage, "read", real)
            assert numbers(consumer.fetch()) == [0, 1, 2]
            assert local.group("g").state().dead == ()

    def test_one_fault_in_thirty_costs_one_event(self, local):
        fill(local, 30)
        done = []
        with local.consumer("g", max_deliver=2) as consumer:
            for _ in range(100):
                batch = consumer.fetch(30, 0)
                if 17 in numbers(batch):
                    consumer.rollback()
                else:
                    done += numbers(batch)
                    consumer.commit()

        assert sorted(done) == [n for n in range(30) if n != 17]
        assert len(local.group("g").state().dead) == 1

    def test_a_lower_limit_does_not_bury_what_was_never_tried_alone(self, local):
        fill(local, 4)
        for _ in range(6):
            with local.consumer("g", instances=2, instance=0) as consumer:
                consumer.fetch()
        done = []
        with local.consumer("g", max_deliver=3) as consumer:
            for _ in range(40):
                batch = consumer.fetch(9, 0)
                if 2 in numbers(batch):
                    consumer.rollback()
                else:
                    done += numbers(batch)
                    consumer.commit()
        assert done == [0, 1, 3]
        (letter,) = local.group("g").state().dead
        assert letter.deliveries == 3

    def test_with_fixed_lanes_what_failed_waits_for_its_instance(self, local):
        fill(local, 40, key=lambda n: f"{n}")
        options = {"instances": 2, "strategy": "hash", "key_header": "key", "max_deliver": 3}
        with local.consumer("g", instance=0, **options) as one:
            mine = numbers(one.fetch())
        with local.consumer("g", instance=1, **options) as two:
            local_two = numbers(two.fetch(timeout=0))
            two.commit()
            assert not two.fetch(timeout=0)
        assert not set(mine) & set(local_two)
        with local.consumer("g", instance=0, **options) as one:
            assert numbers(one.fetch()) == mine

    @pytest.mark.parametrize("options", TestNothingIsPassedOver.OPTIONS)
    def test_a_skipped_event_is_no_lag(self, local, options):
        fill(local, 3)
        offsets = [event.offset for event in local.read()]
        local.consumer("g", **options).close()
        for offset in offsets[1:]:
            local.group("g").skip(offset)
        assert local.group("g").lag().events == 1
        with local.consumer("g") as consumer:
            assert numbers(consumer.fetch(timeout=0)) == [0]
            consumer.commit()
        assert local.group("g").lag() == Lag()


class TestSize:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"instances": 2},
            {"instances": "auto", "strategy": "round_robin"},
            {"max_deliver": 2},
        ],
    )
    def test_a_finished_past_takes_no_room_in_the_state(self, tmp_path, options):
        clock = ManualClock()
        stream = filestream.create(tmp_path / "s", clock=clock, partition_duration="1s")
        with (
            stream.writer("a") as a,
            stream.writer("b") as b,
            stream.consumer("g", **options) as consumer,
        ):
            for number in range(200):
                (a, b)[number % 2].append_many([b"x", b"y", b"z"])
                if number % 2:
                    clock.advance(1)
                if number == 10:
                    for batch in consumer.batches(timeout=0):
                        assert batch
                    small = len(stream.group("g").dump())
            for batch in consumer.batches(7, timeout=0):
                assert batch
            clock.advance(10)
            a.append(b"x")
            for batch in consumer.batches(7, timeout=0):
                assert batch

            assert len(stream.group("g").dump()) < small + 600
            assert stream.group("g").lag().events == 0
            # And what comes late into an old partition is not passed over.
            a.append(b"late", timestamp_ms=1_401_408_000_500)
            assert [event.body for event in consumer.fetch(timeout=0)] == [b"late"]


class TestPositionsOfTheUser:
    def test_results_and_position_are_one_transaction(self, stream, tmp_path):
        fill(stream, 10)
        database = sqlite3.connect(tmp_path / "results.db")
        database.execute("create table results (number integer)")
        database.commit()

        def results():
            return [row[0] for row in database.execute("select number from results")]

        with stream.consumer("g", positions=SqlitePositions(database)) as consumer:
            with database, consumer.transaction(3) as events:
                database.executemany(
                    "insert into results values (?)", [(n,) for n in numbers(events)]
                )
            assert results() == [0, 1, 2]
            # The transaction fails after our commit: the position goes back with the results.
            with pytest.raises(ZeroDivisionError), database:
                with consumer.transaction(3) as events:
                    database.executemany(
                        "insert into results values (?)", [(n,) for n in numbers(events)]
                    )
                raise ZeroDivisionError
            assert results() == [0, 1, 2]
            assert numbers(consumer.fetch(4)) == [3, 4, 5, 6]
            consumer.rollback()
        with stream.consumer("g", positions=SqlitePositions(database)) as consumer:
            assert numbers(consumer.fetch(2)) == [3, 4]
        database.close()

    def test_another_process_is_fenced_by_the_database(self, local, tmp_path):
        fill(local, 4)
        one, two = (sqlite3.connect(tmp_path / "results.db") for _ in range(2))
        first = local.consumer("g", positions=SqlitePositions(one))
        first.fetch(1)
        second = local.consumer("g", takeover=True, positions=SqlitePositions(two))
        with two, second.transaction(2):
            pass

        with pytest.raises(FencedError), one:
            first.commit()
        for consumer in (first, second):
            consumer.close()
        for database in (one, two):
            database.close()

    def test_the_group_and_the_database_agree_on_whose_positions_count(self, local, tmp_path):
        fill(local, 10)
        database = sqlite3.connect(tmp_path / "results.db")
        positions = SqlitePositions(database)
        with local.consumer("g", positions=positions) as consumer, database:
            consumer.fetch(4)
            consumer.commit()
        # Right after the end, also from outside.
        assert local.group("g").lag().events == 6
        with pytest.raises(InvalidRequestError, match="positions="):
            local.consumer("g")
        with pytest.raises(InvalidRequestError, match="divided"):
            local.group("g").reconfigure(instances=3)
        with pytest.raises(InvalidRequestError):
            local.consumer("g", instances=2, strategy="hash", key_header="k", positions=positions)

        local.group("g").reset("-9")
        with local.consumer("g", positions=positions) as consumer, database:
            assert numbers(consumer.fetch(2)) == [1, 2]
            consumer.commit()
        local.group("g").remove()
        with local.consumer("g", positions=positions) as consumer:
            assert numbers(consumer.fetch(2)) == [0, 1]
        database.close()

    def test_a_first_transaction_that_is_rolled_back_leaves_no_trace(self, local, tmp_path):
        fill(local, 4)
        database = sqlite3.connect(tmp_path / "results.db")
        positions = SqlitePositions(database)
        with local.consumer("g", positions=positions) as consumer:
            for _ in range(2):
                with pytest.raises(ZeroDivisionError), database:
                    with consumer.transaction(2) as events:
                        assert numbers(events) == [0, 1]
                    local._clock.advance(5)
                    raise ZeroDivisionError
        assert local.group("g").lag().events == 4
        with local.consumer("g", positions=positions) as consumer:
            assert numbers(consumer.fetch()) == [0, 1, 2, 3]
        database.close()

    def test_a_refused_consumer_does_not_take_the_positions_away(self, local, tmp_path):
        database = sqlite3.connect(tmp_path / "results.db")
        with local.consumer("g"), pytest.raises(ConflictError):
            local.consumer("g", positions=SqlitePositions(database))
        local.consumer("g").close()
        database.close()

    def test_a_connection_without_transactions_is_refused(self, tmp_path):
        database = sqlite3.connect(tmp_path / "results.db", isolation_level=None)
        with pytest.raises(InvalidRequestError, match="isolation_level"):
            SqlitePositions(database)
        database.close()

    def test_a_transaction_of_the_user_stays_open(self, tmp_path):
        database = sqlite3.connect(tmp_path / "results.db")
        database.execute("create table results (number integer)")
        database.commit()
        database.execute("insert into results values (1)")
        SqlitePositions(database)
        database.rollback()
        assert database.execute("select count(*) from results").fetchone() == (0,)
        database.close()

    def test_groups_with_claims_are_refused(self, local, tmp_path):
        database = sqlite3.connect(tmp_path / "results.db")
        positions = SqlitePositions(database)
        for options in ({"instances": 2}, {"instances": "auto"}, {"max_deliver": 3}):
            with pytest.raises(InvalidRequestError, match="without claims"):
                local.consumer(f"g{len(options)}", positions=positions, **options)
        database.close()


class TestBadInput:
    def test_options_that_make_no_sense(self, local):
        for options in (
            {"instances": 0},
            {"instances": -1},
            {"instances": 2000},
            {"instances": "many"},
            {"instances": True},
            {"instance": 1},
            {"instance": -1},
            {"instance": 3, "instances": 3},
            {"strategy": "random"},
            {"strategy": "hash"},
            {"key_header": "key"},
            {"strategy": "fifo", "key_header": "key"},
            {"max_deliver": 1},
            {"max_deliver": "3"},
            {"instance": 0.0},
            {"instance": "0"},
            {"instances": "auto", "instance": 0},
        ):
            with pytest.raises(InvalidRequestError):
                local.consumer("bad", **options)
        for name in ("", "../x", "a/b", ".a", "a..b", 3, None):
            with pytest.raises(InvalidRequestError):
                local.consumer(name)
        with local.consumer("g") as consumer:
            for count in (0, -1, True, 10**9, "5", None, 1.5):
                with pytest.raises(InvalidRequestError):
                    consumer.fetch(count)

    def test_an_unknown_group_is_not_found(self, stream):
        for action in ("state", "lag", "dump", "remove"):
            with pytest.raises(NotFoundError, match="nobody"):
                getattr(stream.group("nobody"), action)()
        assert stream.groups() == []

    def test_two_processes_cannot_be_one_instance(self, stream):
        fill(stream, 4)
        with stream.consumer("g") as first:
            first.fetch(1)
            with pytest.raises(ConflictError, match="takeover"):
                stream.consumer("g")
            with stream.consumer("g", takeover=True) as second:
                with pytest.raises(FencedError, match="taken over"):
                    first.commit()
                with pytest.raises(FencedError, match="taken over"):
                    first.fetch()
                assert numbers(second.fetch()) == [0, 1, 2, 3]
                second.commit()

    @pytest.mark.parametrize("damage", ["flip", "version", "no state", "foreign"])
    def test_a_state_that_cannot_be_read_is_named(self, stream, damage):
        from filestream.documents import decode_document, encode_document

        stream.consumer("g").close()
        fill(stream, 2)
        store = stream._store
        document = store.get("groups/g")
        value = {
            "flip": document.value.replace(b'"epoch": 1', b'"epoch": 3'),
            "version": encode_document({**decode_document(document.value, url=""), "v": 2}),
            "no state": encode_document({"v": 1, "id": 3}),
            "foreign": b"hello",
        }[damage]
        store.compare_and_set("groups/g", value, version=document.version)
        expected = UnsupportedVersionError if damage == "version" else CorruptDataError

        with pytest.raises(expected):
            stream.consumer("g")
        with pytest.raises(expected):
            stream.group("g").lag()
        if expected is CorruptDataError:
            # A reset mends it.
            stream.group("g").reset("start")
            with stream.consumer("g") as consumer:
                assert numbers(consumer.fetch()) == [0, 1]

    def test_any_bit_of_a_state_that_flips_is_found(self, local):
        fill(local, 3)
        with local.consumer("g", instances=2, instance=0) as consumer:
            consumer.fetch(1)
            good = local._store.get("groups/g").value
            from filestream.consumers.state_document import decode_state, encode_state

            assert encode_state(decode_state(good, url="")) == good
            for position in range(len(good)):
                bad = bytearray(good)
                bad[position] ^= 1 << position % 8
                with pytest.raises((CorruptDataError, UnsupportedVersionError)):
                    decode_state(bytes(bad), url="")


class TestOperators:
    def test_groups_are_listed_and_removed(self, stream):
        for name in ("b", "a"):
            stream.consumer(name).close()
        assert stream.groups() == ["a", "b"]

        stream.group("a").remove()

        assert stream.groups() == ["b"]

    def test_a_reset_is_refused_while_members_live(self, stream):
        fill(stream, 4)
        with stream.consumer("g") as consumer:
            consumer.fetch(1)
            group = stream.group("g")
            for action in (lambda: group.reset("start"), group.remove):
                with pytest.raises(ConflictError, match="force"):
                    action()
            group.reset("-1", force=True)
            with pytest.raises(FencedError):
                consumer.commit()
            assert numbers(consumer.fetch()) == [3]

    def test_a_dry_run_says_what_a_reset_does(self, stream):
        fill(stream, 10)
        with stream.consumer("g") as consumer:
            consumer.fetch(4)
            consumer.commit()
        group = stream.group("g")

        plan = group.reset("-2", dry_run=True)
        assert (plan.before.events, plan.after.events) == (6, 2)
        assert group.lag().events == 6
        group.reset("-2")
        assert group.lag().events == 2

    def test_resets_to_another_group_and_to_a_dump(self, stream):
        fill(stream, 10)
        for name, count in (("a", 3), ("b", 7)):
            with stream.consumer(name) as consumer:
                consumer.fetch(count)
                consumer.commit()
        dump = stream.group("a").dump()
        json.loads(dump.rpartition("crc32c:")[0])

        stream.group("a").reset(group="b")
        assert stream.group("a").lag().events == 3
        stream.group("a").reset(dump=dump)
        assert stream.group("a").lag().events == 7
        with pytest.raises(InvalidRequestError, match="no dump"):
            stream.group("a").reset(dump="hello")
        with pytest.raises(InvalidRequestError, match="one place"):
            stream.group("a").reset()
        with pytest.raises(NotFoundError):
            stream.group("a").reset(group="nobody")

    def test_a_reset_to_what_was_truncated_is_refused(self, stream):
        fill(stream, 3)
        offset = next(iter(stream.read())).offset
        with stream.consumer("g") as consumer:
            consumer.fetch(1)
            consumer.commit()
        dump = stream.group("g").dump()
        stream.truncate()

        for to in ({"to": offset}, {"dump": dump}, {"group": "g"}):
            with pytest.raises(FencedError, match="truncated"):
                stream.group("g").reset(**to)
        with pytest.raises(FencedError):
            stream.group("g").skip(offset)

    def test_a_lone_reset_to_a_time(self, local):
        with local.writer() as writer:
            for number in range(5):
                writer.append(b"%d" % number, timestamp_ms=1_401_408_000_000 + 1000 * number)
        local.consumer("g", start="end").close()

        local.group("g").reset("@2014-05-30T00:00:03Z")

        with local.consumer("g") as consumer:
            assert numbers(consumer.fetch()) == [3, 4]


class TestLag:
    def test_events_bytes_and_seconds(self, local):
        clock = local._clock
        with local.writer("a") as a, local.writer("b") as b, local.consumer("g") as consumer:
            for number in range(10):
                (a, b)[number % 2].append(b"%d" % number)
                clock.advance(1)
            consumer.fetch(4)
            consumer.commit()
            consumer.fetch(3)
            lag = local.group("g").lag()

            assert lag.events == 6
            # The fifth was appended six seconds ago.
            assert lag.seconds == 6.0
            assert lag.oldest_timestamp_ms == clock.now_ms() - 6000
            assert 0 < lag.size_bytes < local.summary().size_bytes
            consumer.commit()
            consumer.fetch()
            consumer.commit()
            assert local.group("g").lag().events == 0
            assert local.group("g").lag().seconds == 0.0
            assert local.group("g").lag().size_bytes == 0

    def test_of_a_divided_group_and_of_claims(self, local):
        fill(local, 100)
        for instance in range(3):
            with local.consumer(
                "g", instance=instance, instances=3, strategy="round_robin"
            ) as member:
                if instance != 1:
                    left = len(member.fetch())
                    member.commit()
                else:
                    left = len(member.fetch(10))
                    member.commit()
        del left
        with local.consumer("g", instance=1) as member:
            rest = len(member.fetch())
        assert local.group("g").lag().events == rest

        with (
            local.consumer("f", instances=2, instance=0) as one,
            local.consumer("f", instance=1) as two,
        ):
            one.fetch(10)
            two.fetch(20)
            two.commit()
            assert local.group("f").lag().events == 80

    def test_of_a_stream_without_counts(self, tmp_path):
        stream = filestream.create(tmp_path / "e2", format="E2")
        fill(stream, 30)
        with stream.consumer("g") as consumer:
            consumer.fetch(12)
            consumer.commit()
        assert stream.group("g").lag().events == 18

    def test_what_has_expired_is_no_lag(self, tmp_path):
        clock = ManualClock()
        stream = filestream.create(tmp_path / "s", clock=clock, ttl="10s")
        fill(stream, 100)
        with stream.consumer("g") as consumer:
            consumer.fetch(10)
        clock.advance(5)
        fill(stream, 7)
        assert stream.group("g").lag().events == 107
        clock.advance(6)
        assert stream.group("g").lag().events == 7
        clock.advance(6)
        assert stream.group("g").lag() == Lag()

    def test_over_sealed_and_open_segments(self, local):
        with local.writer() as writer, local.consumer("g") as consumer:
            for start in range(0, 50, 10):
                writer.append_many([b"%d" % n for n in range(start, start + 10)])
                if start % 20:
                    writer.roll()
            for count in (7, 13, 1, 20, 9):
                consumer.fetch(count)
                consumer.commit()
                done = 50 - local.group("g").lag().events
                assert done == consumer_done(local)


def consumer_done(stream):
    (places,) = stream.group("g").state().layer.lanes
    done = 0
    for event in stream.read():
        place = places.get((event.segment.partition, event.segment.writer_id))
        done += (event.segment.sequence, event.position, event.index_in_block) < place
    return done
