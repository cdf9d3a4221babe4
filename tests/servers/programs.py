"""Programs that tests run beside themselves: found, started, signalled, and always ended."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java") if home else shutil.which("java")


def cache() -> Path:
    """Where servers that had to be fetched or built are kept from one run to the next."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "filestream-test-servers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Program:
    """One process with its log; ``stop`` ends it whatever state it is in."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment and {**os.environ, **environment},
            )

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float = 60) -> None:
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            if is_ready():
                return
            time.sleep(0.02)  # noqa: TID251 - waits for another program
        raise AssertionError(self.log.read_text()[-3000:])

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
