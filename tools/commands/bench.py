"""The command that measures."""

from collections.abc import Callable, Iterator
from pathlib import Path

import click

from filestream.tools import bench as measure
from filestream.tools.bench_storage import bench_storage
from filestream.tools.commands.output import as_json, json_option

_PARTS: dict[str, Callable[[Path | None], Iterator[measure.Result]]] = {
    "codec": lambda _where: measure.bench_codec(),
    "write": measure.bench_write,
    "spark": measure.bench_spark,
}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice([*_PARTS]), metavar="[codec|write|spark]...")
@click.option(
    "--dir",
    "where",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Measure on this directory's disk; the temporary directory's by default.",
)
@click.option(
    "--storage",
    "storages",
    multiple=True,
    metavar="URL",
    help="Measure a stream on this store beside its bare client, and nothing else.",
)
@json_option
def bench(
    parts: tuple[str, ...], where: Path | None, storages: tuple[str, ...], as_json_: bool
) -> None:
    """Measure against the bare disk, memcpy, fastavro and Parquet: ratios from one run.

    A ratio above 1 is faster than what it is compared with; the goal stands beside the result.
    """
    card = measure.machine_card()
    if as_json_:
        as_json({"machine": card})
    else:
        click.echo("  ".join(f"{name}={value}" for name, value in card.items()), err=True)
    for url in storages:
        _show(bench_storage(url), as_json_=as_json_)
    for part in parts or (() if storages else tuple(_PARTS)):
        _show(_PARTS[part](where), as_json_=as_json_)


def _show(results: Iterator[measure.Result], *, as_json_: bool) -> None:
    for result in results:
        if as_json_:
            as_json(result.to_json())
            continue
        goal = f"goal {result.goal:.2g}" if result.goal else ""
        mark = "" if not result.goal else "ok" if result.median >= result.goal else "SHORT"
        click.echo(
            f"{result.name:<52} {result.median:>8.2f} x {result.versus:<24} "
            f"({min(result.ratios):.2f}..{max(result.ratios):.2f})  {goal} {mark}".rstrip()
        )
