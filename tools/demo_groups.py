"""The part of the demonstration that is about groups: three consumers, one of which is killed.

They divide the flights among them first in, first out, and put what they read into one SQLite database,
keyed by the flight, so that a flight that is handed out again after the kill changes nothing.
"""

import json
import multiprocessing
import sqlite3
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from filestream.clock import SystemClock
from filestream.consumers import stream as streams
from filestream.errors import UnavailableError

__all__ = ["process_in_group"]

GROUP: Final = "delays"
MEMBERS: Final = 3
_EVENTS_PER_BATCH: Final = 4000
_QUIET: Final = "2s"
_DEADLINE_S: Final = 120.0


def process_in_group(
    url: str, database: Path, expected: int, say: Callable[[str], None]
) -> dict[str, float]:
    """Let three processes process the stream, and kill one on the way.

    Args:
        url: of the stream; its bodies are flights as JSON.
        database: file to make, with a row for each flight.
        expected: how many flights there are.
        say: is told what happens.

    Returns:
        The minutes of delay of each carrier, as the group found them.

    Raises:
        UnavailableError: it did not come to an end, or a flight is missing.
    """
    with sqlite3.connect(database) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute(
            "create table flights (id integer primary key, carrier text, delay real, member integer)"
        )
    connection.close()
    # The group exists before its members come, so that the first of them does not take it all.
    streams.open(url).consumer(GROUP, instances=MEMBERS, strategy="fifo").close()
    members = [_start(url, database, number) for number in range(MEMBERS)]
    group = streams.open(url).group(GROUP)
    clock = SystemClock()
    until_s = clock.monotonic_s() + _DEADLINE_S
    has_killed = False
    try:
        while (lag := group.lag()).events:
            if not has_killed and lag.events < expected * 2 // 3:
                members[1].kill()
                members[1].join()
                members[1] = _start(url, database, 1)
                has_killed = True
                say(f"killed member 1 with {lag.events:,} flights to go, and started another")
            if clock.monotonic_s() > until_s:
                raise UnavailableError(f"the demo failed: the group does not finish. lag={lag}")
            clock.sleep(0.1)
    finally:
        for member in members:
            member.join(_DEADLINE_S)
    return _results(database, expected, say)


def _start(url: str, database: Path, number: int) -> BaseProcess:
    # Spawned, not forked: the parent has threads and a JVM.
    member = multiprocessing.get_context("spawn").Process(
        target=_work, args=(url, str(database), number), daemon=True
    )
    member.start()
    return member


def _work(url: str, database: str, number: int) -> None:
    """One member: each batch into the database, then committed."""
    connection = sqlite3.connect(database, timeout=60)
    with streams.open(url).consumer(GROUP, instance=number) as consumer:
        for batch in consumer.batches(_EVENTS_PER_BATCH, timeout=_QUIET):
            flights = [json.loads(event.body) for event in batch]
            rows = [(f["id"], f["carrier"], f["dep_delay"], number) for f in flights]
            with connection:
                connection.executemany("insert or ignore into flights values (?, ?, ?, ?)", rows)
    connection.close()


def _results(database: Path, expected: int, say: Callable[[str], None]) -> dict[str, float]:
    connection = sqlite3.connect(database)
    shares = dict(
        connection.execute("select member, count(*) from flights group by member order by member")
    )
    totals = dict(
        connection.execute("select carrier, coalesce(sum(delay), 0) from flights group by carrier")
    )
    connection.close()
    found = sum(shares.values())
    if found != expected:
        raise UnavailableError(f"the demo failed: flights of the group: {found}, not {expected}")
    for member, share in shares.items():
        say(f"member {member} processed {share:>7,} flights")
    return totals
