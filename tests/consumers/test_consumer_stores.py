"""Groups of consumers on HDFS and in a bucket, coordinated beside the stream, with leased claims."""

import contextlib

import pytest
from servers.processes import kill, pipe, start

import filestream
from filestream.errors import ConflictError, FencedError

remote = pytest.mark.parametrize(
    "home",
    [
        pytest.param("hdfs", marks=pytest.mark.hdfs),
        pytest.param("s3", marks=pytest.mark.s3),
    ],
    indirect=True,
)
pytestmark = [remote, pytest.mark.timeout(120)]


def fill(stream, count):
    with stream.writer() as writer:
        writer.append_many([(b"%d" % n, {"key": f"k{n % 7}"}) for n in range(count)])


def take_all(consumer):
    found = []
    while batch := consumer.fetch(40, timeout=0.5):
        found += [int(event.body) for event in batch]
        consumer.commit()
    return found


def test_what_is_committed_never_comes_again_and_the_rest_does(make):
    stream = make("s")
    fill(stream, 100)
    with stream.consumer("g", start="start") as consumer:
        assert [int(event.body) for event in consumer.fetch(30)] == list(range(30))
        consumer.commit()
        assert len(consumer.fetch(30)) == 30
        consumer.rollback()
    with filestream.open(stream.url).consumer("g") as consumer:
        assert take_all(consumer) == list(range(30, 100))
    assert stream.group("g").lag().events == 0


@pytest.mark.parametrize("strategy", ["round_robin", "hash"])
def test_two_instances_share_and_one_instance_is_one_process(make, strategy):
    stream = make("s")
    fill(stream, 140)
    options = {"instances": 2, "strategy": strategy, "start": "start"}
    if strategy == "hash":
        options["key_header"] = "key"
    with (
        stream.consumer("g", instance=0, **options) as one,
        filestream.open(stream.url).consumer("g", instance=1, **options) as two,
    ):
        with pytest.raises(ConflictError):
            filestream.open(stream.url).consumer("g", instance=1, **options).fetch(1)
        first, second = take_all(one), take_all(two)
    assert first
    assert second
    assert sorted(first + second) == list(range(140))


def hold_a_batch(url, sender):
    consumer = filestream.open(url).consumer("g", start="start", instances="auto")
    bodies = [event.body for event in consumer.fetch(50, timeout=20)]
    sender.send_bytes(b" ".join(bodies))
    sender.recv_bytes()


def test_what_a_killed_member_had_in_hand_comes_to_the_others(make):
    stream = make("s")
    fill(stream, 100)
    receiver, sender = pipe()
    member = start(hold_a_batch, stream.url, sender)
    sender.close()
    try:
        held = [int(body) for body in receiver.recv_bytes().split()]
        assert held
    finally:
        kill(member)
    found = []
    with filestream.open(stream.url).consumer("g", instances="auto") as consumer:
        for _ in range(200):
            with contextlib.suppress(FencedError):
                found += [int(event.body) for event in consumer.fetch(50, timeout=0.2)]
                consumer.commit()
            if len(found) >= 100:
                break
    assert sorted(found) == list(range(100))


def test_growth_is_told(make):
    stream = make("s")
    with stream.watch_size("1KiB", timeout="20s") as growths:
        with stream.writer() as writer:
            writer.append(bytes(3000))
        assert next(growths).grown_bytes >= 3000
