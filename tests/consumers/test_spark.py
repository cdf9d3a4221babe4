"""The Spark source in a real Spark: columns, bounds, streams, checkpoints, truncation."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import filestream
from filestream.partitions.columns import ALL_COLUMNS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(180),
    # PySpark's own: it does not close its sockets before the interpreter ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

START = 1_401_408_000_000
DAY = 86_400_000
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def stream(tmp_path):
    stream = filestream.create(tmp_path / "who")
    for me in range(2):
        with stream.writer(f"file.{me}") as writer:
            for day in range(3):
                stamps = [START + day * DAY + n for n in range(100)]
                events = [(b"%d-%d-%d" % (me, day, n), {"n": str(n)}) for n in range(100)]
                writer.append_many(events, stamps)
    return stream


def load(spark, stream, **options):
    return spark.read.format("filestream").options(**options).load(stream.url)


def start(spark, stream, name, checkpoint, **options):
    """A query into Parquet files beside its checkpoint, which can go on from it."""
    return (
        spark.readStream.format("filestream")
        .options(**options)
        .load(stream.url)
        .writeStream.format("parquet")
        .option("path", f"{checkpoint}-{name}")
        .option("checkpointLocation", str(checkpoint))
    )


def rows(spark, name, checkpoint):
    frame = spark.read.schema("body binary").parquet(f"{checkpoint}-{name}")
    return sorted(bytes(row.body) for row in frame.collect())


def test_a_stream_is_a_table(spark, stream):
    frame = load(spark, stream)

    assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [
        ("timestamp", "timestamp"),
        ("body", "binary"),
    ]
    assert frame.count() == 600
    assert frame.selectExpr("count(distinct body)").collect()[0][0] == 600
    assert frame.selectExpr("count(distinct date(timestamp))").collect()[0][0] == 3


def test_columns_by_option_and_by_schema(spark, stream):
    everything = load(spark, stream, columns="*")
    assert everything.columns == list(ALL_COLUMNS)
    by_offset = {row.offset: row for row in everything.collect()}
    for event in list(stream.read())[::50]:
        row = by_offset[str(event.offset)]
        assert bytes(row.body) == event.body
        assert row.headers == dict(event.headers)
        assert (row["position"], row["index"]) == (event.position, event.index_in_block)
    assert load(spark, stream, includeHeaders="true").columns == ["timestamp", "headers", "body"]
    chosen = spark.read.schema("body binary").format("filestream").load(stream.url)
    assert chosen.columns == ["body"]
    assert chosen.count() == 600


def test_bounds_by_time_and_position(spark, stream):
    assert load(spark, stream, startingTimestamp=str(START + DAY)).count() == 400
    assert load(spark, stream, endingTimestamp=str(START + DAY)).count() == 200
    assert (
        load(
            spark, stream, startingTimestamp=str(START + 50), endingTimestamp=str(START + 60)
        ).count()
        == 20
    )
    assert load(spark, stream, startingOffsets="-7").count() == 7
    offset = str(list(stream.read())[100].offset)
    assert load(spark, stream, startingOffsets=offset).count() == 500
    assert load(spark, stream, endingOffsets=offset).count() == 100
    assert load(spark, stream, startingOffsets="latest").count() == 0


def test_an_empty_stream_is_an_empty_table(spark, tmp_path):
    assert load(spark, filestream.create(tmp_path / "empty")).count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colums": "body"}, "FS_INVALID: unknown option"),
        ({"columns": "nothing"}, "FS_INVALID: columns must be"),
        ({"startingOffsets": "soon"}, "FS_INVALID: no position"),
    ],
)
def test_bad_options_say_what_is_wrong(spark, stream, options, message):
    with pytest.raises(Exception, match=message):
        load(spark, stream, **options).count()


def test_a_path_that_is_no_stream_says_so(spark, tmp_path):
    with pytest.raises(Exception, match="FS_NOT_FOUND: there is no stream"):
        spark.read.format("filestream").load(str(tmp_path / "no")).count()


def test_damage_fails_the_query_or_is_skipped_by_option(spark, stream):
    path = min(Path(stream.url.removeprefix("file://")).glob("00001/*/*.dat"))
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(bytes(data))

    with pytest.raises(Exception, match="FS_CORRUPT"):
        load(spark, stream).count()
    assert load(spark, stream, mode="permissive").count() == 500


def test_available_now_ends_and_goes_on_from_its_checkpoint(spark, stream, tmp_path):
    options = {"startingOffsets": "earliest", "maxRecordsPerTrigger": "250"}

    def run():
        query = start(spark, stream, "available", tmp_path / "c", **options)
        query = query.trigger(availableNow=True).start()
        query.awaitTermination(120)
        return [progress["numInputRows"] for progress in query.recentProgress]

    assert sum(run()) == 600
    assert len(rows(spark, "available", tmp_path / "c")) == 600
    assert sum(run()) == 0
    with stream.writer() as writer:
        writer.append_many([b"late-%d" % n for n in range(5)], START + n_days(1))
    assert sum(run()) == 5
    assert rows(spark, "available", tmp_path / "c")[-1] == b"late-4"


def test_available_now_ends_while_writers_go_on(stream):
    """Asked as Spark asks, without a JVM: events of later must not move the offset."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import BinaryType, StructField, StructType

    from filestream.consumers.spark.source import FilestreamDataSource

    source = FilestreamDataSource({"path": stream.url, "startingOffsets": "earliest"})
    reader = source.streamReader(StructType([StructField("body", BinaryType())]))
    with stream.writer() as writer:
        writer.append(b"before", timestamp_ms=START)
        reader.prepareForTriggerAvailableNow()
        writer.append_many([b"later"] * 5, START)
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert end["records"] == 601
        for _ in range(3):
            writer.append(b"later still", timestamp_ms=START)
            assert reader.latestOffset(end, ReadAllAvailable()) == end


