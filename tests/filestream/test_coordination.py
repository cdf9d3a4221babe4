import os
import signal

import pytest

from filestream.clock import ManualClock
from filestream.coordination.base import Document
from filestream.coordination.claims import LeasedClaims
from filestream.coordination.conditional import ConditionalPropertyStore
from filestream.coordination.embedded import EmbeddedPropertyStore
from filestream.coordination.open import open_property_store
from filestream.coordination.process import is_known_dead, own_process
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    UnavailableError,
    UnsupportedVersionError,
)
from filestream.storage.hdfs import HdfsStorage
from filestream.storage.local import LocalStorage
from filestream.storage.memory import MemoryStorage
from filestream.storage.objects import ObjectStorage
from filestream.testing.property_store_suite import PropertyStoreSuite
from filestream.testing.storage_suite import eventually, is_held


class TestEmbeddedOnLocalDisk(PropertyStoreSuite):
    @pytest.fixture
    def store(self, tmp_path):
        return EmbeddedPropertyStore(LocalStorage(tmp_path), "_store")


class TestEmbeddedInMemory(PropertyStoreSuite):
    @pytest.fixture
    def store(self):
        return EmbeddedPropertyStore(MemoryStorage(), "_store")


class TestEmbeddedWithoutLocks(PropertyStoreSuite):
    """On a store where nobody but a lease tells that a claim's holder is dead."""

    @pytest.fixture
    def store(self):
        return EmbeddedPropertyStore(ObjectStorage("memory://bucket"), "_store")


class TestConditionalInMemory(PropertyStoreSuite):
    @pytest.fixture
    def store(self):
        return ConditionalPropertyStore(ObjectStorage("memory://bucket"), "_store")


@pytest.mark.s3
class TestConditionalOnS3(PropertyStoreSuite):
    @pytest.fixture(params=["s3", "moto"])
    def store(self, request, place):
        return ConditionalPropertyStore(ObjectStorage(*place(request.param)), "_store")


@pytest.mark.hdfs
class TestEmbeddedOnHdfs(PropertyStoreSuite):
    @pytest.fixture
    def store(self, place):
        return EmbeddedPropertyStore(HdfsStorage(*place("hdfs")), "_store")


def test_old_versions_are_cleaned_up():
    storage = MemoryStorage()
    store = EmbeddedPropertyStore(storage, "_store")

    for version in range(100):
        store.compare_and_set("name", b"x", version=version)

    assert len(storage.list("_store/name")) <= 9


def test_a_writer_that_slept_through_a_clean_up_gets_a_conflict(monkeypatch):
    storage = MemoryStorage()
    store = EmbeddedPropertyStore(storage, "_store")
    store.compare_and_set("name", b"first", version=0)
    real = storage.put_if_absent
    others = EmbeddedPropertyStore(storage, "_store")

    def sleepy(key, data):
        monkeypatch.setattr(storage, "put_if_absent", real)
        for version in range(1, 30):  # meanwhile others go far ahead, and clean up
            others.compare_and_set("name", b"other", version=version)
        real(key, data)

    monkeypatch.setattr(storage, "put_if_absent", sleepy)
    with pytest.raises(ConflictError):
        store.compare_and_set("name", b"late", version=1)

    assert store.get("name").version == 30
    assert store.get("name").value == b"other"


@pytest.mark.parametrize("others", [1, 7, 8, 20, 31])
def test_a_setter_that_was_overtaken_at_once_is_told_that_it_counted(monkeypatch, others):
    """Stopped right after its put: the others went far ahead, and cleaned its version up."""
    storage = MemoryStorage()
    store = EmbeddedPropertyStore(storage, "_store")
    store.compare_and_set("name", b"first", version=0)
    real = storage.put_if_absent
    ahead = EmbeddedPropertyStore(storage, "_store")

    def sleepy(key, data):
        monkeypatch.setattr(storage, "put_if_absent", real)
        real(key, data)
        for version in range(2, 2 + others):
            ahead.compare_and_set("name", b"other", version=version)

    monkeypatch.setattr(storage, "put_if_absent", sleepy)

    assert store.compare_and_set("name", b"mine", version=1).version == 2
    assert store.get("name").version == 2 + others


def test_a_setter_that_was_overtaken_too_often_says_that_it_does_not_know(monkeypatch):
    storage = MemoryStorage()
    store = EmbeddedPropertyStore(storage, "_store")
    real = storage.put_if_absent
    ahead = EmbeddedPropertyStore(storage, "_store")

    def sleepy(key, data):
        monkeypatch.setattr(storage, "put_if_absent", real)
        real(key, data)
        for version in range(1, 50):
            ahead.compare_and_set("name", b"other", version=version)

    monkeypatch.setattr(storage, "put_if_absent", sleepy)

    with pytest.raises(UnavailableError, match="too many others"):
        store.compare_and_set("name", b"mine", version=0)


