"""Telling of growth, and the janitor: work that is done from time to time."""

import random
import threading
import time

import pytest

import filestream
from filestream.clock import ManualClock
from filestream.errors import InvalidRequestError, NotFoundError


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def stream(tmp_path, clock, coordination):
    return filestream.create(
        tmp_path / "s",
        coordination=coordination,
        clock=clock,
        chance=random.SystemRandom(),
        partition_duration="1s",
    )


class TestGrowth:
    def test_it_tells_when_the_threshold_is_reached_and_not_before(self, stream):
        with stream.writer() as writer:
            writer.append(bytes(1000))
            watch = stream.watch_size(5000, timeout=0)
            assert next(watch, None) is None
            writer.append(bytes(4000))
            assert next(watch, None) is None
            writer.append(bytes(1000))
            told = next(watch)

            assert 5000 <= told.grown_bytes < 5400
            assert told.size_bytes > 6000
            assert told.generation == 1
            # From here on, anew.
            assert next(watch, None) is None
            writer.append(bytes(5001))
            assert next(watch).grown_bytes < 5400

    def test_what_lies_behind_a_position_has_grown_already(self, stream, clock):
        with stream.writer() as writer:
            writer.append(bytes(3000))
            clock.advance(10)
            writer.append(bytes(3000))

            assert next(stream.watch_size(5000, since="start", timeout=0)).grown_bytes > 6000
            assert next(stream.watch_size(5000, since="@-5s", timeout=0), None) is None
            assert next(stream.watch_size(2000, since="@-5s", timeout=0)).grown_bytes < 3600

    def test_over_segments_partitions_and_writers(self, stream, clock):
        watch = stream.watch_size("1kB", timeout=0)
        total = 0
        with stream.writer("a") as a, stream.writer("b") as b:
            for number in range(20):
                (a, b)[number % 2].append(bytes(300))
                if number % 5 == 4:
                    clock.advance(2)
                told = next(watch, None)
                total += told.grown_bytes if told else 0
        size = sum(len(p.read_bytes()) for p in _files(stream))

        assert size - 2000 < total <= size

    def test_a_truncation_forgets_nothing_that_was_not_told(self, stream):
        watch = stream.watch_size(5000, timeout=0)
        with stream.writer() as writer:
            writer.append(bytes(3000))
            assert next(watch, None) is None
            stream.truncate()
            writer.append(bytes(2500))
            told = next(watch)

        assert 5500 < told.grown_bytes < 7000
        assert told.generation == 2
        assert told.size_bytes < 3500

    def test_what_expires_hides_nothing_that_grows(self, tmp_path, clock):
        stream = filestream.create(tmp_path / "e", clock=clock, partition_duration="1s", ttl="5s")
        watch = stream.watch_size(3000, timeout=0)
        with stream.writer() as writer:
            writer.append(bytes(10_000))
            assert next(watch).grown_bytes > 10_000
            clock.advance(60)
            stream.apply_retention()
            assert next(watch, None) is None
            writer.append(bytes(3000))
            assert 3000 < next(watch).grown_bytes < 4000

    def test_bad_input(self, stream):
        for threshold in (0, -1, "x", "1XB"):
            with pytest.raises(InvalidRequestError):
                stream.watch_size(threshold)
        stream.delete()
        with pytest.raises(NotFoundError):
            stream.watch_size(1)


def _files(stream):
    from pathlib import Path

    return list(Path(stream.url.removeprefix("file://")).rglob("*.dat"))


class TestJanitor:
    def test_it_removes_what_has_expired_and_keeps_the_rest(self, tmp_path, clock, coordination):
        """Behaviours 42 and 43: partitions of 2 s, ttl 5 s; and truncated generations."""
        stream = filestream.create(
            tmp_path / "s",
            coordination=coordination,
            clock=clock,
            partition_duration="2s",
            ttl="5s",
            retention="1m",
        )
        with stream.writer() as writer:
            for _ in range(5):
                writer.append(b"x")
                clock.advance(2)
        removed = []
        with stream.janitor(tell=removed.extend) as janitor:
            janitor.work()
            assert len(removed) == 2
            clock.advance(6)
            janitor.work()
            assert len(removed) == 5
            stream.truncate()
            janitor.work()
            assert len(removed) == 5
            clock.advance(61)
            janitor.work()

        assert [removal.reason for removal in removed[5:]] == ["truncated"]

    def test_one_of_many_works_and_another_goes_on(self, stream, clock):
        with stream.janitor() as one, stream.janitor() as two:
            one.work()
            two.work()
            assert (one.is_elected, two.is_elected) == (True, False)
            one.close()
            two.work()
            assert (one.is_elected, two.is_elected) == (False, True)

    def test_a_writer_can_be_the_janitor(self, tmp_path):
        stream = filestream.create(tmp_path / "s", ttl="1ms", partition_duration="1s")
        with stream.writer() as writer:
            writer.append(b"x")
            writer.roll()
        with stream.writer(retention_every="100ms"):
            until_s = time.monotonic() + 30
            while _files(stream):
                assert time.monotonic() < until_s
                time.sleep(0.05)  # noqa: TID251 - waits for another thread
        assert "filestream-janitor" not in [thread.name for thread in threading.enumerate()]

    def test_one_whose_listener_fails_goes_on_and_gives_way_at_its_end(self, stream):
        def fail(removed):
            raise ValueError("the listener failed, by order of the test")

        janitor = stream.janitor(every="100ms", tell=fail)
        assert janitor._round()
        assert janitor.is_elected
        janitor.close()
        with stream.janitor() as other:
            other.work()
            assert other.is_elected

    def test_it_ends_with_its_stream(self, stream):
        """Behaviour 44: deleting in between is no failure."""
        janitor = stream.janitor(every="100ms").start()
        stream.delete()
        janitor._thread.join(30)
        assert not janitor._thread.is_alive()
        janitor.close()
        janitor.close()

    def test_bad_input(self, stream):
        for every in (0, "1ms", "soon"):
            with pytest.raises(InvalidRequestError):
                stream.janitor(every=every)
