"""Every promise of ``PropertyStore`` as a test suite that ships with the library."""

import threading

from filestream.coordination.base import Document, PropertyStore
from filestream.errors import ConflictError
from filestream.testing.storage_suite import expect, is_held

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

    def test_threads_hold_a_claim_one_at_a_time(self, store: PropertyStore) -> None:
        """Six of them claim and give back one name, again and again."""
        inside: list[int] = []
        most: list[int] = []

        def work(me: int) -> None:
            for _ in range(40):
                try:
                    claim = store.claim("writers/one")
                except ConflictError:
                    continue
                inside.append(me)
                most.append(len(inside))
                if not is_held(claim) or len(store.holders("writers")) != 1:
                    most.append(99)
                inside.remove(me)
                claim.close()

        threads = [threading.Thread(target=work, args=(me,)) for me in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert set(most) == {1}
        store.claim("writers/one").close()

    def test_holders_are_the_claims_that_are_held(self, store: PropertyStore) -> None:
        """Directly below the prefix, sorted, and none of yesterday."""
        assert list(store.holders("groups/g")) == []
        with store.claim("groups/g/1") as claim, store.claim("groups/g/0"):
            store.claim("groups/g/2").close()
            store.claim("groups/h").close()

            assert list(store.holders("groups/g")) == ["groups/g/0", "groups/g/1"]
            assert is_held(claim)
        assert not is_held(claim)
        assert list(store.holders("groups/g")) == []

    def test_a_watch_tells_the_last_version(self, store: PropertyStore) -> None:
        """What is there when it begins, and the last of many changes; maybe not all of them."""
        store.compare_and_set("name", b"0", version=0)
        told: list[Document] = []
        changed = threading.Condition()

        def tell(document: Document) -> None:
            with changed:
                told.append(document)
                changed.notify_all()

        with store.watch("name", tell), changed:
            assert changed.wait_for(lambda: told == [Document(b"0", 1)], 30)
            for version in range(1, 50):
                store.compare_and_set("name", b"%d" % version, version=version)
            assert changed.wait_for(lambda: told[-1] == Document(b"49", 50), 30)
            store.delete("name")
            assert changed.wait_for(lambda: told[-1].version == 0, 30)

        versions = [document.version for document in told[:-1]]
        assert versions == sorted(set(versions))

    def test_a_closed_watch_tells_nothing(self, store: PropertyStore) -> None:
        """And may be closed twice."""
        told: list[Document] = []
        watch = store.watch("name", told.append)
        watch.close()
        watch.close()
        before = len(told)

        store.compare_and_set("name", b"x", version=0)

        assert len(told) == before

    def test_a_watch_survives_a_callback_that_fails(self, store: PropertyStore) -> None:
        """The next change is told."""
        told: list[int] = []
        enough = threading.Event()

        def tell(document: Document) -> None:
            told.append(document.version)
            if document.version == 2:
                enough.set()
            raise ValueError("the callback failed, by order of the test")

        with store.watch("name", tell):
            store.compare_and_set("name", b"x", version=0)
            store.compare_and_set("name", b"y", version=1)
            assert enough.wait(30)

    def test_settling_is_immediate_where_nobody_holds_an_answer(self, store: PropertyStore) -> None:
        """And what was current is current no more."""
        store.compare_and_set("name", b"x", version=0)
        assert store.is_current("name", 1)
        store.compare_and_set("name", b"y", version=1)

        store.settle("name", 2)

        assert not store.is_current("name", 1)
        assert store.is_current("name", 2)
