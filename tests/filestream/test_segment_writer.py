import pytest

from filestream.codec import encode_event
from filestream.errors import ConflictError, UnavailableError
from filestream.segment_encoder import SegmentOptions
from filestream.segment_reader import SegmentReader, decode_block
from filestream.segment_writer import SegmentWriter
from filestream.testing.faults import FaultyStorage

PROPERTIES = {"file.id": "00" * 16, "stream": "s"}
EVENTS = [encode_event(b"one"), encode_event(b"two")]


def bodies(storage, key="a/x.000000.dat"):
    reader = SegmentReader(storage, key)
    found = []
    while blocks := reader.read_blocks(finished=True):
        found += [body for block in blocks for _, body, _ in decode_block(block, key)]
    return found


def test_a_segment_is_written_once_and_read_back():
    storage = FaultyStorage()
    writer = SegmentWriter(storage, "a/x.000000", PROPERTIES)
    writer.add(EVENTS, 5)
    writer.add(EVENTS, [6, 9])
    writer.commit()
    writer.seal(10)

    assert bodies(storage) == [b"one", b"two"] * 2
    reader = SegmentReader(storage, "a/x.000000.dat")
    footer = reader.footer()
    assert (footer.blocks, footer.events, footer.first_timestamp_ms) == (2, 4, 5)
    assert (footer.last_timestamp_ms, footer.closed_at_ms) == (9, 10)
    assert [entry.position for entry in reader.index()] == [reader.open_header().size]
    with pytest.raises(ConflictError):
        SegmentWriter(storage, "a/x.000000", PROPERTIES)


def test_several_blocks_are_one_sync():
    storage = FaultyStorage()
    writer = SegmentWriter(storage, "a/x.000000", PROPERTIES)
    before = storage.syncs
    for stamp in range(1, 11):
        writer.add(EVENTS, stamp)
    writer.commit()

    assert storage.syncs == before + 1


@pytest.mark.parametrize("fails", ["write", "sync"])
def test_after_a_failure_not_one_byte_more_is_written(fails):
    storage = FaultyStorage()
    writer = SegmentWriter(storage, "a/x.000000", PROPERTIES)

    def before(number, name):
        if name == fails:
            raise UnavailableError("by order of the test")

    storage.before_call = before
    writer.add(EVENTS, 5)
    with pytest.raises(UnavailableError):
        writer.commit()
    storage.before_call = lambda number, name: None
    size = storage.size("a/x.000000.dat")
    calls = storage.calls

    assert writer.is_poisoned
    writer.add(EVENTS, 6)
    with pytest.raises(UnavailableError, match="given up"):
        writer.commit()
    with pytest.raises(UnavailableError, match="given up"):
        writer.seal(7)
    assert (storage.size("a/x.000000.dat"), storage.calls) == (size, calls)


def test_a_level_that_does_not_wait_makes_no_sync_and_loses_nothing_at_sealing():
    for level in ("os", "memory"):
        storage = FaultyStorage()
        options = SegmentOptions(acknowledgement=level)
        writer = SegmentWriter(storage, "a/x.000000", PROPERTIES, options)
        before = storage.syncs
        for stamp in range(1, 6):
            writer.add(EVENTS, stamp)
            writer.commit()
        assert storage.syncs == before
        assert bodies(storage) == ([b"one", b"two"] * 5 if level == "os" else [])
        writer.seal(9)
        assert bodies(storage) == [b"one", b"two"] * 5


def test_a_head_that_fails_before_its_first_byte_leaves_no_file():
    storage = FaultyStorage()

    def before(number, name):
        if name == "write":
            raise UnavailableError("by order of the test")

    storage.before_call = before
    with pytest.raises(UnavailableError):
        SegmentWriter(storage, "a/x.000000", PROPERTIES)
    assert not storage.exists("a/x.000000.dat")


def test_a_head_that_fails_after_its_first_byte_keeps_its_name():
    storage = FaultyStorage()
    storage.short_writes = 10
    with pytest.raises(UnavailableError):
        SegmentWriter(storage, "a/x.000000", PROPERTIES)

    assert storage.size("a/x.000000.dat") == 10
    assert bodies(storage) == []