def test_documents_of_before_the_marks_are_read(tmp_path):
    storage = MemoryStorage()
    storage.put_if_absent("_store/name/0000000003", b"value\n")
    store = EmbeddedPropertyStore(storage, "_store")

    assert store.get("name") == Document(b"value\n", 3)
    assert store.compare_and_set("name", b"more", version=3).version == 4


def test_a_document_has_a_limit():
    store = EmbeddedPropertyStore(MemoryStorage(), "_store")

    with pytest.raises(InvalidRequestError):
        store.compare_and_set("name", b"x" * (2 << 20), version=0)


def test_an_unknown_store_is_a_later_version():
    with pytest.raises(UnsupportedVersionError, match="etcd"):
        open_property_store("etcd://host:2181/x", MemoryStorage(), "_store", "id")


class TestLeasedClaims:
    """Where nobody but a lease tells that a holder is dead."""

    @pytest.fixture
    def documents(self):
        return ConditionalPropertyStore(ObjectStorage("memory://bucket"), "_store")

    def test_one_that_is_not_renewed_is_taken_over_after_twice_its_lease(self, documents):
        clock = ManualClock()
        ours = LeasedClaims(documents, 30, clock)
        theirs = LeasedClaims(documents, 30, clock)
        claim = ours.claim("w/name")
        clock.advance(59)
        with pytest.raises(ConflictError):
            theirs.claim("w/name")
        assert theirs.holders("w") == ["w/name"]

        clock.advance(2)
        taken = theirs.claim("w/name")

        assert is_held(taken)
        # We hear of it when we renew, and giving it back does not take it from them.
        ours._renew(claim)
        assert not is_held(claim)
        claim.close()
        assert ours.holders("w") == ["w/name"]

    def test_renewing_keeps_it(self, documents):
        clock = ManualClock()
        ours, theirs = (LeasedClaims(documents, 30, clock) for _ in range(2))
        claim = ours.claim("w/name")
        for _ in range(10):
            clock.advance(40)
            ours._renew(claim)

        with pytest.raises(ConflictError):
            theirs.claim("w/name")
        assert is_held(claim)
        claim.close()
        assert list(theirs.holders("w")) == []

    def test_a_renewal_whose_answer_was_lost_loses_nothing(self, documents):
        claims = LeasedClaims(documents, 30)
        claim = claims.claim("w/name")
        real = documents.compare_and_set

        def lose(name, value, *, version):
            real(name, value, version=version)
            raise UnavailableError("the answer was lost, by order of the test")

        documents.compare_and_set = lose
        claims._renew(claim)
        del documents.compare_and_set
        claims._renew(claim)
        assert is_held(claim)
        documents.compare_and_set = lose
        other = claims.claim("w/other")
        claim.close()
        del documents.compare_and_set
        assert is_held(other)
        assert claims.holders("w") == ["w/other"]
        other.close()
        assert list(claims.holders("w")) == []

    def test_it_is_renewed_by_itself(self, documents):
        claims = LeasedClaims(documents, 0.3)
        with claims.claim("w/name") as claim:
            first = documents.get("_claims/w/name").version
            eventually(lambda: documents.get("_claims/w/name").version > first + 2)
            assert is_held(claim)

    def test_it_is_not_trusted_when_it_cannot_be_renewed(self, documents):
        claims = LeasedClaims(documents, 0.2)
        claim = claims.claim("w/name")

        def never(name, value, *, version):
            raise UnavailableError("by order of the test")

        documents.compare_and_set = never
        eventually(lambda: not is_held(claim))
        del documents.compare_and_set
        # Nobody else came in between, so it was ours all the time.
        eventually(lambda: is_held(claim))
        claim.close()

    def test_that_of_a_process_that_died_here_is_free_at_once(self, tmp_path):
        documents = EmbeddedPropertyStore(LocalStorage(tmp_path), "_store")
        child = os.fork()
        if child == 0:
            LeasedClaims(documents).claim("w/name")
            os._exit(0)
        os.waitpid(child, 0)
        assert b"holder" in documents.get("_claims/w/name").value, "it never held the name"

        with LeasedClaims(documents).claim("w/name") as claim:
            assert is_held(claim)

    def test_that_of_a_process_that_was_stopped_here_is_not(self, tmp_path):
        documents = EmbeddedPropertyStore(LocalStorage(tmp_path), "_store")
        child = os.fork()
        if child == 0:
            LeasedClaims(documents).claim("w/name")
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)
        try:
            with pytest.raises(ConflictError):
                LeasedClaims(documents).claim("w/name")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def test_a_forked_child_does_not_give_it_back(self, tmp_path):
        documents = EmbeddedPropertyStore(LocalStorage(tmp_path), "_store")
        claims = LeasedClaims(documents)
        claim = claims.claim("w/name")
        child = os.fork()
        if child == 0:
            claim.close()
            os._exit(0)
        os.waitpid(child, 0)

        assert claims.holders("w") == ["w/name"]
        claim.close()
        assert list(claims.holders("w")) == []

    @pytest.mark.parametrize("value", [b"", b"no json", b"[]", b'{"holder": 1}', b"\xff"])
    def test_a_damaged_one_holds_nobody_up(self, documents, value):
        documents.compare_and_set("_claims/w/name", value, version=0)

        claims = LeasedClaims(documents)
        with claims.claim("w/name") as claim:
            assert is_held(claim)
            assert list(claims.holders("w")) == ["w/name"]


