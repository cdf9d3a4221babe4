"""An object store behind a network that loses, delays, cuts and falsifies: clear errors, bounded waits."""

import logging
import pickle
import random
import threading

import pytest
from servers.proxy import Fault, Proxy
from servers.s3 import SECRET, options_for

import filestream
from filestream.errors import (
    ConflictError,
    FilestreamError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from filestream.storage import objects
from filestream.storage.objects import ObjectStorage
from filestream.storage.open import open_storage

pytestmark = pytest.mark.s3


@pytest.fixture
def proxy(s3):
    proxy = Proxy(s3.port)
    yield proxy
    proxy.close()


@pytest.fixture
def options(proxy):
    return options_for(proxy.endpoint)


@pytest.fixture
def storage(place, options):
    return ObjectStorage(place("s3")[0], options)


def first_put(fault):
    """Do this to the first PUT alone."""
    seen = []

    def decide(method, path, number):
        if method == "PUT" and not seen:
            seen.append(path)
            return fault
        return None

    return decide


def each_put(fault):
    return lambda method, path, number: fault if method == "PUT" else None


@pytest.mark.parametrize("is_forwarded", [True, False])
@pytest.mark.parametrize("status", [0, 409, 412, 500, 503])
def test_a_put_counts_once_whatever_is_answered(proxy, storage, status, is_forwarded):
    """Also when the server had written, and said that it had not, or nothing."""
    proxy.decide = first_put(Fault(status=status, is_forwarded=is_forwarded))

    storage.put_if_absent("file", b"mine")

    assert storage.read("file", 0, 10) == b"mine"


@pytest.mark.parametrize("status", [0, 409, 412, 500])
def test_a_lost_answer_does_not_hide_that_another_was_first(proxy, storage, status):
    storage.put_if_absent("file", b"theirs")
    proxy.decide = first_put(Fault(status=status, is_forwarded=False))

    with pytest.raises(ConflictError):
        storage.put_if_absent("file", b"mine")

    assert storage.read("file", 0, 10) == b"theirs"


def test_a_store_that_fails_for_ever_is_given_up(proxy, storage, monkeypatch):
    monkeypatch.setattr(objects, "_PUT_S_MAX", 1.0)
    proxy.decide = each_put(Fault(status=500, is_forwarded=False))

    with pytest.raises(UnavailableError, match="500"):
        storage.put_if_absent("file", b"x")

    assert not storage.exists("file")


def test_a_conflict_that_nobody_can_resolve_is_no_conflict(proxy, storage, monkeypatch):
    """Written, the answer lost, and then neither a PUT nor a look gets through."""
    monkeypatch.setattr(objects, "_PUT_S_MAX", 0.5)
    seen = []

    def decide(method, path, number):
        if method == "PUT":
            seen.append(path)
            return Fault(status=412 if len(seen) > 1 else 0)
        return Fault(status=403, is_forwarded=False)

    proxy.decide = decide
    with pytest.raises(UnavailableError):
        storage.put_if_absent("file", b"mine")


def test_reads_are_tried_again(proxy, storage):
    storage.put_if_absent("file", b"x" * 100_000)
    for fault in (Fault(status=500), Fault(status=0), Fault(is_cut=True), Fault(delay_s=0.2)):
        seen = []

        def decide(method, path, number, fault=fault, seen=seen):
            if method == "GET" and not seen:
                seen.append(path)
                return fault
            return None

        proxy.decide = decide
        assert storage.read("file", 10, 100_000) == b"x" * 99_990
        assert seen


def test_what_is_wrong_is_said_without_the_secret(s3, place, caplog):
    caplog.set_level(logging.DEBUG)
    url = place("s3")[0]
    wrong = "wrong-secret-of-the-test"
    refused = ObjectStorage(url, s3.options | {"secret_access_key": wrong})
    with pytest.raises(UnavailableError, match="credentials") as one:
        refused.put_if_absent("file", b"x")
    with pytest.raises(UnavailableError, match="credentials") as two:
        refused.list("")
    with pytest.raises(NotFoundError, match="no such bucket") as three:
        ObjectStorage("s3://nothing-here/x", s3.options).put_if_absent("file", b"x")
    with pytest.raises(UnavailableError, match="does not answer") as four:
        filestream.create("s3://bucket/s", storage_options=options_for("http://127.0.0.1:1"))
    with pytest.raises(InvalidRequestError, match="nonsense"):
        ObjectStorage(url, {"nonsense": "x"})
    for secret in (wrong, SECRET):
        for found in (one, two, three, four):
            assert secret not in "".join(map(str, (found.value, repr(found.value.__cause__))))
            assert found.value.__suppress_context__ or found.value.__context__ is None
        assert secret not in caplog.text
        assert secret not in repr(refused)


def test_a_storage_travels_to_other_processes_with_its_options(storage):
    storage.put_if_absent("file", b"x")

    assert pickle.loads(pickle.dumps(storage)).read("file", 0, 1) == b"x"


def test_a_user_and_a_password_in_a_url_are_refused_and_not_repeated():
    with pytest.raises(InvalidRequestError) as found:
        open_storage("s3://key:hunter2@bucket/path")

    assert "hunter2" not in str(found.value)


@pytest.mark.parametrize("turn", range(3))
def test_appends_through_a_bad_network_are_there_once_and_in_order(
    proxy, options, place, monkeypatch, turn
):
    """Every fifth request fails in some way, and sometimes all of them for a while."""
    monkeypatch.setattr(objects, "_PUT_S_MAX", 1.0)
    url = place("s3")[0]
    stream = filestream.create(url, storage_options=options, linger="5ms")
    chance = random.Random(turn)
    faults = [
        Fault(status=0),
        Fault(status=0, is_forwarded=False),
        Fault(status=500),
        Fault(status=503, is_forwarded=False),
        Fault(status=409),
        Fault(status=412),
        Fault(delay_s=0.05),
    ]
    outage = threading.Event()

    def decide(method, path, number):
        if outage.is_set() and method == "PUT":
            return Fault(status=500, is_forwarded=chance.random() < 0.02)
        if method == "PUT" and chance.random() < 0.2:
            return chance.choice(faults)
        return None

    proxy.decide = decide
    acknowledged, refused = [], []
    with stream.writer() as writer:

        def produce(me):
            for number in range(40):
                body = b"%d %d" % (me, number)
                try:
                    writer.append(body)
                except FilestreamError as error:
                    assert isinstance(error, UnavailableError), error
                    refused.append(body)
                else:
                    acknowledged.append(body)
                if me == 0 and number in (10, 25):
                    outage.set()
                elif me == 0 and number in (11, 26):
                    outage.clear()

        threads = [threading.Thread(target=produce, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outage.clear()
        proxy.decide = lambda method, path, number: None
        writer.append(b"9 0")
        acknowledged.append(b"9 0")

    assert len(acknowledged) + len(refused) == 161
    assert refused, "the outages were not noticed"
    found = [event.body for event in stream.read()]
    assert not set(acknowledged) - set(found), "an acknowledged event is lost"
    assert len(found) == len(set(found)), "an event is there twice"
    assert set(found) <= set(acknowledged) | set(refused), "an event was invented"
    for me in range(4):
        mine = [int(body.split()[1]) for body in found if body.split()[0] == b"%d" % me]
        assert mine == sorted(mine), "events are out of order"
    assert list(stream.verify()) == []


class TestProbe:
    def test_a_store_that_takes_conditions_and_ignores_them_is_refused(self, rclone):
        with pytest.raises(InvalidRequestError, match="put-if-absent") as found:
            filestream.create("s3://bucket/clicks", storage_options=rclone.options)

        assert "put race" in str(found.value)
        assert not filestream.exists("s3://bucket/clicks", storage_options=rclone.options)

    @pytest.mark.parametrize("kind", ["s3", "moto"])
    def test_stores_that_keep_their_word_pass(self, kind, place):
        url, options = place(kind)
        stream = filestream.create(url, storage_options=options)

        assert stream.coordination == "conditional"
        assert [e.name for e in open_storage(url, options).list("")] == ["_stream"]

    def test_a_store_without_compare_and_set_keeps_versioned_documents(self, place, monkeypatch):
        def never(self, key, data, tag):
            raise UnavailableError("501 NotImplemented, by order of the test")

        url, options = place("s3")
        monkeypatch.setattr(ObjectStorage, "replace", never)

        stream = filestream.create(url, storage_options=options)

        assert stream.coordination == "embedded"
        assert stream.truncate().generation == 2
