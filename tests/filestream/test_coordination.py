import pytest

from filestream.coordination.base import Document
from filestream.coordination.conditional import ConditionalPropertyStore
from filestream.coordination.embedded import EmbeddedPropertyStore
from filestream.coordination.open import open_property_store
from filestream.errors import (
    ConflictError,
    InvalidRequestError,
    UnavailableError,
    UnsupportedVersionError,
)
from filestream.storage.hdfs import HdfsStorage
from filestream.storage.local import LocalStorage
from filestream.storage.memory import MemoryStorage
from filestream.storage.objects import ObjectStorage
from filestream.testing.property_store_suite import PropertyStoreSuite


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
