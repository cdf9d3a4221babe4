"""The command that packs small segments."""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from filestream.errors import InvalidRequestError
from filestream.partitions import streams
from filestream.partitions.compaction import Compaction
from filestream.tools.cli import EXIT_CORRUPT
from filestream.tools.commands.output import as_json, json_option
from filestream.units import format_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@click.command()
@click.argument("url")
@click.option(
    "--after",
    default="10m",
    show_default=True,
    help="A partition is finished so long after its end.",
)
@click.option(
    "--grace", default="1h", show_default=True, help="Packed segments stay so long before they go."
)
@click.option(
    "--pack-size", default="64MiB", show_default=True, help="Of a pack, about; 1MiB to 1GiB."
)
@click.option("--spark", "with_spark", is_flag=True, help="Let the workers of Spark do it.")
@click.option("--dry-run", is_flag=True, help="Read everything, change nothing.")
@json_option
def compact(
    url: str,
    after: str,
    grace: str,
    pack_size: str,
    with_spark: bool,
    dry_run: bool,
    as_json_: bool,
) -> None:
    """Put the small segments of finished partitions into packs.

    Readers, groups and Spark checkpoints notice nothing but the speed. Segments that were packed an
    hour ago (--grace) are removed by the next run, so run it from time to time. It may be killed at
    any point. Exit code 4 when it meets damage, which it leaves as it is; filestream verify looks at
    everything.

    With --spark the session is that of the environment, as spark-submit and spark-defaults.conf
    set it up.
    """
    if with_spark:
        with _spark() as spark:
            from filestream.consumers.spark.compaction import compact as compact_by_spark

            done = compact_by_spark(
                spark, url, after=after, grace=grace, pack_size=pack_size, dry_run=dry_run
            )
    else:
        stream = streams.open(url)
        with _bar() as progress:
            done = stream.compact(
                after=after, grace=grace, pack_size=pack_size, dry_run=dry_run, progress=progress
            )
    _show(done, dry_run=dry_run, as_json_=as_json_)


def _show(done: Compaction, *, dry_run: bool, as_json_: bool) -> None:
    if as_json_:
        as_json({**dataclasses.asdict(done), "dry_run": dry_run})
    else:
        would = "would be " if dry_run else ""
        for pack in done.packs:
            size = format_size(pack.size_bytes)
            click.echo(f"{would}packed  {pack.key}  {pack.segments} segments, {size}")
        if done.removed:
            click.echo(f"{would}removed  {done.removed} segments that a pack holds")
        if done.waiting:
            click.echo(f"{done.waiting} packed segments wait for their grace time", err=True)
        if not (done.packs or done.removed or done.waiting):
            click.echo(
                "nothing to pack: two small segments in a row, of one writer, in a finished "
                "partition",
                err=True,
            )
    for key in done.refused:
        click.echo(f"damaged, and left alone: {key}; see filestream verify", err=True)
    if done.refused:
        sys.exit(EXIT_CORRUPT)


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr while a terminal looks; it begins when it is known how much there is."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=1, label="compact", file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield show


@contextmanager
def _spark() -> Iterator["SparkSession"]:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidRequestError(
            f"{error}: pip install 'filestream-engine[spark]', or leave out --spark"
        ) from error
    # Spark would take python3 from the PATH, which need not be this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("filestream compact").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
