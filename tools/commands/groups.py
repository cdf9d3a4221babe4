"""Commands about groups of consumers: group ls, show, reset, skip, reconfigure, dump, rm; and watch."""

import itertools
import sys
from pathlib import Path
from typing import Any

import click

from filestream.consumers import stream as streams
from filestream.consumers.admin import Group
from filestream.consumers.assignment import Strategy
from filestream.consumers.lag import Lag
from filestream.consumers.state import GroupState
from filestream.errors import FilestreamError, InvalidRequestError
from filestream.partitions.layout import Offset
from filestream.tools.commands.output import as_json, confirm, json_option, print_facts
from filestream.units import format_duration, format_size, format_timestamp, parse_size_bytes

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
force_option = click.option(
    "--force", is_flag=True, help="Also while members live: what they hold is not committed."
)


@click.group()
def group() -> None:
    """Look at groups of consumers, and set them right.

    A group comes to be by `group create`, or when a program first opens a consumer of that name. It
    stands where its state says, whether anybody works for it or not.
    """


@group.command()
@click.argument("url")
@click.argument("name", metavar="GROUP")
@click.option("--from", "start", default="start", help="Where to begin: start, end, @-1h, ...")
@click.option("-n", "--instances", help="How many, or auto; 1 when not given.")
@click.option("-s", "--strategy", type=click.Choice(["fifo", "round_robin", "hash"]))
@click.option("-k", "--key-header", help="For hash: the header to divide by.")
@json_option
def create(
    url: str,
    name: str,
    start: str,
    instances: str | None,
    strategy: Strategy | None,
    key_header: str | None,
    as_json_: bool,
) -> None:
    """Create a group before anybody works for it."""
    stream = streams.open(url)
    made = stream.create_group(
        name,
        start=start,
        instances=_instances(instances),
        strategy=strategy,
        key_header=key_header,
    )
    lag = made.lag()
    if as_json_:
        as_json({"group": name, **_division(made.state()), "lag_events": lag.events})
    else:
        click.echo(f"created {name} with a lag of {lag.events:,} events")


@group.command()
@click.argument("url")
@json_option
def ls(url: str, as_json_: bool) -> None:
    """List the groups of a stream with what they have not processed."""
    stream = streams.open(url)
    names = stream.groups()
    damage: FilestreamError | None = None
    width = max(map(len, names), default=0)
    for name in names:
        one = stream.group(name)
        try:
            facts = _facts(one, one.state(), one.lag())
        except FilestreamError as error:
            # One that is damaged must not hide the others.
            damage = damage or error
            if as_json_:
                as_json({"group": name, "error": str(error)})
            else:
                click.echo(f"{name:<{width}}  {error}")
            continue
        if as_json_:
            as_json(facts)
        else:
            click.echo(
                f"{name:<{width}}  lag {facts['lag_events']:,} events, "
                f"{format_size(facts['lag_bytes'])}, {_age(facts['lag_seconds'])}  "
                f"members {len(facts['living'])}"
            )
    if not names:
        click.echo("no groups", err=True)
    if damage is not None:
        raise damage


@group.command()
@click.argument("url")
@click.argument("name", metavar="GROUP")
@json_option
def show(url: str, name: str, as_json_: bool) -> None:
    """Show a group: how it is divided, who works for it, how far behind it is."""
    one = streams.open(url).group(name)
    state = one.state()
    facts = _facts(one, state, one.lag())
    if as_json_:
        as_json(facts)
        return
    shown: dict[str, object] = {
        "group": name,
        "strategy": facts["strategy"]
        + (f" by {facts['key_header']}" if facts["key_header"] else ""),
        "instances": facts["instances"],
        "generation": facts["generation"],
        "lag": f"{facts['lag_events']:,} events, {format_size(facts['lag_bytes'])}, "
        f"{_age(facts['lag_seconds'])}",
        "claimed": f"{facts['claims']} batches",
        "given up": f"{len(facts['dead_letters'])} events",
    }
    if facts["oldest_timestamp_ms"]:
        shown["oldest"] = format_timestamp(facts["oldest_timestamp_ms"])
    print_facts(shown)
    for member in facts["members"]:
        life = "alive" if member["is_alive"] else "dead"
        since = format_timestamp(member["since_ms"])
        click.echo(
            f"instance {member['instance']}: {life}, {member['host']}:{member['pid']} since {since}"
        )
    for letter in facts["dead_letters"]:
        click.echo(
            f"given up: {letter['offset']}  {letter['reason']}, deliveries {letter['deliveries']}, "
            f"{format_timestamp(letter['at_ms'])}"
        )


