"""A group against a model that is a list: whatever its members do, each event is committed once."""

import os
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
)

import filestream
from filestream.clock import ManualClock
from filestream.errors import ConflictError, FencedError, InvalidRequestError, UnavailableError
from filestream.storage.memory import MemoryStorage

strategies = st.sampled_from(["fifo", "round_robin", "hash"])


class GroupMachine(RuleBasedStateMachine):
    """Writers, members that come, work, die and are replaced, truncations and resets."""

    consumers = Bundle("consumers")
    counter = 0

    def __init__(self):
        super().__init__()
        GroupMachine.counter += 1
        self.clock = ManualClock()
        self.stream = filestream.create(
            f"memory://group-model-{GroupMachine.counter}/s",
            clock=self.clock,
            chance=random.Random(GroupMachine.counter),
        )
        self.writers = [self.stream.writer(), self.stream.writer()]
        self.appended = []
        self.committed = []
        self.given_up = set()
        self.hands = {}
        self.generation = 1
        self.group_exists = False

    @initialize(
        target=consumers,
        count=st.integers(0, 12),
        strategy=strategies,
        instances=st.sampled_from([1, 2, 3, "auto"]),
    )
    def begin(self, count, strategy, instances):
        """With all its members at work."""
        self.append(0, count // 2)
        self.append(1, count - count // 2)
        key = "key" if strategy == "hash" else None
        members = [
            self.stream.consumer(
                "g",
                instance=None if instances == "auto" else number,
                instances=instances,
                strategy=strategy,
                key_header=key,
            )
            for number in range(2 if instances == "auto" else instances)
        ]
        self.group_exists = True
        self.hands |= {member: [] for member in members}
        return multiple(*members)

    @rule(
        writer=st.integers(0, 1), count=st.integers(1, 7), late_s=st.sampled_from([0, 0, 5, 90_000])
    )
    def append(self, writer, count, late_s=0):
        """Also events from before, which go into later files."""
        for _ in range(count):
            number = len(self.appended)
            body = f"{self.generation}:{number}".encode()
            stamp = self.clock.now_ms() - 1000 * late_s if late_s else None
            self.writers[writer].append(body, {"key": f"k{number % 5}"}, stamp)
            self.appended.append((self.generation, body))

    @rule(writer=st.integers(0, 1))
    def roll(self, writer):
        self.writers[writer].roll()

    @rule(seconds=st.sampled_from([2, 60, 90_000]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(
        target=consumers,
        instance=st.integers(0, 3),
        instances=st.sampled_from([None, None, None, 1, 2, 3, "auto"]),
        strategy=st.one_of(st.none(), strategies),
        takeover=st.booleans(),
    )
    def open(self, instance, instances, strategy, takeover):
        try:
            state = self.stream.group("g").state()
            is_auto = state.is_auto if instances is None else instances == "auto"
        except filestream.NotFoundError:
            is_auto = instances == "auto"
        try:
            consumer = self.stream.consumer(
                "g",
                instance=None if is_auto else instance,
                instances=instances,
                strategy=strategy,
                key_header="key" if strategy == "hash" else None,
                takeover=takeover,
            )
        except (ConflictError, InvalidRequestError):
            self.group_exists = True
            return multiple()
        self.group_exists = True
        self.hands[consumer] = []
        return consumer

    @rule(consumer=consumers, count=st.integers(1, 6))
    def work(self, consumer, count):
        self.fetch(consumer, count)
        self.commit(consumer)

    @rule(consumer=consumers, count=st.integers(1, 9), reads=st.integers(0, 12))
    def fetch_from_a_bad_disk(self, consumer, count, reads):
        """A read of an event file fails: the fetch does too, or not; nothing is passed over."""
        if consumer._is_closed:
            return
        left = [reads]
        real = MemoryStorage.read

        def read(storage, key, position, size):
            if key.endswith(".dat"):
                left[0] -= 1
                if left[0] == -1:
                    raise UnavailableError("the disk failed, by order of the test")
            return real(storage, key, position, size)

        MemoryStorage.read = read
        try:
            self.fetch(consumer, count)
        except UnavailableError:
            pass
        finally:
            MemoryStorage.read = real

    @rule(count=st.integers(1, 4))
    def everybody_works(self, count):
        for consumer in list(self.hands):
            self.work(consumer, count)

    @rule(consumer=consumes(consumers), count=st.integers(1, 6))
    def die_at_work(self, consumer, count):
        self.fetch(consumer, count)
        self.kill(consumer)

    @rule(target=consumers)
    def replace_everybody(self):
        """A new release is rolled out: all members of the division that is now."""
        for consumer in self.hands:
            consumer.close()
        self.hands = {consumer: [] for consumer in self.hands}
        state = self.stream.group("g").state()
        members = [self.stream.consumer("g") for _ in range(2 if state.is_auto else 0)]
        members += [self.stream.consumer("g", instance=n) for n in range(state.instances)]
        self.hands |= {member: [] for member in members}
        return multiple(*members)

    @rule(consumer=consumers, count=st.integers(1, 6))
    def fetch(self, consumer, count):
        if consumer._is_closed:
            return
        try:
            batch = consumer.fetch(count, 0)
        except FencedError:
            consumer.rollback()
            self.hands[consumer] = []
            return
        assert len(batch) <= max(count, 9)  # One that comes again comes whole.
        # Nobody is handed what was committed.
        done = set(self.committed)
        for event in batch:
            assert event.body not in done, event
            assert event.body not in self.given_up
        self.hands[consumer] += [event.body for event in batch]

    @rule(consumer=consumers)
    def commit(self, consumer):
        if consumer._is_closed:
            return
        hand, self.hands[consumer] = self.hands[consumer], []
        try:
            consumer.commit()
        except FencedError:
            return
        twice = set(hand) & set(self.committed)
        assert not twice, f"committed twice: {sorted(twice)}"
        assert len(hand) == len(set(hand))
        self.committed += hand

    @rule(consumer=consumers)
    def rollback(self, consumer):
        if not consumer._is_closed:
            consumer.rollback()
            self.hands[consumer] = []

    @rule(consumer=consumes(consumers))
    def close(self, consumer):
        consumer.close()
        self.hands[consumer] = []

    @rule(consumer=consumes(consumers))
    def kill(self, consumer):
        """The kernel gives the claim on the slot back, and nobody says good-bye."""
        if not consumer._is_closed:
            kill(consumer)
        self.hands[consumer] = []
        self.clock.advance(2)  # Until the others look after each other.

    @rule(consumer=consumers)
    def lose_session(self, consumer):
        """As after a long pause: the others believe it dead, and it does not know."""
        if not consumer._is_closed:
            consumer._membership.close()
            self.clock.advance(2)

    @rule()
    def truncate(self):
        self.stream.truncate()
        self.generation += 1

    @precondition(lambda self: self.group_exists)
    @rule()
    def reset(self):
        self.stream.group("g").reset("start", force=True)
        self.committed = []
        self.given_up = set()
        # What is in hand now can never be committed.

    @precondition(lambda self: self.group_exists)
    @rule(instances=st.one_of(st.none(), st.integers(1, 3), st.just("auto")), strategy=strategies)
    def reconfigure(self, instances, strategy):
        self.stream.group("g").reconfigure(
            instances=instances,
            strategy=strategy,
            key_header="key" if strategy == "hash" else None,
        )

    def teardown(self):
        try:
            self.drain()
        finally:
            for consumer in self.hands:
                consumer.close()
            for writer in self.writers:
                writer.close()

    def drain(self):
        """One that comes last finds every event that nobody has committed."""
        for consumer in self.hands:
            if not consumer._is_closed:
                kill(consumer)
        if self.group_exists:
            lag = self.stream.group("g").lag()
        with self.stream.consumer("g", instances=1, strategy="fifo") as last:
            found = []
            for _ in range(1000):
                self.clock.advance(2)
                batch = last.fetch(100, 0)
                if not batch:
                    break
                found += [event.body for event in batch]
                last.commit()
            # Also what was passed by, because an older division had processed it.
            last.commit()
            now = [body for generation, body in self.appended if generation == self.generation]
            done = [body for body in self.committed if body in set(now)]
            assert sorted(done + found) == sorted(now)
            if self.group_exists:
                assert lag.events == len(found)
            assert self.stream.group("g").lag().events == 0
            # And nothing of it stays behind in the state.
            state = self.stream.group("g").state()
            assert state.claims == ()
            assert len(state.layers) == 1


def kill(consumer):
    consumer._is_closed = True
    consumer._hand_out.forget_reader()
    consumer._membership.close()


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(
    max_examples=int(os.environ.get("FILESTREAM_GROUP_EXAMPLES", "100")),
    stateful_step_count=50,
    derandomize="FILESTREAM_GROUP_EXAMPLES" not in os.environ,
    deadline=None,
)
