"""Commands about whole streams: create, ls, info, properties, truncate, retention, rm."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from filestream.errors import InvalidRequestError, NotFoundError
from filestream.partitions import streams
from filestream.partitions.retention import Removal
from filestream.settings import StreamProperties
from filestream.storage.open import normalise_url, split_url
from filestream.tools.commands.output import as_json, confirm, json_option, print_facts
from filestream.units import format_size, format_timestamp

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would happen, do nothing.")


def _changes(assignments: tuple[str, ...]) -> dict[str, object]:
    changes: dict[str, object] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise InvalidRequestError(f"no property: {assignment!r}. Write name=value, as ttl=30d")
        changes[name.strip()] = value.strip()
    return changes


@click.command()
@click.argument("url")
@click.option("-d", "--partition-duration", help="As 1h or 1d; 1d when not given.")
@click.option("-p", "--property", "properties_", multiple=True, metavar="NAME=VALUE")
@click.option(
    "-c",
    "--coordination",
    help="Where generations and groups are kept: beside the stream (embedded, or conditional on a "
    "bucket), or zk://host:2181,host2:2181/path when several hosts share a disk.",
)
@json_option
def create(
    url: str,
    partition_duration: str | None,
    properties_: tuple[str, ...],
    coordination: str | None,
    as_json_: bool,
) -> None:
    """Create a stream in a directory, on HDFS or in a bucket.

    A URL is a path, hdfs://namenode:8020/path, s3://bucket/path, gs://bucket/path or
    az://container/path. What opens it comes from the environment: HADOOP_CONF_DIR and
    HADOOP_USER_NAME, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT, ...

    Properties are those of `filestream properties`, such as ttl=30d or acknowledgement=os. Secrets for
    ZooKeeper come from the environment: FILESTREAM_ZK_AUTH=user:password, and for zks:// the files
    FILESTREAM_ZK_CA, FILESTREAM_ZK_CERTIFICATE and FILESTREAM_ZK_KEY.
    """
    chosen: dict[str, Any] = _changes(properties_)
    if partition_duration is not None:
        if "partition_duration" in chosen:
            raise click.UsageError("the partition duration is given twice.")
        chosen["partition_duration"] = partition_duration
    StreamProperties.parse(chosen)  # Before the names become arguments.
    made = streams.create(url, coordination=coordination, **chosen)
    if as_json_:
        as_json({"url": made.url, "id": made.id, "generation": made.generation})
    else:
        click.echo(made.url)


@click.command()
@click.argument("root", default=".")
@json_option
def ls(root: str, as_json_: bool) -> None:
    """List the streams directly below a directory."""
    scheme, path = split_url(normalise_url(root))
    if scheme == "file" and not Path(path).is_dir():
        raise NotFoundError(f"there is no such directory: {path}")
    found = streams.list_streams(root)
    if as_json_:
        for url in found:
            as_json({"name": url.rpartition("/")[2], "url": url})
    else:
        for url in found:
            click.echo(url.rpartition("/")[2])


@click.command()
@click.argument("url")
@json_option
def info(url: str, as_json_: bool) -> None:
    """Show what a stream is and holds, and what its acknowledgements survive."""
    stream = streams.open(url)
    summary = stream.summary()
    properties = stream.properties
    journals = stream.journals()
    if as_json_:
        as_json(
            {
                "url": stream.url,
                "name": stream.name,
                "id": stream.id,
                "coordination": stream.coordination,
                "generation": summary.generation,
                "partitions": summary.partitions,
                "segments": summary.segments,
                "open_segments": summary.open_segments,
                "writers": summary.writers,
                "events": summary.events,
                "size_bytes": summary.size_bytes,
                "first_timestamp_ms": summary.first_timestamp_ms or None,
                "last_timestamp_ms": summary.last_timestamp_ms or None,
                "properties": properties.to_json(),
                "acknowledged_survives": stream.acknowledged_survives,
                "journals": [dataclasses.asdict(place) for place in journals],
            }
        )
        return
    facts = {
        "url": stream.url,
        "id": stream.id,
        "coordination": stream.coordination,
        "generation": summary.generation,
        "events": f"{summary.events:,}",
        "size": format_size(summary.size_bytes),
        "partitions": summary.partitions,
        "segments": f"{summary.segments} ({summary.open_segments} open)",
        "writers": summary.writers,
    }
    if summary.events:
        facts["first event"] = format_timestamp(summary.first_timestamp_ms)
        facts["last event"] = format_timestamp(summary.last_timestamp_ms)
    shown = properties.for_people()
    facts["acknowledged"] = f"{properties.acknowledgement}: survives {stream.acknowledged_survives}"
    for place in journals:
        facts[f"journal of {place.writer_id}"] = f"{place.directory} on {place.host}"
    facts |= {name: value for name, value in shown.items() if name != "acknowledgement"}
    print_facts(facts)


@click.command()
@click.argument("url")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@json_option
def properties(url: str, changes: tuple[str, ...], as_json_: bool) -> None:
    """Show a stream's properties, or change some: `properties clicks ttl=30d`.

    \b
    ttl                 events older than this are not delivered; 0 for never
    retention           how long truncated generations stay on disk
    acknowledgement     what a returned append survives: disk, os, memory; object or journal in a bucket
    compression         none or zstd
    event_size          a larger event is refused
    block_size          a block's events at the most; larger ones are cut
    index_interval      data between two index entries
    segment_size        a segment is sealed when it has grown so large,
    segment_age         is so old,
    segment_idle        or has had no event for so long
    linger              in a bucket: at least so long between two commits of a writer,
    commit_size         unless so much has come,
    commits_in_flight   and so many at once
    ship_interval       with a journal: events are in the bucket about so soon
    partition_duration  time that one directory covers; fixed at creation
    format              E3, or E2 for CDAP; fixed at creation

    Durations take a unit (90s, 1h30m, 30d), sizes may (256KiB, 64MB). Writers that are open keep
    what they were opened with.
    """  # noqa: D301 - click looks for the character that the escape stands for
    stream = streams.open(url)
    now = stream.update_properties(**_changes(changes)) if changes else stream.properties
    if as_json_:
        as_json(now.to_json())
    else:
        print_facts(now.for_people())


@click.command()
@click.argument("url")
@yes_option
@dry_run_option
@json_option
def truncate(url: str, yes: bool, dry_run: bool, as_json_: bool) -> None:
    """Start the next generation: every event so far is gone for readers.

    The files stay until `filestream retention` removes them.
    """
    stream = streams.open(url)
    before = stream.generation
    done = {"url": stream.url, "generation_before": before, "generation": before + 1}
    if not dry_run:
        confirm(f"This ends generation {before} of {stream.url} and all its events.", yes=yes)
        result = stream.truncate()
        done |= {
            "generation_before": result.generation_before,
            "generation": result.generation,
        }
    if as_json_:
        as_json({**done, "dry_run": dry_run})
    else:
        verb = "would go" if dry_run else "went"
        click.echo(f"{verb} from generation {done['generation_before']} to {done['generation']}")


class _ApplyByDefault(click.Group):
    """``retention URL`` is ``retention apply URL``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["apply", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ApplyByDefault)
