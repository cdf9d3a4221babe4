"""Spark on HDFS and object stores: what it reads, and that it keeps secrets to itself."""

import pytest

import filestream
from filestream.consumers.spark.options import parse_options

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

START = 1_401_408_000_000
SECRET = "testsecret123"


@pytest.fixture(
    params=[
        pytest.param("hdfs", marks=pytest.mark.hdfs),
        pytest.param("s3", marks=pytest.mark.s3),
    ]
)
def store(request, place):
    """URL and options: workers of a Spark that runs already know nothing of our environment."""
    url, options = place(request.param)
    if request.param == "hdfs":
        cluster = request.getfixturevalue("hdfs")
        options = {"webhdfs": f"http://127.0.0.1:{cluster.web_port}"}
    return url, options


def with_options(reader, options):
    for name, value in options.items():
        reader = reader.option(f"storage.{name}", value)
    return reader


def test_a_table_and_a_stream(spark, store, tmp_path, no_grace):
    url, options = store
    stream = filestream.create(url, storage_options=options, partition_duration="1h", linger="0")
    with stream.writer() as one, stream.writer() as two:
        for number in range(40):
            writer = (one, two)[number % 2]
            writer.append_many(
                [b"%d-%d" % (number, n) for n in range(50)], START + number * 300_000
            )
        writer.append(b"open")

        table = with_options(spark.read.format("filestream"), options).load(url)
        assert table.count() == 2001
        assert table.select("body").distinct().count() == 2001
        later = with_options(spark.read.format("filestream"), options)
        later = later.option("startingTimestamp", "2014-05-30T01:00Z").load(url)
        assert later.count() == 28 * 50 + 1

        def run():
            query = (
                with_options(spark.readStream.format("filestream"), options)
                .option("startingOffsets", "earliest")
                .option("maxRecordsPerTrigger", "700")
                .load(url)
                .writeStream.format("parquet")
                .option("path", str(tmp_path / "out"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination(200)
            assert query.exception() is None

        run()
        assert spark.read.parquet(str(tmp_path / "out")).count() == 2001
        two.append_many([b"more %d" % n for n in range(10)])
        run()
    out = spark.read.parquet(str(tmp_path / "out"))
    assert out.count() == out.select("body").distinct().count() == 2011

    # Credentials are in no plan, no checkpoint and no error.
    assert SECRET not in table._jdf.queryExecution().toString()
    for path in (tmp_path / "checkpoint").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()
    with pytest.raises(Exception, match="FS_NOT_FOUND") as error:
        with_options(spark.read.format("filestream"), options).load(f"{url}-not").count()
    assert SECRET not in str(error.value)


def test_options_of_the_store_are_in_no_text():
    options = parse_options(
        {"path": "s3://bucket/x", "Storage.secret_access_key": SECRET}, now_ms=START
    )

    assert options.storage_options == {"secret_access_key": SECRET}
    assert SECRET not in repr(options)
