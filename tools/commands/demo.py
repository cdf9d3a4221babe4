"""The command that shows everything at once."""

from pathlib import Path

import click

from filestream.tools import demo as demonstration


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("filestream-demo"),
    show_default=True,
    help="Where the stream and the picture go.",
)
@click.option("--url", help="Make the stream below this place: hdfs://..., s3://bucket/path.")
def demo(out: Path, url: str | None) -> None:
    """Produce, tail, query with Spark and truncate 336 776 flights; takes about a minute."""
    demonstration.run(out, url)
