"""A stream against a model that is a plain list: appends, rolls, truncations, clocks, crashes, damage."""

import random
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

import filestream
from filestream.clock import ManualClock

START = 1_401_408_000_000


class StreamMachine(RuleBasedStateMachine):
    """What is read must be what was acknowledged, in the merged order, whatever happened."""

    offsets = Bundle("offsets")

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock(START)
        self.stream = filestream.create(
            Path(self.folder.name) / "s",
            clock=self.clock,
            chance=random.Random(1),
            partition_duration="1h",
            block_size="4KiB",
            segment_size="8KiB",
        )
        self.writers = {}
        self.acknowledged = []  # (timestamp, writer, sequence, position, index, body)
        self.count = 0

    def teardown(self):
        for writer in getattr(self, "writers", {}).values():
            writer.close()
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def _writer(self, name):
        if name not in self.writers:
            self.writers[name] = self.stream.writer(name)
        return self.writers[name]

    def _expected(self):
        return [row[-1] for row in sorted(self.acknowledged)]

    @rule(
        target=offsets,
        name=st.sampled_from(["file.1", "file.10", "z"]),
        sizes=st.lists(st.integers(0, 6000), min_size=1, max_size=5),
        lag=st.none() | st.integers(-7_200_000, 7_200_000),
    )
    def append(self, name, sizes, lag):
        writer = self._writer(name)
        bodies = []
        for size in sizes:
            bodies.append(b"%d:" % self.count + bytes(size))
            self.count += 1
        if lag is None:
            offsets = list(writer.append_many(bodies))
        else:
            stamp = self.clock.now_ms() + lag
            offsets = list(writer.append_many(bodies, stamp))
        stamps = {}
        for event in self.stream.read():
            stamps[event.offset] = event.timestamp_ms
        for offset, body in zip(offsets, bodies, strict=True):
            assert offset in stamps, "an acknowledged event cannot be read"
            if lag is not None:
                assert 0 <= stamps[offset] - stamp <= 1000
            row = (stamps[offset], name, offset.sequence, offset.position, offset.index, body)
            self.acknowledged.append(row)
        return multiple(*offsets)

    @rule(name=st.sampled_from(["file.1", "file.10", "z"]))
    def roll(self, name):
        self._writer(name).roll()

    @rule(name=st.sampled_from(["file.1", "file.10", "z"]))
    def close(self, name):
        if name in self.writers:
            self.writers.pop(name).close()

    @rule(milliseconds=st.integers(-5_000_000, 8_000_000))
    def move_clock(self, milliseconds):
        self.clock.jump(milliseconds)

    @rule()
    def truncate(self):
        self.stream.truncate()
        self.acknowledged = []

    @rule()
    def retention(self):
        self.stream.apply_retention()

    @rule(target=offsets, name=st.sampled_from(["file.1", "z"]), count=st.integers(2, 4))
    def append_and_roll(self, name, count):
        found = []
        for _ in range(count):
            found.append(self._append_one(name))
            self.roll(name)
        return multiple(*found)

    def _append_one(self, name):
        body = b"%d:" % self.count
        self.count += 1
        offset = self._writer(name).append(body)
        (stamp,) = [e.timestamp_ms for e in self.stream.read() if e.offset == offset]
        row = (stamp, name, offset.sequence, offset.position, offset.index, body)
        self.acknowledged.append(row)
        return offset

    @rule(removes=st.booleans())
    def compact(self, removes):
        self.clock.jump(4 * 3_600_000)
        self.stream.compact(after="1m", grace="1h", pack_size="1MiB")
        if removes:
            self.clock.jump(2 * 3_600_000)
            self.stream.compact(after="1m", grace="1h", pack_size="1MiB")

    @rule(offset=offsets)
    def read_from_an_offset(self, offset):
        if offset.generation != self.stream.generation:
            return
        events = list(self.stream.read())
        place = [event.offset for event in events].index(offset)
        assert [e.body for e in self.stream.read(offset)] == [e.body for e in events[place:]]
        assert [e.body for e in self.stream.read("start", offset)] == [
            e.body for e in events[:place]
        ]

    @rule(count=st.integers(0, 12))
    def read_the_last(self, count):
        expected = self._expected()
        found = [event.body for event in self.stream.read(f"-{count}")]
        assert found == expected[max(0, len(expected) - count) :]

    @rule()
    def lose_the_indexes(self):
        for path in Path(self.folder.name).glob("s/0*/*/*.idx"):
            path.write_bytes(b"")

    @rule()
    def verify(self):
        assert [f for f in self.stream.verify(rebuild_index=True) if f.level == "damage"] == []

    @invariant()
    def everything_acknowledged_is_read_in_order(self):
        if not hasattr(self, "stream"):
            return
        assert [event.body for event in self.stream.read()] == self._expected()
        rows = sum(batch.num_rows for batch in self.stream.scan(columns=["index"]))
        assert rows == len(self.acknowledged)


StreamMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestStream = StreamMachine.TestCase
