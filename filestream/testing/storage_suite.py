"""Every promise of ``Storage`` as a test suite that ships with the library.

A backend, ours or a stranger's, is a subclass with one fixture::

    class TestMyStorage(StorageSuite):
        @pytest.fixture
        def storage(self) -> Iterator[Storage]:
            with MyStorage(...) as storage:
                yield storage
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from filestream.errors import (
    ConflictError,
    FilestreamError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from filestream.storage.base import Entry, Lock, LockingStorage, ReplacingStorage, Storage

__all__ = ["StorageSuite", "eventually", "expect", "is_held", "race"]


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


def eventually(holds: Callable[[], bool], timeout_s: float = 30) -> None:
    """Fail unless it holds soon: a store may close a file a little after its writer has."""
    until_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)  # noqa: TID251 - waits for another program


def race(runners: Sequence[Callable[[], object]]) -> None:
    """Run all at once, each on a thread; the first error of one is raised."""
    barrier = threading.Barrier(len(runners))
    failures: list[BaseException] = []

    def run(runner: Callable[[], object]) -> None:
        barrier.wait()
        try:
            runner()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(runner,)) for runner in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class StorageSuite:
    """Subclass it and give it a fixture ``storage``: an empty storage."""

    def test_where_files_do_not_grow_none_is_created(self, storage: Storage) -> None:
        """It says so instead of pretending."""
        if not storage.can_append:
            expect(InvalidRequestError, lambda: storage.create("file"))
            assert not storage.exists("file")

    def test_appended_bytes_are_read_back_at_once(self, storage: Storage) -> None:
        """Another look at the file sees what was synced, and on some stores what was written."""
        if not storage.can_append:
            return
        with storage.create("a/b/file") as appender:
            appender.write(b"one")
            appender.write(b"two")
            appender.sync()

            if storage.reads_open_files:
                assert storage.read("a/b/file", 0, 100) == b"onetwo"
                assert storage.read("a/b/file", 2, 2) == b"et"
                assert storage.size("a/b/file") == 6

            appender.write_and_sync(b"three")
            appender.sync()

        eventually(lambda: storage.read("a/b/file", 0, 100) == b"onetwothree")
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
        if not storage.can_append:
            return
        with storage.create("file") as appender:
            appender.write_and_sync(b"first")

        expect(ConflictError, lambda: storage.create("file"))
        expect(ConflictError, lambda: storage.put_if_absent("file", b"second"))
        eventually(lambda: storage.read("file", 0, 100) == b"first")

    def test_a_file_is_put_once(self, storage: Storage) -> None:
        """A put file is whole, and neither put nor created again."""
        storage.put_if_absent("x/file", b"first")

        expect(ConflictError, lambda: storage.put_if_absent("x/file", b"second"))
        if storage.can_append:
            expect(ConflictError, lambda: storage.create("x/file"))
        assert storage.read("x/file", 0, 100) == b"first"

    def test_of_many_that_put_one_wins(self, storage: Storage) -> None:
        """Sixteen threads race for each of twenty names."""
        for number in range(20):
            winners: list[bytes] = []

            def put(mine: bytes, key: str = f"race/{number}", won: list[bytes] = winners) -> None:
                try:
                    storage.put_if_absent(key, mine)
                except ConflictError:
                    return
                won.append(mine)

            race([partial(put, b"%d" % me) for me in range(16)])

            assert [storage.read(f"race/{number}", 0, 10)] == winners

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
            if storage.can_append:
                expect(InvalidRequestError, lambda key=key: storage.create(key))  # type: ignore[misc]
            expect(InvalidRequestError, lambda key=key: storage.read(key, 0, 1))  # type: ignore[misc]
            expect(InvalidRequestError, lambda key=key: storage.put_if_absent(key, b""))  # type: ignore[misc]

    def test_a_lock_has_one_holder(self, storage: Storage) -> None:
        """Held until closed; then the next one gets it. Closing twice is fine."""
        if not isinstance(storage, LockingStorage):
            return
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
        if not storage.can_append:
            return
        appender = storage.create("file")
        appender.write_and_sync(b"kept")

        appender.close()
        appender.close()

        eventually(lambda: storage.read("file", 0, 10) == b"kept")

    def test_nobody_adds_to_a_fenced_file(self, storage: Storage) -> None:
        """Nor loses by it what was synced; to fence nothing is fine, and so is to fence twice."""
        storage.fence("nothing")
        if not storage.can_append or isinstance(storage, LockingStorage):
            return  # There it takes a lock, or a name that is taken, and ``fence`` has nothing to do.
        appender = storage.create("file")
        appender.write_and_sync(b"kept")

        storage.fence("file")
        storage.fence("file")

        def add() -> None:
            appender.write_and_sync(b"lost")

        expect(UnavailableError, add)
        appender.close()
        assert storage.read("file", 0, 10) == b"kept"

    def test_what_was_read_is_replaced(self, storage: Storage) -> None:
        """If it is still there, and still the same."""
        if not isinstance(storage, ReplacingStorage):
            return
        expect(NotFoundError, lambda: storage.get("d/file"))
        expect(ConflictError, lambda: storage.replace("d/file", b"x", '"none"'))
        storage.put_if_absent("d/file", b"first")
        data, tag = storage.get("d/file")
        assert data == b"first"
        assert storage.is_unchanged("d/file", tag)

        storage.replace("d/file", b"second", tag)

        assert not storage.is_unchanged("d/file", tag)
        expect(ConflictError, lambda: storage.replace("d/file", b"third", tag))
        data, tag = storage.get("d/file")
        assert data == b"second"
        storage.delete("d/file")
        assert not storage.is_unchanged("d/file", tag)
        expect(ConflictError, lambda: storage.replace("d/file", b"third", tag))
        assert not storage.exists("d/file")

    def test_of_many_that_replace_one_wins(self, storage: Storage) -> None:
        """Sixteen threads race for each of ten versions."""
        if not isinstance(storage, ReplacingStorage):
            return
        storage.put_if_absent("file", b"start")
        for number in range(10):
            _, tag = storage.get("file")
            winners: list[bytes] = []

            def replace(mine: bytes, tag: str = tag, won: list[bytes] = winners) -> None:
                try:
                    storage.replace("file", mine, tag)
                except ConflictError:
                    return
                won.append(mine)

            race([partial(replace, b"%d by %d" % (number, me)) for me in range(16)])

            assert [storage.get("file")[0]] == winners