@group.command(context_settings={"ignore_unknown_options": True})
@click.argument("url")
@click.argument("name", metavar="GROUP")
@click.argument("position", required=False)
@click.option("--to-group", metavar="NAME", help="Go on where another group stands.")
@click.option(
    "--to-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    help="Go on where a dump says; - for stdin.",
)
@force_option
@yes_option
@click.option("--dry-run", is_flag=True, help="Say what would come of it, do nothing.")
@json_option
def reset(
    url: str,
    name: str,
    position: str | None,
    to_group: str | None,
    to_file: Path | None,
    force: bool,
    yes: bool,
    dry_run: bool,
    as_json_: bool,
) -> None:
    """Let a group go on from somewhere else.

    Its claims and dead letters are forgotten.

    POSITION is start, end, -100, @2026-11-20T10:00Z, @-10m, or an offset.
    """
    one = streams.open(url).group(name)
    state = None
    if to_file is not None:
        from_stdin = str(to_file) == "-"
        raw = sys.stdin.buffer.read() if from_stdin else to_file.read_bytes()
        state = raw.decode(errors="replace")
    options: dict[str, Any] = {"group": to_group, "dump": state, "force": force}
    plan = one.reset(position, dry_run=True, **options)
    before = "unknown" if plan.before is None else f"{plan.before.events:,}"
    change = f"from a lag of {before} events to one of {plan.after.events:,}"
    if not dry_run:
        one.refuse_living(force=force)
        confirm(f"This takes group {name} {change}.", yes=yes)
        plan = one.reset(position, **options)
    if as_json_:
        as_json(
            {
                "group": name,
                "lag_events_before": None if plan.before is None else plan.before.events,
                "lag_events": plan.after.events,
                "dry_run": dry_run,
            }
        )
    else:
        click.echo(f"{'would go' if dry_run else 'went'} {change}")


@group.command()
@click.argument("url")
@click.argument("name", metavar="GROUP")
@click.argument("offset")
@yes_option
@click.option("--dry-run", is_flag=True, help="Say what would happen, do nothing.")
@json_option
def skip(url: str, name: str, offset: str, yes: bool, dry_run: bool, as_json_: bool) -> None:
    """Give an event up: it stands among the dead letters then."""
    one = streams.open(url).group(name)
    one.state()
    Offset.parse(offset)
    if not dry_run:
        confirm(f"This gives {offset} up for group {name}.", yes=yes)
        one.skip(offset)
    if as_json_:
        as_json({"group": name, "offset": offset, "dry_run": dry_run})
    else:
        click.echo(f"{'would give' if dry_run else 'gave'} up {offset}")


@group.command()
@click.argument("url")
@click.argument("name", metavar="GROUP")
@click.option("-n", "--instances", help="How many, or auto.")
@click.option("-s", "--strategy", type=click.Choice(["fifo", "round_robin", "hash"]))
@click.option("-k", "--key-header", help="For hash: the header to divide by.")
@json_option
def reconfigure(
    url: str,
    name: str,
    instances: str | None,
    strategy: Strategy | None,
    key_header: str | None,
    as_json_: bool,
) -> None:
    """Divide a group in another way, also while it works.

    Nothing is lost and nothing comes twice; members that asked for another division are told to be
    opened anew.
    """
    one = streams.open(url).group(name)
    state = one.reconfigure(
        instances=_instances(instances), strategy=strategy, key_header=key_header
    )
    if as_json_:
        as_json({"group": name, **_division(state)})
    else:
        division = _division(state)
        click.echo(f"{name}: {division['strategy']}, instances {division['instances']}")