@pytest.mark.parametrize("process", ["", "x", "a/b/c", "/1/2", "///", "boot/pid:[1]/99999999/1"])
def test_a_process_that_is_not_of_this_machine_is_not_known_to_be_dead(process):
    assert not is_known_dead(process)
    assert not is_known_dead(own_process())


class TestConditional:
    def test_an_answer_that_was_lost_is_found_again(self, monkeypatch):
        storage = ObjectStorage("memory://bucket")
        store = ConditionalPropertyStore(storage, "_store")
        store.compare_and_set("name", b"one", version=0)
        real = storage.replace

        def lose(key, data, tag):
            real(key, data, tag)
            raise UnavailableError("the answer was lost, by order of the test")

        monkeypatch.setattr(storage, "replace", lose)
        assert store.compare_and_set("name", b"two", version=1) == Document(b"two", 2)
        monkeypatch.undo()
        assert store.get("name") == Document(b"two", 2)

    def test_one_who_was_overtaken_after_his_answer_was_lost_knows_that_he_counted(
        self, monkeypatch
    ):
        storage = ObjectStorage("memory://bucket")
        store, other = (ConditionalPropertyStore(storage, "_store") for _ in range(2))
        store.compare_and_set("name", b"one", version=0)
        real = storage.replace

        def lose(key, data, tag):
            real(key, data, tag)
            monkeypatch.undo()
            other.compare_and_set("name", b"three", version=2)
            raise UnavailableError("the answer was lost, by order of the test")

        monkeypatch.setattr(storage, "replace", lose)
        assert store.compare_and_set("name", b"two", version=1).version == 2
        assert store.get("name") == Document(b"three", 3)

    def test_a_store_that_does_not_answer_is_given_up(self, monkeypatch):
        storage = ObjectStorage("memory://bucket")
        store = ConditionalPropertyStore(storage, "_store")
        store.compare_and_set("name", b"one", version=0)

        def never(key, data, tag):
            raise UnavailableError("no answer, by order of the test")

        monkeypatch.setattr(storage, "replace", never)
        with pytest.raises(UnavailableError):
            store.compare_and_set("name", b"two", version=1)
        assert store.get("name") == Document(b"one", 1)

    def test_every_flipped_bit_is_noticed_or_harmless(self):
        storage = ObjectStorage("memory://bucket")
        ConditionalPropertyStore(storage, "_store").compare_and_set("name", b"{}", version=0)
        data, _ = storage.get("_store/name.doc")
        for at in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[at // 8] ^= 1 << at % 8
            damaged = ObjectStorage("memory://bucket")
            damaged.put_if_absent("_store/name.doc", bytes(flipped))
            try:
                found = ConditionalPropertyStore(damaged, "_store").get("name")
            except CorruptDataError:
                continue
            # The value has a checksum of its own, see ``filestream.documents``.
            assert found.version == 1

    def test_an_answer_is_believed_for_a_second_and_settled(self):
        storage = ObjectStorage("memory://bucket")
        ours, theirs = (ConditionalPropertyStore(storage, "_store") for _ in range(2))
        ours.compare_and_set("name", b"one", version=0)
        assert theirs.get("name").version == 1
        ours.compare_and_set("name", b"two", version=1)
        assert theirs.is_current("name", 1), "an answer is not believed: each commit asks"

        ours.settle("name", 2)

        assert not theirs.is_current("name", 1)
