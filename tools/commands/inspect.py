"""Commands that look closely: dump, verify, doctor, version."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from filestream import indexfile
from filestream.blocks import Block, Chunk, End
from filestream.codec import kernel
from filestream.errors import CorruptDataError, InvalidRequestError
from filestream.packfile import parse_index, walk
from filestream.partitions import streams
from filestream.partitions.layout import parse_pack_file
from filestream.partitions.packed_storage import PackedStorage
from filestream.partitions.packs import read_index
from filestream.segment_reader import decode_block, parse_header
from filestream.storage.open import normalise_url, open_storage
from filestream.tools import doctor as checks
from filestream.tools.cli import EXIT_CORRUPT
from filestream.tools.commands.output import as_json, json_option, print_facts, progress_bar
from filestream.units import format_timestamp
from filestream.version import VERSION


@click.command()
@click.argument("file")
@click.option("--events", "shows_events", is_flag=True, help="Also the events of each block.")
@json_option
def dump(file: str, shows_events: bool, as_json_: bool) -> None:
    """Show one raw .dat, .seg or .idx file block by block. Takes no lock, changes nothing.

    A .dat that compaction put into a pack is shown from there.
    """
    folder, _, name = normalise_url(file).rpartition("/")
    # What is in a pack can be shown by the name that it had.
    storage = PackedStorage(open_storage(folder))
    data = storage.read(name, 0, storage.size(name))
    rows = _rows(storage, name, data, shows_events=shows_events)
    damaged = False
    for row in rows:
        damaged = damaged or row["what"] == "damage"
        if as_json_:
            as_json(row)
        else:
            rest = "  ".join(f"{k}={v}" for k, v in row.items() if k not in ("what", "position"))
            click.echo(f"{row['position']:>12}  {row['what']:<8} {rest}")
    if damaged:
        raise CorruptDataError("the file is damaged", url=storage.url_of(name))


def _rows(
    storage: PackedStorage, name: str, data: bytes, *, shows_events: bool
) -> Iterator[dict[str, Any]]:
    if data[:2] == b"P1":
        yield from _pack_rows(data)
    elif name.endswith(".idx"):
        yield from _index_rows(name, data)
    elif name.endswith(".seg"):
        for start, size in _members(storage, name, data):
            for row in _block_rows(data[start : start + size], shows_events=shows_events):
                yield {**row, "position": row["position"] + start}
    else:
        yield from _block_rows(data, shows_events=shows_events)


def _members(storage: PackedStorage, name: str, data: bytes) -> Iterator[tuple[int, int]]:
    """Start and size of the segments of a pack: by its index, which a damaged pack still has."""
    found = parse_pack_file("", name)
    try:
        sizes = read_index(storage.inner, found[0]).sizes if found else ()
    except CorruptDataError:
        sizes = ()
    start = 0
    for size in sizes or (size for _, size, _ in walk(data)):
        yield start, size
        start += size


def _pack_rows(data: bytes) -> Iterator[dict[str, Any]]:
    index = parse_index(data)
    packed = format_timestamp(index.packed_at_ms)
    yield {"what": "P1", "position": 0, "packed": packed, "segments": len(index.sizes)}
    position = 0
    for sequence, size in enumerate(index.sizes, index.first):
        yield {"what": "segment", "position": position, "size": size, "sequence": sequence}
        position += size


def _block_rows(data: bytes, *, shows_events: bool) -> Iterator[dict[str, Any]]:
    try:
        header = parse_header(data)
    except CorruptDataError as error:
        yield {"what": "damage", "position": 0, "size": len(data), "note": error.message}
        return
    if header is None:
        yield {"what": "open", "position": 0, "note": "the file header is not whole"}
        return
    yield {
        "what": header.version, "position": 0, "size": header.size,
        "properties": {k: v for k, v in header.properties.items() if k != "stream.schema"},
    }  # fmt: skip
    at = header.size
    while True:
        found = header.parse(data, at, 0)
        if isinstance(found, Block | Chunk):
            block = found.block if isinstance(found, Chunk) else found
            yield {
                "what": "chunk" if isinstance(found, Chunk) else "block",
                "position": block.position,
                "size": block.end - block.position,
                "timestamp": format_timestamp(block.timestamp_ms),
                "span_ms": block.span_ms,
                "events": block.event_count,
                "first": block.first_ordinal,
                "marks": len(block.marks),
            }
            if shows_events and isinstance(found, Block):
                yield from _event_rows(block)
            at = block.end
            continue
        if isinstance(found, End):
            row = dataclasses.asdict(found)
            yield {"what": "end", "position": row.pop("position"), **row}
        elif at < len(data):
            reason = getattr(found, "reason", "the bytes stop inside a block")
            what = (
                "damage"
                if getattr(found, "end", 0) or getattr(found, "is_certain", False)
                else "tail"
            )
            yield {"what": what, "position": at, "size": len(data) - at, "note": reason}
        else:
            yield {"what": "open", "position": at, "note": "no end record"}
        return


def _event_rows(block: Block) -> Iterator[dict[str, Any]]:
    for index, (delta, body, headers) in enumerate(decode_block(block, "")):
        yield {
            "what": "event",
            "position": block.position,
            "index": index,
            "timestamp": format_timestamp(block.timestamp_ms + delta),
            "headers": headers,
            "body": body.decode("utf-8", "backslashreplace"),
        }


def _index_rows(file: str, data: bytes) -> Iterator[dict[str, Any]]:
    if data[:2] not in (b"I1", b"I3"):
        raise InvalidRequestError(f"no index file: it begins with {data[:2]!r}. file={file}")
    file_crc = int.from_bytes(data[2:6], "big") if data[:2] == b"I3" else None
    entries = indexfile.parse(data, file_crc)
    yield {"what": data[:2].decode(), "position": 0, "entries": len(entries)}
    for entry in entries:
        yield {
            "what": "entry",
            "position": entry.position,
            "timestamp": format_timestamp(entry.timestamp_ms),
            "first": entry.first_ordinal,
        }


@click.command()
@click.argument("url")
@click.option("--rebuild-index", is_flag=True, help="Write missing and wrong index files anew.")
@click.option("--notes", is_flag=True, help="Also what is normal, such as open segments.")
@json_option
def verify(url: str, rebuild_index: bool, notes: bool, as_json_: bool) -> None:
    """Check every byte of a stream; exit code 4 when anything is damaged."""
    stream = streams.open(url)
    size = stream.summary().size_bytes if sys.stderr.isatty() else 0
    counts = {"damage": 0, "suspect": 0, "note": 0}
    with progress_bar("verify", size) as progress:
        for finding in stream.verify(rebuild_index=rebuild_index, progress=progress):
            counts[finding.level] += 1
            if finding.level == "note" and not notes:
                continue
            if as_json_:
                as_json(dataclasses.asdict(finding))
            else:
                place = f" at byte {finding.position}" if finding.position else ""
                click.echo(
                    f"{finding.level}: {finding.kind}{place}: {finding.message} {finding.url}"
                )
    summary = f"{counts['damage']} damaged, {counts['suspect']} suspect, {counts['note']} notes"
    click.echo(f"verified {stream.url}: {summary}", err=True)
    if counts["damage"]:
        sys.exit(EXIT_CORRUPT)


@click.command()
@click.argument("url", required=False)
@click.option("--spark", "with_spark", is_flag=True, help="Also start Spark and ask its workers.")
@json_option
def doctor(url: str | None, with_spark: bool, as_json_: bool) -> None:
    """Say what this installation can do, and what a place can promise."""
    results = list(checks.check_installation())
    if url is not None:
        results += checks.check_place(url)
    if with_spark:
        results += checks.check_spark()
    for result in results:
        if as_json_:
            as_json(dataclasses.asdict(result))
    if not as_json_:
        print_facts({f"{'ok ' if r.is_ok else 'BAD'} {r.name}": r.detail for r in results})
    if not all(result.is_ok for result in results):
        sys.exit(1)


@click.command()
@json_option
def version(as_json_: bool) -> None:
    """Print the version and the kernel that runs."""
    facts = {"version": VERSION, "kernel": kernel(), "formats": ["E3", "E2", "E1"]}
    click.echo(json.dumps(facts) if as_json_ else f"filestream {VERSION} ({kernel()} kernel)")
