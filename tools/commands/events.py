"""Commands about events: write, cat, tail."""

import base64
import json
import os
import select
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import click

from filestream.blocks import TIMESTAMP_MS_MAX
from filestream.clock import SystemClock
from filestream.codec import encode_event
from filestream.errors import InvalidRequestError
from filestream.partitions import streams
from filestream.partitions.event import Event
from filestream.partitions.positions import End, Last, parse_position, parse_range
from filestream.partitions.writer import StreamWriter
from filestream.segment_reader import OnCorrupt
from filestream.tools.commands.output import event_json, json_option
from filestream.units import parse_timestamp_ms

_READ_SIZE_BYTES = 1 << 20
# One append takes so much of a pipe that is never silent for so long.
_GATHERED_SIZE_BYTES = 4 << 20
_PAUSE_S = 0.001
# What cat --json prints; an offset is read over.
_JSON_NAMES = {"timestamp", "offset", "headers", "body", "body_base64"}


class _BadLineError(InvalidRequestError):
    """A line that is no event.

    Attributes:
        written: how many lines before it are in the stream.
    """

    def __init__(self, message: str, written: int) -> None:
        super().__init__(message)
        self.written = written


@click.command()
@click.argument("url")
@click.option(
    "--json", "as_json_", is_flag=True, help="Lines are JSON objects, as cat --json prints."
)
@click.option(
    "-H", "--header", "headers_", multiple=True, metavar="NAME=VALUE", help="On each event."
)
@click.option("-t", "--timestamp", help="Event time of all: 2026-11-20T10:00Z, milliseconds, -10m.")
@click.option("-w", "--writer-id", help="Names the files; file.0, file.1, ... when not given.")
@click.option("--offsets", is_flag=True, help="Print the offset of each event once it is safe.")
@click.option("--create", "creates", is_flag=True, help="Create the stream if there is none.")
@click.option(
    "--journal", metavar="DIRECTORY", help="Of journals, at level journal; see FILESTREAM_JOURNAL."
)
@click.option(
    "--takeover", is_flag=True, help="Give up events in a journal on a machine that was lost."
)
def write(
    url: str,
    as_json_: bool,
    headers_: tuple[str, ...],
    timestamp: str | None,
    writer_id: str | None,
    offsets: bool,
    creates: bool,
    journal: str | None,
    takeover: bool,
) -> None:
    """Append lines of stdin as events, each as soon as it comes.

    A line's bytes are the body, without the newline. With --json each line is an object with "body"
    (or "body_base64"), and optionally "headers" and "timestamp": what cat --json prints.
    """
    headers: dict[str, str | None] = {}
    for assignment in headers_:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InvalidRequestError(f"no header: {assignment!r}. Write NAME=VALUE")
        headers[name] = value
    now_ms = SystemClock().now_ms()
    stamp = None if timestamp is None else parse_timestamp_ms(timestamp, now_ms=now_ms)
    if creates and not streams.exists(url):
        streams.create(url)
    stream = streams.open(url)
    count = 0
    shows_count = sys.stderr.isatty() and not sys.stdin.isatty()
    try:
        with stream.writer(writer_id, journal=journal, takeover=takeover) as writer:
            for lines in _lines(sys.stdin.buffer, stream.properties.event_size_bytes_max):
                try:
                    written = _append(writer, lines, count, headers, stamp, as_json=as_json_)
                except _BadLineError as error:
                    count = error.written
                    raise
                count += len(lines)
                if offsets:
                    click.echo("\n".join(map(str, written)))
                if shows_count:
                    click.echo(f"\r{count:,} events", err=True, nl=False)
    finally:
        noun = "event" if count == 1 else "events"
        click.echo(f"{chr(13) if shows_count else ''}{count:,} {noun} written", err=True)


def _append(
    writer: StreamWriter,
    lines: list[bytes],
    before: int,
    headers: dict[str, str | None],
    stamp: int | None,
    *,
    as_json: bool,
) -> Iterable[object]:
    if not as_json:
        return writer.append_many([(line, headers) for line in lines], stamp)
    events: list[tuple[bytes, dict[str, str | None]]] = []
    stamps: list[int | None] = []
    now_ms = SystemClock().now_ms()
    failure: _BadLineError | None = None
    for number, line in enumerate(lines, before + 1):
        try:
            body, own_headers, own_stamp = _parse_json_line(line, now_ms)
            every = {**headers, **own_headers}
            encode_event(body, every)
        except InvalidRequestError as error:
            kept = f"Lines 1 to {number - 1} are written." if number > 1 else "Nothing is written."
            failure = _BadLineError(f"line {number}: {error} {kept}", number - 1)
            break
        events.append((body, every))
        stamps.append(stamp if own_stamp is None else own_stamp)
    has_time = any(value is not None for value in stamps)
    times = [now_ms if value is None else value for value in stamps] if has_time else None
    appended = writer.append_many(events, times)
    if failure is not None:
        raise failure
    return appended


