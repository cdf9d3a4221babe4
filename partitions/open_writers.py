"""Writers of this process that are open: forgotten in a forked child, closed at the end.

The references are weak, so that a writer that was dropped without ``close`` can go.
"""

import atexit
import logging
import os
import weakref
from typing import Final, Protocol

from filestream.errors import FilestreamError

__all__ = ["add", "discard"]

logger = logging.getLogger(__name__)


class _Writer(Protocol):
    def close(self) -> None: ...

    def forget_parent(self) -> None: ...


_writers: Final["weakref.WeakSet[_Writer]"] = weakref.WeakSet()


def add(writer: _Writer) -> None:
    """A writer was opened."""
    _writers.add(writer)
    # Last registered, first run: a close still needs its connections.
    atexit.unregister(_close_forgotten)
    atexit.register(_close_forgotten)


def discard(writer: _Writer) -> None:
    """A writer was closed."""
    _writers.discard(writer)


def _forget_those_of_parent() -> None:
    for writer in list(_writers):
        writer.forget_parent()


def _close_forgotten() -> None:
    """At the end of the interpreter: what was appended without waiting must not vanish."""
    for writer in list(_writers):
        logger.warning("writer was not closed, closing it now: %r", writer)
        try:
            writer.close()
        except FilestreamError as error:
            logger.error("events were lost: %s", error)  # noqa: TRY400 - nobody is left to raise to


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_those_of_parent)