@group.command()
@click.argument("url")
@click.argument("name", metavar="GROUP")
def dump(url: str, name: str) -> None:
    """Print the state of a group; `group reset --to-file` takes it."""
    click.echo(streams.open(url).group(name).dump(), nl=False)


@group.command()
@click.argument("url")
@click.argument("name", metavar="GROUP")
@force_option
@yes_option
@click.option("--dry-run", is_flag=True, help="Say what would happen, do nothing.")
@json_option
def rm(url: str, name: str, force: bool, yes: bool, dry_run: bool, as_json_: bool) -> None:
    """Forget a group; the events stay."""
    stream = streams.open(url)
    one = stream.group(name)
    if name not in stream.groups():
        one.state()  # Says so. A damaged one may be removed.
    if not dry_run:
        one.refuse_living(force=force)
        confirm(f"This forgets how far group {name} has come.", yes=yes)
        one.remove(force=force)
    if as_json_:
        as_json({"group": name, "dry_run": dry_run})
    else:
        click.echo(f"{'would remove' if dry_run else 'removed'} {name}")


@click.command()
@click.argument("url")
@click.option("--bytes", "threshold", required=True, help="As 64MB or 1GiB.")
@click.option("--since", default="end", help="What lies behind this position has grown already.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many lines.")
@click.option("--timeout", help="End when there was nothing to tell for so long, as 10m.")
@json_option
def watch(
    url: str,
    threshold: str,
    since: str,
    count: int | None,
    timeout: str | None,
    as_json_: bool,
) -> None:
    """Print a line each time a stream has grown by so many bytes.

    `filestream watch clicks --bytes 64MB -n 1 && spark-submit ...` starts a job when it pays.
    """
    stream = streams.open(url)
    parse_size_bytes(threshold)
    growths = stream.watch_size(threshold, since=since, timeout=timeout)
    for growth in itertools.islice(growths, count):
        if as_json_:
            as_json(growth._asdict())
        else:
            click.echo(
                f"{format_timestamp(growth.timestamp_ms)}  grown {format_size(growth.grown_bytes)}  "
                f"size {format_size(growth.size_bytes)}"
            )


def _instances(text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequestError(f"instances must be a number or auto. instances={text!r:.50}")
    return int(text)


def _division(state: GroupState) -> dict[str, Any]:
    return {
        "strategy": state.layer.strategy,
        "key_header": state.layer.key_header,
        "instances": "auto" if state.is_auto else state.instances,
    }


def _facts(one: Group, state: GroupState, lag: Lag) -> dict[str, Any]:
    living = one.living()
    return {
        "group": one.name,
        **_division(state),
        "generation": state.generation,
        "lag_events": lag.events,
        "lag_bytes": lag.size_bytes,
        "lag_seconds": lag.seconds,
        "oldest_timestamp_ms": lag.oldest_timestamp_ms or None,
        "claims": len(state.claims),
        "living": living,
        "members": [
            {
                "instance": slot,
                "is_alive": slot in living,
                "host": member.host,
                "pid": member.pid,
                "since_ms": member.since_ms,
            }
            for slot, member in sorted(state.members.items())
        ],
        "dead_letters": [
            {
                "offset": str(letter.offset),
                "deliveries": letter.deliveries,
                "reason": letter.reason,
                "at_ms": letter.at_ms,
            }
            for letter in state.dead
        ],
    }


def _age(seconds: float) -> str:
    return format_duration(round(seconds) * 1000) if seconds >= 1 else f"{seconds:.1f}s"
