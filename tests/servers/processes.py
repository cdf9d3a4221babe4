"""Processes that are killed: begun by a server that forks before any client has started its threads."""

import contextlib
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["servers.preloaded"])


def start(target, *arguments) -> multiprocessing.Process:
    """Run a function of a test module in a process of its own, with the environment of now."""
    process = _context.Process(target=_run, args=(dict(os.environ), target, arguments), daemon=True)
    process.start()
    return process


def in_process(target, *arguments, timeout_s: float = 60) -> int:
    """The same, and wait; returns the exit code."""
    process = start(target, *arguments)
    process.join(timeout_s)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def pipe() -> tuple[Connection, Connection]:
    """A receiver and a sender."""
    return _context.Pipe(duplex=False)


def kill(process: multiprocessing.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.join(30)


def _run(environment, target, arguments):
    os.environ.update(environment)
    target(*arguments)