def retention() -> None:
    """Remove the files of truncated generations and expired partitions.

    `retention URL` does it now, `retention run URL` from time to time.
    """


@retention.command()
@click.argument("url")
@click.option("--every", default="10m", show_default=True, help="How often.")
@json_option
def run(url: str, every: str, as_json_: bool) -> None:
    """Apply retention from time to time, until interrupted.

    Of many such processes one does the work; when it dies, another goes on.
    """
    stream = streams.open(url)

    def tell(removals: Sequence[Removal]) -> None:
        if not removals:
            click.echo(f"looking after {stream.url} every {every}", err=True)
        for removal in removals:
            if as_json_:
                as_json({"key": removal.key, "reason": removal.reason})
            else:
                click.echo(f"removed {removal.key} ({removal.reason})")

    with stream.janitor(every=every, tell=tell) as janitor:
        if not janitor.is_elected:
            janitor.work()
        if not janitor.is_elected:
            click.echo(f"another process looks after {stream.url}: standing by", err=True)
        janitor.run()
    streams.open(url)  # Says so when it ended because the stream is gone.


@retention.command()
@click.argument("url")
@yes_option
@dry_run_option
@json_option
def apply(url: str, yes: bool, dry_run: bool, as_json_: bool) -> None:
    """Remove once what no reader can see any more."""
    stream = streams.open(url)
    removals = stream.apply_retention(dry_run=True)
    if removals and not dry_run:
        confirm(f"This removes {len(removals)} directories of {stream.url}.", yes=yes)
        removals = stream.apply_retention()
    if not removals:
        click.echo("nothing to remove", err=True)
    for removal in removals:
        if as_json_:
            as_json({"key": removal.key, "reason": removal.reason, "dry_run": dry_run})
        else:
            click.echo(
                f"{'would remove' if dry_run else 'removed'} {removal.key} ({removal.reason})"
            )


@click.command()
@click.argument("url")
@yes_option
@dry_run_option
@json_option
def rm(url: str, yes: bool, dry_run: bool, as_json_: bool) -> None:
    """Remove a stream with everything in it."""
    stream = streams.open(url)
    if not dry_run:
        confirm(f"This removes {stream.url} with all its events, for good.", yes=yes)
        stream.delete()
    if as_json_:
        as_json({"url": stream.url, "dry_run": dry_run})
    else:
        click.echo(f"{'would remove' if dry_run else 'removed'} {stream.url}")
