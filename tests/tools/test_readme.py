"""Every block of the README runs, from top to bottom, in one directory."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(
    r"^```(\w+)\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
)


def environment():
    binaries = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
    }


def test_the_readme_has_only_blocks_that_run():
    assert len(BLOCKS) >= 8
    assert {language for language, _ in BLOCKS} == {"sh", "python"}


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_every_block_of_the_readme_runs(tmp_path):
    if shutil.which("filestream", path=environment()["PATH"]) is None:
        pytest.fail("the command is not installed: run the tests with make test")
    followers = []
    files = contextlib.ExitStack()
    shown = ""
    try:
        for language, block in BLOCKS:
            if "make setup" in block:
                # The set-up has been done, or this test would not run; the rest of the block is.
                block = "\n".join(
                    line for line in block.splitlines() if line.startswith("filestream")
                )
            if "# in a second terminal" in block:
                log = files.enter_context((tmp_path / "second-terminal").open("w"))
                followers.append(
                    subprocess.Popen(["bash", "-c", f"exec {block.splitlines()[1]}"], cwd=tmp_path,
                                     env=environment(), stdout=log)
                )  # fmt: skip
                time.sleep(1)  # noqa: TID251 - a person opens a second terminal
                continue
            command = (
                ["bash", "-euo", "pipefail", "-c"] if language == "sh" else [sys.executable, "-c"]
            )
            done = subprocess.run(
                [*command, block],
                cwd=tmp_path,
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            shown += done.stdout
    finally:
        for follower in followers:
            follower.terminate()
            follower.wait()
        files.close()
    assert "a new life" in shown
    followed = (tmp_path / "second-terminal").read_text().splitlines()
    assert followed[:4] == ["home", "search", "basket", "pay"]
    assert followed[-1] == "a new life"
    assert re.search(r"\|\s*home\|\s*2\|", shown)
