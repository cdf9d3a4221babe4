"""A stream on some store beside the store's bare client doing the same bytes; ratios from one run.

The bare client does what an acknowledgement rests on and nothing else: a write and a sync on a disk, an
``hsync`` on HDFS, a conditional PUT in a bucket. Ratios are its time by ours: 1 is as fast as can be.
"""

import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from filestream.clock import SystemClock
from filestream.partitions import streams
from filestream.partitions.layout import Segment
from filestream.partitions.snapshot import take_snapshot
from filestream.partitions.stream import Stream
from filestream.storage.open import normalise_url, open_storage, split_url
from filestream.tools.bench import Result

__all__ = ["bench_storage"]

# A goal of the project: what a stream adds may cost so much of the bare client's time.
_GOAL: Final = 1 / 1.15
_ROUNDS: Final = 7
_APPENDS: Final = 40
_BODY: Final = bytes(4096)
_BATCH: Final = [bytes(100)] * 10_000
_BATCHES: Final = 8
_TAILED: Final = 25
_SMALL: Final = 400
_SMALL_BATCH: Final = [bytes(100)] * 40
# Any day that is over.
_OVER_MS: Final = 1_401_408_000_000


class _Bare(ABC):
    """The client of one store, without us."""

    @abstractmethod
    def append(self, data: bytes) -> None:
        """Make these bytes as safe as an acknowledgement does."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """A whole file of the stream."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give up what is held."""


class _BareDisk(_Bare):
    def __init__(self, url: str) -> None:
        self._root = unquote(split_url(url)[1])
        Path(self._root).mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(f"{self._root}/bare", os.O_WRONLY | os.O_CREAT)

    def append(self, data: bytes) -> None:
        os.write(self._descriptor, data)
        os.fdatasync(self._descriptor)

    def read(self, key: str) -> bytes:
        descriptor = os.open(f"{self._root}/{key}", os.O_RDONLY)
        try:
            return os.read(descriptor, 1 << 30)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class _BareHdfs(_Bare):
    def __init__(self, url: str) -> None:
        import hdfs_native

        authority, _, self._path = url.removeprefix("hdfs://").partition("/")
        self._client: Any = hdfs_native.Client(f"hdfs://{authority}")
        self._client.mkdirs(f"/{self._path}", create_parent=True)
        self._file = self._client.create(f"/{self._path}/bare")

    def append(self, data: bytes) -> None:
        self._file.write(data)
        self._file.hsync()

    def read(self, key: str) -> bytes:
        file = self._client.read(f"/{self._path}/{key}")
        return bytes(file.read_range(0, len(file)))

    def close(self) -> None:
        self._file.close()


class _BareObjects(_Bare):
    def __init__(self, url: str) -> None:
        import obstore
        from obstore.store import from_url

        self._library: Any = obstore
        scheme, _, rest = url.partition("://")
        bucket, _, self._prefix = rest.partition("/")
        opening: Any = from_url
        self._store = opening(f"{scheme}://{bucket}", client_options={"allow_http": True})
        self._count = 0

    def append(self, data: bytes) -> None:
        self._count += 1
        path = f"{self._prefix}/bare-{self._count}"
        self._library.put(self._store, path, data, mode="create")

    def read(self, key: str) -> bytes:
        return bytes(self._library.get(self._store, f"{self._prefix}/{key}").bytes())


def bench_storage(url: str, rounds: int = _ROUNDS) -> Iterator[Result]:
    """Appends one by one and in batches, a tail's delay, and a scan, in turns with the bare client.

    Args:
        url: a place; a stream is made below it, and removed.
    """
    place = f"{normalise_url(url)}/bench-{secrets.token_hex(4)}"
    scheme = split_url(place)[0]
    bare = {"file": _BareDisk, "hdfs": _BareHdfs}.get(scheme, _BareObjects)(f"{place}-bare")
    stream = streams.create(place, linger="0")
    try:
        yield from _appends(stream, bare, scheme, rounds)
        yield _tail_delay(stream, bare, scheme, rounds)
        yield _scan(stream, place, scheme, rounds)
        yield from _compaction(f"{place}-small", scheme, rounds)
    finally:
        bare.close()
        stream.delete()
        open_storage(f"{place}-bare").delete_tree("")


