"""What every command prints with: JSON or text, a question or ``--yes``, progress on stderr."""

import base64
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from filestream.partitions.event import Event
from filestream.units import format_timestamp

__all__ = ["as_json", "confirm", "event_json", "json_option", "print_facts", "progress_bar"]

json_option = click.option("--json", "as_json_", is_flag=True, help="Print JSON on stdout.")


def as_json(value: object) -> None:
    """Print one JSON value on a line."""
    click.echo(json.dumps(value, ensure_ascii=False))


def print_facts(facts: Mapping[str, object]) -> None:
    """Names and values, aligned."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {value}")


def event_json(event: Event) -> dict[str, Any]:
    """An event as ``cat --json`` prints it, and as ``write --json`` takes it."""
    shown: dict[str, Any] = {
        "timestamp": format_timestamp(event.timestamp_ms),
        "offset": str(event.offset),
        "headers": dict(event.headers),
    }
    try:
        shown["body"] = event.body.decode()
    except UnicodeDecodeError:
        shown["body_base64"] = base64.b64encode(event.body).decode()
    return shown


def confirm(what: str, *, yes: bool) -> None:
    """Ask on a terminal, insist on ``--yes`` elsewhere.

    Raises:
        click.UsageError: nobody can be asked.
        click.ClickException: the answer was no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{what} Nobody can be asked here: repeat with --yes, or --dry-run.")
    if not click.confirm(f"{what} Go on?", err=True):
        raise click.ClickException("nothing was done.")


@contextmanager
def progress_bar(label: str, length: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr while a terminal looks; None, and no output, elsewhere."""
    if not sys.stderr.isatty() or length <= 0:
        yield None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield bar.update
