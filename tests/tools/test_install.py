"""The package builds on a machine without a compiler, and with one gets its kernel."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("has_compiler", [False, True])
def test_the_kernel_is_optional(tmp_path, has_compiler, require_all):
    if has_compiler and not require_all and not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler on this machine")
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for floor in ("filestream", "partitions", "consumers", "tools"):
        ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
        shutil.copytree(ROOT / floor, tmp_path / floor, ignore=ignored)
    (tmp_path / "pyspark_filestream.py").touch()
    compiler = {} if has_compiler else {"CC": "/bin/false"}
    built = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build", "--build-lib", "out"],
        cwd=tmp_path,
        env={**os.environ, **compiler},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "out" / "filestream" / "partitions" / "writer.py").exists()
    shown = subprocess.run(
        [sys.executable, "-c", "import filestream; print(filestream.kernel())"],
        cwd=tmp_path / "out",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == ("compiled" if has_compiler else "pure")