def _parse_json_line(line: bytes, now_ms: int) -> tuple[bytes, dict[str, str | None], int | None]:
    try:
        raw: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"no JSON: {line!r:.80}.") from error
    if not isinstance(raw, dict):
        raise InvalidRequestError("no JSON object.")
    if unknown := sorted(set(raw) - _JSON_NAMES):
        raise InvalidRequestError(
            f"unknown name {unknown[0]!r:.50}; known: {', '.join(sorted(_JSON_NAMES))}."
        )
    if isinstance(raw.get("body"), str):
        body = raw["body"].encode("utf-8", "surrogatepass")
    elif isinstance(raw.get("body_base64"), str):
        try:
            body = base64.b64decode(raw["body_base64"], validate=True)
        except ValueError as error:
            raise InvalidRequestError("body_base64 is no base64.") from error
    else:
        raise InvalidRequestError('the object needs "body" (text) or "body_base64".')
    headers = raw.get("headers") or {}
    if not isinstance(headers, dict):
        raise InvalidRequestError('"headers" must be an object.')
    return body, headers, _parse_moment(raw.get("timestamp"), now_ms)


def _parse_moment(moment: object, now_ms: int) -> int | None:
    if moment is None:
        return None
    if isinstance(moment, bool) or not isinstance(moment, (int, str)):
        raise InvalidRequestError('"timestamp" must be ISO 8601 text or milliseconds.')
    stamp = moment if isinstance(moment, int) else parse_timestamp_ms(moment, now_ms=now_ms)
    if not 0 < stamp <= TIMESTAMP_MS_MAX:
        raise InvalidRequestError(f'"timestamp" must lie between 1970 and 9999: {moment!r:.40}.')
    return stamp


def _lines(source: BinaryIO, size_max: int) -> Iterator[list[bytes]]:
    """Whole lines as they come: a slow pipe is not held up, and a fast one pays for few appends.

    Raises:
        InvalidRequestError: a line is longer than an event may be.
    """
    rest: list[bytes] = []
    rest_size = 0
    descriptor = source.fileno()
    while data := _read(descriptor):
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            lines = b"".join((*rest, head)).split(b"\n")
            rest, rest_size = [], 0
            yield lines
        rest.append(tail)
        rest_size += len(tail)
        if rest_size > size_max + _READ_SIZE_BYTES:
            raise InvalidRequestError(
                f"a line is longer than the stream's event_size: raise it, or break the line. "
                f"size={rest_size} most={size_max}"
            )
    if rest_size:
        yield [b"".join(rest)]


def _read(descriptor: int) -> bytes:
    """What is there, and what comes without a pause; nothing at the end."""
    pieces = [os.read(descriptor, _READ_SIZE_BYTES)]
    size = len(pieces[0])
    while pieces[-1] and size < _GATHERED_SIZE_BYTES:
        if not select.select([descriptor], [], [], _PAUSE_S)[0]:
            break
        pieces.append(os.read(descriptor, _READ_SIZE_BYTES))
        size += len(pieces[-1])
    return b"".join(pieces)


@click.command()
@click.argument("url")
@click.argument("span", default="start..end", metavar="[RANGE]")
@click.option("-c", "--count", type=click.IntRange(min=0), help="Stop after so many events.")
@click.option("--on-corrupt", type=click.Choice(["raise", "skip"]), default="raise")
@json_option
def cat(url: str, span: str, count: int | None, on_corrupt: OnCorrupt, as_json_: bool) -> None:
    """Print events and stop at the end.

    RANGE is a position or two: start, end, -100, @2026-11-20T10:00Z, @-10m, an offset, A..B. Times
    without a zone are UTC. Write -- before a range that begins with a minus. Only --json shows where
    one body ends and the next begins when bodies hold newlines.
    """
    start, end = parse_range(span, now_ms=SystemClock().now_ms())
    events = streams.open(url).read(start, end, on_corrupt=on_corrupt)
    _print(events, count, as_json_=as_json_, flushes=False)


@click.command()
@click.argument("url")
@click.option("-n", "--lines", default=10, show_default=True, type=click.IntRange(min=0))
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@click.option("--from", "start", metavar="POSITION", help="Begin there instead of -n events back.")
@click.option("-c", "--count", type=click.IntRange(min=0), help="Stop after so many events.")
@click.option("--timeout", metavar="DURATION", help="With -f: stop when nothing came for so long.")
@json_option
def tail(
    url: str,
    lines: int,
    follow: bool,
    start: str | None,
    count: int | None,
    timeout: str | None,
    as_json_: bool,
) -> None:
    """Print the last events, and with -f whatever comes, for ever."""
    if timeout is not None and not follow:
        raise click.UsageError("--timeout goes with -f.")
    stream = streams.open(url)
    now_ms = SystemClock().now_ms()
    position = Last(lines) if start is None else parse_position(start, now_ms=now_ms)
    if not follow:
        _print(stream.read(position, End()), count, as_json_=as_json_, flushes=False)
        return
    with stream.tail(position, timeout=timeout) as events:
        _print(events, count, as_json_=as_json_, flushes=True)


def _print(events: Iterable[Event], count: int | None, *, as_json_: bool, flushes: bool) -> None:
    out = sys.stdout.buffer
    left = -1 if count is None else count
    if left == 0:
        return
    for event in events:
        if as_json_:
            out.write(json.dumps(event_json(event), ensure_ascii=False).encode("utf-8", "replace"))
            out.write(b"\n")
        else:
            out.write(event.body + b"\n")
        if flushes:
            out.flush()
        left -= 1
        if left == 0:
            break
    out.flush()
