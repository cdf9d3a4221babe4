"""Every promise of ``Storage`` as a test suite that ships with the library.

A backend, ours or a stranger's, is a subclass with one fixture::

    class TestMyStorage(StorageSuite):
        @pytest.fixture
        def storage(self) -> Iterator[Storage]:
            with MyStorage(...) as storage:
                yield storage
"""

import threading
from collections.abc import Callable

from filestream.errors import ConflictError, FilestreamError, InvalidRequestError, NotFoundError
from filestream.storage.base import Entry, Lock, Storage

__all__ = ["StorageSuite", "expect", "is_held"]


def expect(kind: type[FilestreamError], action: Callable[[], object]) -> None:
    """Fail unless ``action`` raises an error of this kind."""
    try:
        action()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def is_held(lock: Lock) -> bool:
    """``lock.is_held``, which a type checker would believe to stay what it was."""
    return lock.is_held


class StorageSuite:
    """Subclass it and give it a fixture ``storage``: an empty storage."""

    def test_appended_bytes_are_read_back_at_once(self, storage: Storage) -> None:
        """Another look at the file sees what was written, also before the sync."""
        with storage.create("a/b/file") as appender:
            appender.write(b"one")
            appender.write(b"two")

            assert storage.read("a/b/file", 0, 100) == b"onetwo"

            appender.write_and_sync(b"three")
            appender.sync()

        assert storage.read("a/b/file", 0, 100) == b"onetwothree"
        assert storage.size("a/b/file") == 11

    def test_reads_are_short_only_at_the_end(self, storage: Storage) -> None:
        """A range inside the file is whole; behind the end there is nothing."""
        storage.put_if_absent("file", bytes(range(256)) * 1000)

        assert storage.read("file", 255_000, 10_000) == (bytes(range(256)) * 1000)[255_000:]
        assert storage.read("file", 5, 0) == b""
        assert storage.read("file", 256_000, 10) == b""
        assert storage.read("file", 10**12, 10) == b""

    def test_a_file_is_created_once(self, storage: Storage) -> None:
        """The second creator gets a conflict, whatever the first one wrote."""
        with storage.create("file") as appender:
            appender.write_and_sync(b"first")

        expect(ConflictError, lambda: storage.create("file"))
        expect(ConflictError, lambda: storage.put_if_absent("file", b"second"))
        assert storage.read("file", 0, 100) == b"first"

    def test_a_file_is_put_once(self, storage: Storage) -> None:
        """A put file is whole, and neither put nor created again."""
        storage.put_if_absent("x/file", b"first")

        expect(ConflictError, lambda: storage.put_if_absent("x/file", b"second"))
        expect(ConflictError, lambda: storage.create("x/file"))
        assert storage.read("x/file", 0, 100) == b"first"

    def test_of_many_that_put_one_wins(self, storage: Storage) -> None:
        """Sixteen threads race for each of twenty names."""
        for number in range(20):
            winners: list[int] = []
            barrier = threading.Barrier(16)

            def race(
                me: int,
                key: str = f"race/{number}",
                won: list[int] = winners,
                go: threading.Barrier = barrier,
            ) -> None:
                go.wait()
                try:
                    storage.put_if_absent(key, b"%d" % me)
                except ConflictError:
                    return
                won.append(me)

            threads = [threading.Thread(target=race, args=(me,)) for me in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

            assert len(winners) == 1
            assert storage.read(f"race/{number}", 0, 10) == b"%d" % winners[0]

    def test_missing_files_are_not_found(self, storage: Storage) -> None:
        """Reading and measuring say so; looking and deleting do not mind."""
        expect(NotFoundError, lambda: storage.read("no/file", 0, 1))
        expect(NotFoundError, lambda: storage.size("no/file"))
        assert not storage.exists("no/file")
        storage.delete("no/file")
        storage.delete_tree("no")
        assert list(storage.list("no")) == []

    def test_listing_shows_what_lies_directly_below(self, storage: Storage) -> None:
        """Files and directories, each once, and nothing deeper."""
        for key in ("d/one", "d/two", "d/deep/three", "d/deep/four", "e"):
            storage.put_if_absent(key, b"x")

        assert sorted(storage.list("d")) == [
            Entry("deep", True),
            Entry("one", False),
            Entry("two", False),
        ]
        assert sorted(e.name for e in storage.list("")) == ["d", "e"]

    def test_deleted_files_are_gone(self, storage: Storage) -> None:
        """One file, then a whole tree; the name may be used again."""
        for key in ("d/one", "d/two", "d/deep/three"):
            storage.put_if_absent(key, b"x")

        storage.delete("d/one")
        assert not storage.exists("d/one")
        assert storage.exists("d/two")

        storage.delete_tree("d")
        assert list(storage.list("d")) == []
        storage.put_if_absent("d/one", b"again")
        assert storage.read("d/one", 0, 10) == b"again"

    def test_a_directory_is_no_file(self, storage: Storage) -> None:
        """``exists`` is about files."""
        storage.put_if_absent("d/one", b"x")

        assert not storage.exists("d")

    def test_keys_stay_below_the_root(self, storage: Storage) -> None:
        """No key climbs out, is absolute, or hides a NUL."""
        for key in (
            "../x",
            "a/../../x",
            "/etc/passwd",
            "a//b",
            "a/./b",
            "a\0b",
            "a/",
            "..",
            "x" * 300,
        ):
            expect(InvalidRequestError, lambda key=key: storage.create(key))  # type: ignore[misc]
            expect(InvalidRequestError, lambda key=key: storage.read(key, 0, 1))  # type: ignore[misc]
            expect(InvalidRequestError, lambda key=key: storage.put_if_absent(key, b""))  # type: ignore[misc]

    def test_a_lock_has_one_holder(self, storage: Storage) -> None:
        """Held until closed; then the next one gets it. Closing twice is fine."""
        lock = storage.lock("locks/name")

        expect(ConflictError, lambda: storage.lock("locks/name"))
        storage.lock("locks/other").close()
        assert is_held(lock)
        assert storage.is_locked("locks/name")
        assert not storage.is_locked("locks/other")
        assert not storage.is_locked("locks/nobody")

        lock.close()
        lock.close()
        assert not is_held(lock)
        assert not storage.is_locked("locks/name")
        storage.lock("locks/name").close()

    def test_closing_an_appender_twice_is_fine(self, storage: Storage) -> None:
        """And keeps what was written."""
        appender = storage.create("file")
        appender.write_and_sync(b"kept")

        appender.close()
        appender.close()

        assert storage.read("file", 0, 10) == b"kept"
