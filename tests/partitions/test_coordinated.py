"""What several processes agree on, on both property stores."""

import threading
import time

import pytest

import filestream
from filestream.documents import decode_document


@pytest.fixture
def stream(tmp_path, coordination):
    return filestream.create(tmp_path / "s", coordination=coordination)


def in_threads(*steps):
    threads = [threading.Thread(target=step) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_ten_truncations_from_two_threads_advance_by_ten(stream):
    """Behaviour 40: and whoever watches hears of the last."""
    heard = []
    last = threading.Event()

    def tell(document):
        if document.version:
            heard.append(decode_document(document.value, url="")["generation"])
            if heard[-1] == 11:
                last.set()

    def truncate():
        for _ in range(5):
            filestream.open(stream.url).truncate()

    with stream._store.watch("generation", tell):
        in_threads(truncate, truncate)
        assert last.wait(30)

    assert stream.generation == 11
    assert heard == sorted(heard)


def test_updates_of_two_properties_from_two_threads_merge(stream):
    """Behaviour 41: 100 each; the last values stand, and none of the other was lost."""

    def update(name, unit):
        mine = filestream.open(stream.url)
        for number in range(1, 101):
            mine.update_properties(**{name: f"{number}{unit}"})

    in_threads(lambda: update("ttl", "h"), lambda: update("segment_size", "MiB"))

    now = filestream.open(stream.url).properties
    assert (now.ttl_ms, now.segment_size_bytes_max) == (100 * 3_600_000, 100 << 20)


def test_a_truncation_reaches_writers_and_tails_of_other_streams_objects(stream):
    with (
        filestream.open(stream.url).writer() as writer,
        filestream.open(stream.url).tail("start", timeout="30s") as tail,
    ):
        writer.append(b"old")
        assert next(tail).body == b"old"

        stream.truncate()

        assert writer.append(b"new").generation == 2
        assert next(tail).body == b"new"
    assert [event.body for event in stream.read()] == [b"new"]


def test_a_writer_without_traffic_leaves_a_truncated_generation(stream):
    with stream.writer() as writer:
        writer.append(b"old")
        stream.truncate()
        until_s = time.monotonic() + 30
        while writer._lane.is_open:
            assert time.monotonic() < until_s
            time.sleep(0.02)  # noqa: TID251 - waits for another thread


def test_a_group_of_one_stream_knows_nothing_of_its_namesake(stream, tmp_path):
    """Behaviour 27: the same name beside it, in the same store."""
    other = filestream.create(tmp_path / "elsewhere" / "s", coordination=stream.coordination)
    for one, body in ((stream, b"here"), (other, b"there")):
        with one.writer() as writer:
            writer.append(body)

    for one, body in ((stream, b"here"), (other, b"there")):
        with one.consumer("g") as consumer:
            assert [event.body for event in consumer.fetch()] == [body]
            consumer.commit()
    stream.group("g").remove()
    assert other.groups() == ["g"]
    assert stream.groups() == []
