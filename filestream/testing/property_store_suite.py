"""Every promise of ``PropertyStore`` as a test suite that ships with the library."""

import threading

from filestream.coordination.base import Document, PropertyStore
from filestream.errors import ConflictError
from filestream.testing.storage_suite import expect

__all__ = ["PropertyStoreSuite"]


class PropertyStoreSuite:
    """Subclass it and give it a fixture ``store``: an empty property store."""

    def test_a_missing_document_has_version_zero(self, store: PropertyStore) -> None:
        """And is the current one."""
        assert store.get("name") == Document(b"", 0)
        assert store.is_current("name", 0)
        assert not store.is_current("name", 1)

    def test_versions_count_from_one(self, store: PropertyStore) -> None:
        """Each change is the next version; only the newest is current."""
        for version in range(30):
            assert store.compare_and_set("a/name", b"%d" % version, version=version) == Document(
                b"%d" % version, version + 1
            )

        assert store.get("a/name") == Document(b"29", 30)
        assert store.is_current("a/name", 30)
        for version in (0, 1, 2, 28, 29, 31):
            assert not store.is_current("a/name", version)

    def test_an_old_version_changes_nothing(self, store: PropertyStore) -> None:
        """Whatever is how far behind, or ahead."""
        for version in range(20):
            store.compare_and_set("name", b"%d" % version, version=version)

        for version in (0, 1, 5, 19, 21, 100):
            expect(
                ConflictError,
                lambda v=version: store.compare_and_set("name", b"lost", version=v),  # type: ignore[misc]
            )
        assert store.get("name") == Document(b"19", 20)

    def test_concurrent_updates_all_count(self, store: PropertyStore) -> None:
        """Eight threads add one, ten times each: nothing is lost."""

        def add() -> None:
            for _ in range(10):
                store.update("sum", lambda d: b"%d" % (int(d.value or b"0") + 1), tries=10_000)

        threads = [threading.Thread(target=add) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert store.get("sum") == Document(b"80", 80)

    def test_documents_are_listed_by_prefix(self, store: PropertyStore) -> None:
        """Directly below, sorted; claims are no documents."""
        for name in ("groups/b", "groups/a", "generation"):
            store.compare_and_set(name, b"x", version=0)
        with store.claim("writers/file.0"):
            assert list(store.list("groups")) == ["groups/a", "groups/b"]
            assert list(store.list("")) == ["generation", "groups"]

    def test_a_deleted_document_is_gone(self, store: PropertyStore) -> None:
        """And may be deleted again."""
        store.compare_and_set("name", b"x", version=0)

        store.delete("name")
        store.delete("name")

        assert store.get("name").version == 0
        assert not store.is_current("name", 1)

    def test_a_claim_has_one_holder(self, store: PropertyStore) -> None:
        """Until it is closed."""
        with store.claim("writers/file.0"):
            expect(ConflictError, lambda: store.claim("writers/file.0"))
            store.claim("writers/file.1").close()

        store.claim("writers/file.0").close()