def n_days(count):
    return count * DAY


def test_a_query_begins_at_the_end_and_follows(spark, stream, tmp_path):
    query = start(spark, stream, "follows", tmp_path / "c").start()
    try:
        query.processAllAvailable()
        with stream.writer() as writer:
            for batch in range(3):
                writer.append_many(
                    [b"new-%d-%d" % (batch, n) for n in range(10)], START + n_days(7)
                )
                query.processAllAvailable()
                assert len(rows(spark, "follows", tmp_path / "c")) == (batch + 1) * 10
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.lastProgress["sources"][0]["endOffset"] is not None


def test_the_last_events_and_an_offset_are_exact_starts(spark, stream, tmp_path):
    events = list(stream.read())
    for name, position, expected in (
        ("last", "-37", events[-37:]),
        ("offset", str(events[123].offset), events[123:]),
        ("time", f"@{START + DAY + 5}", [e for e in events if e.timestamp_ms >= START + DAY + 5]),
    ):
        query = start(spark, stream, name, tmp_path / name, startingOffsets=position)
        query.trigger(availableNow=True).start().awaitTermination(120)
        assert rows(spark, name, tmp_path / name) == sorted(event.body for event in expected)


def test_every_event_of_rolled_segments_reaches_a_parquet_sink_once(spark, tmp_path):
    stream = filestream.create(tmp_path / "who")
    expected = []
    with stream.writer() as one, stream.writer() as two:
        for round_ in range(4):
            for writer in (one, two):
                batch = [b"%s-%d-%d" % (writer.writer_id.encode(), round_, n) for n in range(50)]
                writer.append_many(batch, START + n_days(round_ % 2))
                expected += batch
            one.roll()
    sink = tmp_path / "parquet"
    written = (
        spark.readStream.format("filestream")
        .options(startingOffsets="earliest", maxRecordsPerTrigger="60")
        .load(stream.url)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "c2"))
        .option("path", str(sink))
    )
    written.trigger(availableNow=True).start().awaitTermination(120)
    found = sorted(bytes(row.body) for row in spark.read.parquet(str(sink)).collect())
    assert found == sorted(expected)


def test_a_crash_before_the_commit_replays_the_same_batch(spark, stream, tmp_path):
    batches = []

    def keep(frame, number):
        batches.append((number, sorted(bytes(row.body) for row in frame.collect())))

    def run_batches():
        reader = spark.readStream.format("filestream").options(
            startingOffsets="earliest", maxRecordsPerTrigger="150"
        )
        query = reader.load(stream.url).writeStream.foreachBatch(keep)
        query = query.option("checkpointLocation", str(tmp_path / "c"))
        query.trigger(availableNow=True).start().awaitTermination(120)

    run_batches()
    last = max(int(p.name) for p in (tmp_path / "c" / "commits").iterdir() if p.name.isdigit())
    for path in (tmp_path / "c" / "commits").glob(f"*{last}*"):
        path.unlink()
    with stream.writer() as writer:
        writer.append(b"after the crash", timestamp_ms=START)
    before = dict(batches)[last]
    run_batches()

    again = [found for number, found in batches if number == last]
    assert again == [before, before]
    everything = [body for number, found in dict(batches).items() for body in found]
    assert len(everything) == len(set(everything)) == 601


