"""A ``PositionStore`` in SQLite: the position changes in the same transaction as the results.

    positions = SqlitePositions(connection)
    with stream.consumer("sums", positions=positions) as consumer:
        while True:
            with connection, consumer.transaction() as events:  # one transaction of SQLite
                connection.executemany("insert into results values (?)", ...)

``with connection`` commits after the consumer has saved its position into it. If SQLite rolls back,
the position goes back with it, and the consumer reads those events again.
"""

import sqlite3
from typing import Final

from filestream.errors import FencedError, InvalidRequestError, UnavailableError

__all__ = ["SqlitePositions"]

_TABLE: Final = "filestream_positions"


class SqlitePositions:
    """Positions in the table ``filestream_positions`` of a database.

    Args:
        connection: the one that the results go through. The table is made if need be. For the async
            methods of a consumer, which run on threads, open it with ``check_same_thread=False``.

    Raises:
        InvalidRequestError: the connection has no transactions.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        if connection.isolation_level is None or getattr(connection, "autocommit", -1) is True:
            raise InvalidRequestError(
                "this connection commits each statement by itself, so position and results cannot "
                "change together: open it without isolation_level=None and without autocommit=True"
            )
        self._connection = connection
        was_open = connection.in_transaction
        try:
            connection.execute(
                f"create table if not exists {_TABLE} (name text primary key, position text not null)"
            )
            if not was_open:
                connection.commit()
        except sqlite3.Error as error:
            raise UnavailableError(f"SQLite failed: {error}") from error

    def load(self, name: str) -> str | None:
        """See ``PositionStore``."""
        try:
            row = self._connection.execute(
                f"select position from {_TABLE} where name = ?", (name,)
            ).fetchone()
        except sqlite3.Error as error:
            raise UnavailableError(f"SQLite failed: {error}") from error
        return None if row is None else str(row[0])

    def save(self, name: str, before: str | None, after: str) -> None:
        """See ``PositionStore``."""
        try:
            if before is None:
                done = self._connection.execute(
                    f"insert or ignore into {_TABLE} values (?, ?)", (name, after)
                )
            else:
                done = self._connection.execute(
                    f"update {_TABLE} set position = ? where name = ? and position = ?",
                    (after, name, before),
                )
        except sqlite3.Error as error:
            raise UnavailableError(f"SQLite failed: {error}") from error
        if done.rowcount != 1:
            raise FencedError(
                f"another process has moved this position: close this consumer. name={name}"
            )
