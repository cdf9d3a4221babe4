"""What filestream is fast at, measured beside what the machine can do: ratios from one run.

Machines are shared and noisy, so nothing here is an absolute figure: each thing is measured in
turns with the thing it is compared with, several times, and the median of the ratios counts. Codecs
and Spark are measured in process CPU time, durable writes in wall time, because they wait.
"""

import io
import os
import platform
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from filestream.clock import SystemClock
from filestream.codec import encode_event, kernel, pure
from filestream.errors import UnavailableError
from filestream.partitions import streams
from filestream.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Result", "bench_codec", "bench_spark", "bench_write", "machine_card"]

_ROUNDS: Final = 7
# The JVM compiles while it runs; the first turns of a query measure that.
_WARM_UPS: Final = 5
_BLOCK_SIZE_BYTES: Final = 256 << 10
_CODEC_SIZE_BYTES: Final = 48 << 20
_EVENT: Final = {
    "type": "record",
    "name": "StreamEvent",
    "fields": [
        {"name": "body", "type": "bytes"},
        {"name": "headers", "type": {"type": "map", "values": ["string", "null"]}},
        {"name": "timestamp_delta_ms", "type": "long"},
    ],
}


@dataclass(frozen=True, slots=True)
class Result:
    """One comparison.

    Attributes:
        goal: the ratio aimed at; 0 for none.
        ratios: one a round; above 1 is faster than what it is compared with.
    """

    name: str
    versus: str
    goal: float
    ratios: Sequence[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The figure that counts."""
        return statistics.median(self.ratios)

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "name": self.name,
            "versus": self.versus,
            "goal": self.goal or None,
            "median": round(self.median, 3),
            "least": round(min(self.ratios), 3),
            "most": round(max(self.ratios), 3),
            "rounds": len(self.ratios),
        }


def machine_card() -> dict[str, object]:
    """What was measured on."""
    return {
        "filestream": VERSION,
        "kernel": kernel(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
    }


# -- codec ------------------------------------------------------------------------------------


def _block(size: int, headers: int) -> tuple[bytes, int]:
    """One block's payload of events with bodies of about ``size``; and how many they are."""
    chance = random.Random(size)
    own: dict[str, str | None] = {f"key-{n}": f"value-{n}" for n in range(headers)}
    events: list[bytes] = []
    total = 0
    while total < _BLOCK_SIZE_BYTES:
        body = chance.randbytes(chance.randrange(size // 2, size * 3 // 2))
        event = encode_event(body, own) + b"\0"
        events.append(event)
        total += len(event)
    return b"".join(events), len(events)


def _cpu_s(action: Callable[[], object]) -> float:
    began_ns = time.process_time_ns()
    action()
    return max(1, time.process_time_ns() - began_ns) / 1e9


def bench_codec(rounds: int = _ROUNDS) -> Iterator[Result]:
    """Blocks into Arrow columns: timestamp, body, and headers where there are some.

    ``alone`` is decoding without the checksum of the block, which fastavro does not know; every
    real read computes it.
    """
    for size, headers, copy_goal, avro_goal in (
        (16, 0, 0.0, 0.0),
        (100, 0, 0.5, 100.0),
        (100, 2, 0.0, 0.0),
        (1000, 0, 0.0, 0.0),
        (1000, 2, 0.0, 0.0),
        (10_000, 0, 0.0, 0.0),
    ):
        case = _CodecCase(size, headers)
        turns = [case.turn() for _ in range(rounds)]
        what = f"{size} B bodies, {headers} headers"
        if kernel() == "compiled":
            alone = [turn["copy"] / turn["kernel alone"] for turn in turns]
            versus_copy = [turn["copy"] / turn["kernel"] for turn in turns]
            versus_avro = [turn["avro"] / turn["kernel alone"] for turn in turns]
            yield Result(f"decode and check, compiled, {what}", "memcpy", 0.0, versus_copy)
            yield Result(f"decode alone, compiled, {what}", "memcpy", copy_goal, alone)
            yield Result(f"decode alone, compiled, {what}", "fastavro", avro_goal, versus_avro)
        versus_avro = [turn["avro"] / turn["pure"] for turn in turns]
        yield Result(f"decode alone, pure, {what}", "fastavro", 1.0, versus_avro)


class _CodecCase:
    """48 MB of blocks of one kind, and each way to go through them, in seconds a block."""

    def __init__(self, size: int, headers: int) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise UnavailableError("pip install 'filestream-engine[bench]' to compare") from error
        self._schema = fastavro.parse_schema(_EVENT)
        self._read = fastavro.schemaless_reader
        block, self._count = _block(size, headers)
        # Distinct memory, as a file would be: 48 MB do not fit any cache.
        self._blocks = [bytes(bytearray(block)) for _ in range(_CODEC_SIZE_BYTES // len(block))]
        self._few = self._blocks[:16]
        self._headers = headers > 0
        self._whole = b"".join(self._blocks)
        # Touched already, since the first touch is another matter; a view, since a bytearray would
        # make a copy of its own before it copies.
        self._target = memoryview(bytearray(self._whole))

    def turn(self) -> dict[str, float]:
        """One turn of each, one after the other."""
        found = {
            "copy": _cpu_s(self._copy) / len(self._blocks),
            "avro": _cpu_s(self._avro) / len(self._few),
            "pure": _cpu_s(lambda: self._decode(pure, self._few, checks=False)) / len(self._few),
        }
        if kernel() == "compiled":
            from filestream.codec import _kernel

            for name, checks in (("kernel", True), ("kernel alone", False)):
                took_s = _cpu_s(lambda c=checks: self._decode(_kernel, self._blocks, checks=c))  # type: ignore[misc]
                found[name] = took_s / len(self._blocks)
        return found

    def _copy(self) -> None:
        self._target[:] = self._whole

    def _avro(self) -> None:
        for block in self._few:
            source = io.BytesIO(block)
            for _ in range(self._count):
                self._read(source, self._schema, None)

    def _decode(self, codec: ModuleType, blocks: Sequence[bytes], *, checks: bool) -> None:
        decoder = codec.ColumnDecoder(
            timestamp=True,
            body=True,
            headers=self._headers,
            rows=65_536 + self._count,
            size_bytes=5 << 20,
        )
        for block in blocks:
            if checks:
                codec.crc32c_range(block, 0, len(block))
            decoder.add(block, 0, len(block), self._count, 1, 0, True)
            if decoder.rows >= 65_536 or decoder.size_bytes >= 4 << 20:
                decoder.finish()
        decoder.finish()


# -- durable writes ---------------------------------------------------------------------------


def bench_write(where: Path | None = None, rounds: int = _ROUNDS) -> Iterator[Result]:
    """``append`` of 100-byte events, each returned after its sync, beside bare write + fdatasync."""
    for threads, goal in ((1, 0.85), (8, 3.0), (32, 7.0)):
        ratios: list[float] = []
        for _ in range(rounds):
            bare = _bare_syncs_per_s(where, 400)
            ratios.append(_appends_per_s(where, threads, 400 * min(threads, 8)) / bare)
        yield Result(f"durable append, {threads} threads", "bare write + fdatasync", goal, ratios)


def _bare_syncs_per_s(where: Path | None, count: int) -> float:
    clock = SystemClock()
    with tempfile.TemporaryDirectory(dir=where) as folder:
        descriptor = os.open(f"{folder}/bare", os.O_WRONLY | os.O_CREAT)
        data = bytes(124)
        began_s = clock.monotonic_s()
        for _ in range(count):
            os.write(descriptor, data)
            os.fdatasync(descriptor)
        took_s = clock.monotonic_s() - began_s
        os.close(descriptor)
    return count / took_s


def _appends_per_s(where: Path | None, threads: int, count: int) -> float:
    clock = SystemClock()
    each = count // threads
    folder = tempfile.TemporaryDirectory(dir=where)
    with folder, streams.create(f"{folder.name}/s").writer() as writer:
        writer.append(b"warm")
        body = bytes(100)
        go = threading.Barrier(threads + 1)

        def produce() -> None:
            go.wait()
            for _ in range(each):
                writer.append(body)

        workers = [threading.Thread(target=produce) for _ in range(threads)]
        for worker in workers:
            worker.start()
        go.wait()
        began_s = clock.monotonic_s()
        for worker in workers:
            worker.join()
        took_s = clock.monotonic_s() - began_s
    return each * threads / took_s


# -- Spark ------------------------------------------------------------------------------------


def bench_spark(where: Path | None = None, rounds: int = 5) -> Iterator[Result]:
    """The source beside Spark's own Parquet reader on the same rows, in process CPU time."""
    from pyspark.sql import SparkSession

    from filestream.consumers.spark.register import register

    folder = Path(tempfile.mkdtemp(dir=where))
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    try:
        session.sparkContext.setLogLevel("ERROR")
        register(session)
        url = _fill_for_spark(folder)
        full = "timestamp,offset,headers,body,sequence"
        rows = session.read.format("filestream").option("columns", full).load(url)
        rows.write.parquet(f"{folder}/parquet")

        def ours(columns: str) -> "DataFrame":
            return session.read.format("filestream").option("columns", columns).load(url)

        def parquet(columns: str) -> "DataFrame":
            return session.read.parquet(f"{folder}/parquet").select(*columns.split(","))

        for what, columns, goal in (
            ("default columns", "timestamp,body", 0.9),
            ("full rows", full, 0.85),
        ):
            ratios = []
            for turn in range(rounds + _WARM_UPS):
                theirs_s = _tree_cpu_s(lambda c=columns: _consume(parquet(c)))  # type: ignore[misc]
                ours_s = _tree_cpu_s(lambda c=columns: _consume(ours(c)))  # type: ignore[misc]
                if turn >= _WARM_UPS:
                    ratios.append(theirs_s / ours_s)
            yield Result(f"Spark source, {what}", "Spark's Parquet reader", goal, ratios)
    finally:
        session.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _fill_for_spark(folder: Path, events: int = 6_000_000) -> str:
    """100-byte bodies with two headers, in files of one writer."""
    stream = streams.create(f"{folder}/s", acknowledgement="os", segment_size="128MiB")
    chance = random.Random(1)
    with stream.writer() as writer:
        for at in range(0, events, 2000):
            headers: dict[str, str | None] = {
                "user": f"user-{at % 977}",
                "page": f"/page/{at % 89}",
            }
            # All different, or Parquet would keep a dictionary of them.
            writer.append_many([(chance.randbytes(100), headers) for _ in range(2000)])
    return stream.url


def _consume(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def _tree_cpu_s(action: Callable[[], object]) -> float:
    """CPU time of this process, its JVM and its Python workers while ``action`` runs."""
    before = _tree_ticks()
    action()
    after = _tree_ticks()
    ticks = sum(after[pid] - before.get(pid, 0) for pid in after)
    return max(1, ticks) / os.sysconf("SC_CLK_TCK")


def _tree_ticks() -> dict[int, int]:
    """User and system ticks, with those of ended children, of this process and all below it."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = sum(int(fields[n]) for n in (11, 12))
    mine = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        if not more:
            return {pid: ticks[pid] for pid in mine if pid in ticks}
        mine |= more