def test_truncation_in_mid_query_is_a_named_error_or_a_skip(spark, stream, tmp_path):
    def run(name, **options):
        query = start(spark, stream, name, tmp_path / name, startingOffsets="earliest", **options)
        query = query.trigger(availableNow=True).start()
        query.awaitTermination(120)

    run("fails")
    run("skips", onTruncate="skip")
    stream.truncate()
    stream.apply_retention()
    with stream.writer() as writer:
        writer.append(b"new life", timestamp_ms=START)

    with pytest.raises(Exception, match="FS_TRUNCATED"):
        run("fails")
    run("skips", onTruncate="skip")
    assert b"new life" in rows(spark, "skips", tmp_path / "skips")
    run("tolerant", failOnDataLoss="false")
    assert rows(spark, "tolerant", tmp_path / "tolerant") == [b"new life"]


def test_data_that_expired_unread_is_a_named_error_or_a_skip(spark, tmp_path):
    stream = filestream.create(tmp_path / "who")
    writer = stream.writer()
    writer.append(b"one", timestamp_ms=START)

    def run(name, **options):
        query = start(spark, stream, name, tmp_path / name, startingOffsets="earliest", **options)
        query.trigger(availableNow=True).start().awaitTermination(120)

    run("loss")
    run("noloss", failOnDataLoss="false")
    writer.append(b"two", timestamp_ms=START)
    writer.close()
    for path in Path(stream.url.removeprefix("file://")).glob("00001/*/*"):
        path.unlink()

    with pytest.raises(Exception, match="FS_DATA_LOSS"):
        run("loss")
    run("noloss", failOnDataLoss="false")


def test_spark_finds_the_source_by_itself(tmp_path):
    """The shim module, in a fresh session that registers nothing."""
    stream = filestream.create(tmp_path / "who")
    with stream.writer() as writer:
        writer.append_many([b"1", b"2", b"3"])
    code = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("COUNT", spark.read.format("filestream").load({stream.url!r}).count())
"""
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        check=False,
    )
    assert "COUNT 3" in shown.stdout, shown.stderr[-2000:]


def test_a_driver_that_is_killed_delivers_every_event_once(spark, tmp_path, seed):
    """Checkpoints: source offsets and the file sink's log agree after every kill."""
    chance = random.Random(seed)
    stream = filestream.create(tmp_path / "s", acknowledgement="os", segment_size="64KiB")
    with stream.writer() as writer:
        for block in range(200):
            writer.append_many([b"%d" % (100 * block + n) for n in range(100)])
    checkpoint = tmp_path / "checkpoint"
    script = textwrap.dedent(
        """
        import sys
        from pyspark.sql import SparkSession
        from filestream.consumers.spark.register import register

        url, checkpoint = sys.argv[1:]
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.hadoop.fs.defaultFS", "file:///")
            .getOrCreate()
        )
        register(spark)
        source = spark.readStream.format("filestream").option("maxRecordsPerTrigger", "300")
        sink = source.option("startingOffsets", "earliest").load(url).writeStream.format("parquet")
        sink = sink.option("path", checkpoint + "-out").option("checkpointLocation", checkpoint)
        sink.start().awaitTermination()
        """
    )
    log = Path(f"{checkpoint}-out") / "_spark_metadata"
    kills = 0
    for _ in range(3):
        before = len(list(log.glob("[0-9]*")))
        driver = subprocess.Popen(
            [sys.executable, "-c", script, stream.url, str(checkpoint)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        try:
            until_s = time.monotonic() + 90
            while len(list(log.glob("[0-9]*"))) < before + 2:
                assert driver.poll() is None
                assert time.monotonic() < until_s
                time.sleep(0.02)  # noqa: TID251 - waits for another program
            time.sleep(chance.random() * 0.3)  # noqa: TID251 - killed at any moment
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            kills += driver.wait() == -signal.SIGKILL
    assert kills == 3

    query = start(
        spark, stream, "out", checkpoint, startingOffsets="earliest", maxRecordsPerTrigger=5000
    )
    query.trigger(availableNow=True).start().awaitTermination()

    assert sorted(map(int, rows(spark, "out", checkpoint))) == list(range(20_000))


@pytest.mark.zookeeper
def test_coordination_by_zookeeper_needs_no_option(spark, zookeeper, tmp_path):
    stream = filestream.create(
        tmp_path / "s", coordination=f"zk://{zookeeper.hosts}/spark?timeout=5s"
    )
    with stream.writer() as writer:
        writer.append_many([b"%d" % n for n in range(100)])
    assert load(spark, stream).count() == 100

    stream.truncate()

    assert load(spark, stream).count() == 0
