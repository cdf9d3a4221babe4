import pytest

from filestream.coordination.embedded import EmbeddedPropertyStore
from filestream.coordination.open import open_property_store
from filestream.errors import ConflictError, InvalidRequestError, UnsupportedVersionError
from filestream.storage.local import LocalStorage
from filestream.storage.memory import MemoryStorage
from filestream.testing.property_store_suite import PropertyStoreSuite


class TestEmbeddedOnLocalDisk(PropertyStoreSuite):
    @pytest.fixture
    def store(self, tmp_path):
        return EmbeddedPropertyStore(LocalStorage(tmp_path), "_store")


class TestEmbeddedInMemory(PropertyStoreSuite):
    @pytest.fixture
    def store(self):
        return EmbeddedPropertyStore(MemoryStorage(), "_store")


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
        for version in range(1, 40):  # meanwhile others go far ahead, and clean up
            others.compare_and_set("name", b"other", version=version)
        real(key, data)

    monkeypatch.setattr(storage, "put_if_absent", sleepy)
    with pytest.raises(ConflictError):
        store.compare_and_set("name", b"late", version=1)

    assert store.get("name").version == 40
    assert store.get("name").value == b"other"


def test_a_document_has_a_limit():
    store = EmbeddedPropertyStore(MemoryStorage(), "_store")

    with pytest.raises(InvalidRequestError):
        store.compare_and_set("name", b"x" * (2 << 20), version=0)


def test_an_unknown_store_is_a_later_version():
    with pytest.raises(UnsupportedVersionError, match="etcd"):
        open_property_store("etcd://host:2181/x", MemoryStorage(), "_store", "id")
