"""The command line: one flat level of commands, the same in a pipe as on a terminal.

The contract: stdout carries data and nothing else; progress, hints and errors go to stderr; no pager,
no colour in a pipe, no question without a terminal; ``--json`` wherever there is
data (the demonstration tells its story on stdout and has none). Exit codes: 0 ok, 1
failure, 2 usage, 3 not found, 4 corruption, 5 conflict, 130 interrupted, 141 nobody reads
any more, 143 terminated.
"""

import contextlib
import importlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

import click

from filestream.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    FilestreamError,
    InvalidRequestError,
    NotFoundError,
)
from filestream.version import VERSION

__all__ = ["EXIT_CORRUPT", "main"]

EXIT_CORRUPT: Final = 4
_EXIT_CODES: Final[tuple[tuple[type[FilestreamError], int], ...]] = (
    (InvalidRequestError, 2),
    (NotFoundError, 3),
    (CorruptDataError, EXIT_CORRUPT),
    (ConflictError, 5),
    (FencedError, 5),
)
# Where each command is defined; a room is loaded when one of its commands is called.
_COMMANDS: Final = {
    "create": "streams",
    "ls": "streams",
    "info": "streams",
    "properties": "streams",
    "truncate": "streams",
    "retention": "streams",
    "compact": "compact",
    "rm": "streams",
    "write": "events",
    "cat": "events",
    "tail": "events",
    "group": "groups",
    "watch": "groups",
    "dump": "inspect",
    "verify": "inspect",
    "doctor": "inspect",
    "version": "inspect",
    "bench": "bench",
    "demo": "demo",
}


class _NobodyReadsError(Exception):
    """The reader of our output went away (| head)."""


class _Commands(click.Group):
    """Loads commands one by one, so that ``filestream ls`` pays for ``ls`` alone."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        room = _COMMANDS.get(cmd_name)
        if room is None:
            return None
        module = importlib.import_module(f"filestream.tools.commands.{room}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would turn it into exit code 1 before we see it.
            raise _NobodyReadsError from error


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, prog_name="filestream")
@click.option("-v", "--verbose", count=True, help="Log to stderr; twice for every step.")
def _root(verbose: int) -> None:
    """Streams of events in directories of files.

    A stream is named by a path or a URL: clicks, /data/clicks, file:///data/clicks.

    Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 corruption, 5 conflict, 130 interrupted,
    141 nobody reads stdout any more.
    """
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    _open_missing_streams()
    # As Ctrl-C: what is under way is ended in good order, as a journal that is shipped.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = _root.main(prog_name="filestream", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        _leave(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        _leave(130)
    except (BrokenPipeError, _NobodyReadsError):
        # No error, and no noise at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(141)
    except FilestreamError as error:
        click.echo(f"filestream: {error}", err=True)
        _leave(next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1))
    except OSError as error:
        # Ours are translated where they happen; this is a full stdout, or a lost directory.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo(f"filestream: {error}", err=True)
        _leave(1)
    else:
        _leave(code if isinstance(code, int) else 0)


def _open_missing_streams() -> None:
    """Whoever closed stdin, stdout or stderr (``>&-``) wants nothing from it."""
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - for the life of the process
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - as above
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as above


def _terminate(number: int, frame: object) -> None:
    del frame
    # A second one ends it at once.
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


def _leave(code: int) -> None:
    sys.exit(code)
