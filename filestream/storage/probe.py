"""Does a store keep the promises that streams rest on? Asked when a stream is made, and by ``doctor``.

Some servers take ``If-None-Match`` and answer 200 all the same: two writers would overwrite each
other, and each would believe that he was acknowledged. What a store promises is no evidence; what it
does is.
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from filestream.codec import crc32c
from filestream.errors import ConflictError, FilestreamError, InvalidRequestError, NotFoundError
from filestream.storage.base import LockingStorage, ReplacingStorage, Storage

__all__ = ["PROBE_PREFIX", "Tried", "check_storage", "probe"]

PROBE_PREFIX: Final = "_probe-"
_REPLACE: Final = "compare-and-set"
_RACERS: Final = 8
_ROUNDS: Final = 3
_LISTED: Final = 5
_SIZE_BYTES: Final = 64 << 10
_WHOLE_SIZE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Tried:
    """One promise that was tried.

    Attributes:
        is_kept: whether it held.
        is_needed: a stream cannot live without it.
        said: what went wrong; empty when nothing did.
    """

    name: str
    is_kept: bool
    is_needed: bool = True
    said: str = ""


def probe(storage: Storage) -> Iterator[Tried]:
    """Try every promise in a directory of its own below the root, which is removed again."""
    key = f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    try:
        for name, is_needed, attempt in _attempts(storage):
            try:
                is_kept, said = attempt(f"{key}/{name.replace(' ', '-')}"), ""
            except FilestreamError as error:
                is_kept, said = False, str(error)
            yield Tried(name, is_kept, is_needed, said)
    finally:
        storage.delete_tree(key)


def check_storage(storage: Storage) -> bool:
    """Refuse a store that does not do what streams need.

    Returns:
        Whether compare-and-set holds, which is good to have.

    Raises:
        InvalidRequestError: the tests that it failed, by name.
        UnavailableError: it does not answer at all.
        NotFoundError: there is no such bucket.
    """
    # A store that cannot be asked is not one that lies: this raises by itself.
    storage.list("")
    tried = list(probe(storage))
    failed = [one for one in tried if one.is_needed and not one.is_kept]
    if failed:
        what = "; ".join(f"{t.name}{f' ({t.said})' if t.said else ''}" for t in failed)
        raise InvalidRequestError(
            "this store does not keep what a stream rests on, so events could be lost: use another "
            f"store, or a newer server. failed={what} url={storage.url}"
        )
    return any(one.name == _REPLACE and one.is_kept for one in tried)


def _attempts(storage: Storage) -> list[tuple[str, bool, Callable[[str], bool]]]:
    attempts: list[tuple[str, bool, Callable[[str], bool]]] = [
        ("put-if-absent", True, lambda key: _put_twice(storage, key)),
        ("put race", True, lambda key: _put_race(storage, key)),
        ("list after write", True, lambda key: _list_after_write(storage, key)),
        ("read back", True, lambda key: _read_back(storage, key)),
        ("put is whole", True, lambda key: _put_is_whole(storage, key)),
    ]
    if storage.can_append:
        attempts += [
            ("append and sync", True, lambda key: _append(storage, key)),
            ("create is exclusive", True, lambda key: _create_twice(storage, key)),
        ]
    if isinstance(storage, ReplacingStorage):
        attempts.append((_REPLACE, False, lambda key: _replace_race(storage, key)))
    if isinstance(storage, LockingStorage):
        attempts.append(("locks", True, lambda key: _lock_twice(storage, key)))
    return attempts


def _refuses(action: Callable[[], object]) -> bool:
    try:
        action()
    except ConflictError:
        return True
    return False


def _put_twice(storage: Storage, key: str) -> bool:
    storage.put_if_absent(key, b"first")
    is_refused = _refuses(lambda: storage.put_if_absent(key, b"second"))
    return is_refused and storage.read(key, 0, 10) == b"first"


def _put_race(storage: Storage, key: str) -> bool:
    for number in range(_ROUNDS):
        name = f"{key}/{number}"
        winners = _race(lambda mine, name=name: storage.put_if_absent(name, mine))  # type: ignore[misc]
        if [storage.read(name, 0, 10)] != winners:
            return False
    return True


def _replace_race(storage: ReplacingStorage, key: str) -> bool:
    storage.put_if_absent(key, b"start")
    tag = ""
    for _ in range(_ROUNDS):
        _, tag = storage.get(key)
        winners = _race(lambda mine, tag=tag: storage.replace(key, mine, tag))  # type: ignore[misc]
        if [storage.get(key)[0]] != winners or storage.is_unchanged(key, tag):
            return False
    return _refuses(lambda: storage.replace(f"{key}-none", b"x", tag))


def _race(attempt: Callable[[bytes], None]) -> list[bytes]:
    """What those wrote who were told that they won; raises what one of them met."""
    winners: list[bytes] = []
    failures: list[FilestreamError] = []
    barrier = threading.Barrier(_RACERS)

    def run(mine: bytes) -> None:
        barrier.wait()
        try:
            attempt(mine)
        except ConflictError:
            return
        except FilestreamError as error:
            failures.append(error)
        else:
            winners.append(mine)

    threads = [
        threading.Thread(target=run, args=(secrets.token_hex(4).encode(),)) for _ in range(_RACERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures and not winners:
        raise failures[0]
    return winners


def _list_after_write(storage: Storage, key: str) -> bool:
    for number in range(_LISTED):
        storage.put_if_absent(f"{key}/{number}", b"x")
        if sorted(e.name for e in storage.list(key)) != [str(n) for n in range(number + 1)]:
            return False
    storage.delete(f"{key}/0")
    return "0" not in {e.name for e in storage.list(key)}


def _read_back(storage: Storage, key: str) -> bool:
    data = secrets.token_bytes(_SIZE_BYTES)
    storage.put_if_absent(key, data)
    half = _SIZE_BYTES // 2
    parts = storage.read(key, 0, half) + storage.read(key, half, _SIZE_BYTES)
    return (
        crc32c(parts) == crc32c(data)
        and storage.size(key) == _SIZE_BYTES
        and storage.read(key, _SIZE_BYTES, 10) == b""
    )


def _put_is_whole(storage: Storage, key: str) -> bool:
    """Whoever sees a file sees all of it, also while it is put."""
    data = bytes(_WHOLE_SIZE_BYTES)
    failures: list[FilestreamError] = []

    def put() -> None:
        try:
            storage.put_if_absent(key, data)
        except FilestreamError as error:
            failures.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    sizes: set[int] = set()
    while thread.is_alive():
        try:
            sizes.add(storage.size(key))
        except NotFoundError:
            continue
    thread.join()
    if failures:
        raise failures[0]
    return sizes | {storage.size(key)} == {_WHOLE_SIZE_BYTES}


def _append(storage: Storage, key: str) -> bool:
    with storage.create(key) as appender:
        appender.write_and_sync(b"one")
        appender.write(b"two")
        appender.sync()
        if not storage.reads_open_files:
            return True
        return storage.read(key, 0, 100) == b"onetwo"


def _create_twice(storage: Storage, key: str) -> bool:
    with storage.create(key) as appender:
        appender.write_and_sync(b"first")
        return _refuses(lambda: storage.create(key))


def _lock_twice(storage: LockingStorage, key: str) -> bool:
    with storage.lock(key):
        return _refuses(lambda: storage.lock(key))