def _appends(stream: Stream, bare: _Bare, scheme: str, rounds: int) -> Iterator[Result]:
    alone, together, batches = [], [], []
    joined = b"".join(_BATCH)
    with stream.writer() as writer:
        writer.append(_BODY)
        bare.append(_BODY)
        for _ in range(rounds):
            bare_s = _seconds(lambda: [bare.append(_BODY) for _ in range(_APPENDS)])
            ours_s = _seconds(lambda: [writer.append(_BODY) for _ in range(_APPENDS)])
            alone.append(bare_s / ours_s)
            many_s = _seconds(lambda: _in_threads(8, lambda: writer.append(_BODY)))
            together.append(8 * bare_s / many_s)
            bare_s = _seconds(lambda: [bare.append(joined) for _ in range(_BATCHES)])
            ours_s = _seconds(lambda: [writer.append_many(_BATCH) for _ in range(_BATCHES)])
            batches.append(bare_s / ours_s)
    yield Result(f"{scheme}: append 4 KiB, 1 thread", "bare client", _GOAL, alone)
    yield Result(f"{scheme}: append 4 KiB, 8 threads", "bare client, 1 thread", 0, together)
    yield Result(f"{scheme}: append_many 10 000 x 100 B", "bare client", _GOAL, batches)


def _tail_delay(stream: Stream, bare: _Bare, scheme: str, rounds: int) -> Result:
    """From the beginning of an append until a tail has the event; the bare client only writes."""
    ratios = []
    with stream.writer() as writer, stream.tail("end") as tail:
        writer.append(_BODY)
        next(tail)
        for _ in range(rounds):
            bare_s = _seconds(lambda: [bare.append(_BODY) for _ in range(_TAILED)])

            def follow() -> None:
                for _ in range(_TAILED):
                    writer.append(_BODY)
                    next(tail)

            ratios.append(bare_s / _seconds(follow))
    return Result(f"{scheme}: append until a tail has it", "bare client's write", 0, ratios)


def _scan(stream: Stream, place: str, scheme: str, rounds: int) -> Result:
    """The whole stream as record batches; the bare client gets the same files."""
    kind = {"file": _BareDisk, "hdfs": _BareHdfs}.get(scheme, _BareObjects)
    client = kind(place)
    snapshot = take_snapshot(stream.view())
    segments: Sequence[Segment] = [s for chain in snapshot.chains.values() for s in chain]
    ratios = []
    for _ in range(rounds):
        bare_s = _seconds(lambda: [client.read(segment.data_key) for segment in segments])
        ours_s = _seconds(lambda: sum(batch.num_rows for batch in stream.scan()))
        ratios.append(bare_s / ours_s)
    client.close()
    return Result(f"{scheme}: scan of {len(segments)} segments", "bare client", _GOAL, ratios)


def _compaction(place: str, scheme: str, rounds: int) -> Iterator[Result]:
    """Small segments of a day that is over, one by one and then packed, by the time of the bare client
    for the small ones.
    """
    kind = {"file": _BareDisk, "hdfs": _BareHdfs}.get(scheme, _BareObjects)
    stream = streams.create(place, linger="0", partition_duration="1d")
    client = kind(place)
    try:
        with stream.writer() as writer:
            for _ in range(_SMALL):
                writer.append_many(_SMALL_BATCH, _OVER_MS)
                writer.roll()
        snapshot = take_snapshot(stream.view())
        keys = [segment.data_key for chain in snapshot.chains.values() for segment in chain]
        loose: list[float] = []
        packed: list[float] = []
        for ratios in (loose, packed):
            for _ in range(rounds):
                bare_s = _seconds(lambda: [client.read(key) for key in keys])
                ours_s = _seconds(lambda: sum(batch.num_rows for batch in stream.scan()))
                ratios.append(bare_s / ours_s)
            # The small ones stay for their grace time, so the bare client can go on with them.
            stream.compact()
        what = f"{scheme}: scan of {len(keys)} segments of 4 KiB"
        yield Result(what, "bare client", _GOAL, loose)
        yield Result(f"{what}, packed", "bare client, not packed", _GOAL, packed)
    finally:
        client.close()
        stream.delete()


def _seconds(action: Callable[[], object]) -> float:
    clock = SystemClock()
    began_s = clock.monotonic_s()
    action()
    return clock.monotonic_s() - began_s


def _in_threads(count: int, action: Callable[[], object]) -> None:
    def run() -> None:
        for _ in range(_APPENDS):
            action()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
