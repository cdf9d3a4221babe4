"""Runs mypy and basedpyright over the package, and fails when one of them saw only a part of it.

Without the links under ``build/typing`` a type checker would look at the ground floor alone and call it
a success; so the number of files is compared with the tree.
"""

import re
import subprocess
import sys
from pathlib import Path

FLOORS = ("filestream", "partitions", "consumers", "tools")


def main(binaries: str) -> int:
    """Returns an exit code."""
    root = Path(__file__).resolve().parent.parent
    expected = sum(1 for floor in FLOORS for _ in (root / floor).rglob("*.py"))
    mypy = subprocess.run(
        [f"{binaries}/mypy", "--config-file", "setup.cfg"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(mypy.stdout.strip() or mypy.stderr.strip())
    checked = re.search(r"(\d+) source files", mypy.stdout)
    if mypy.returncode or checked is None:
        return 1
    if int(checked[1]) != expected:
        print(f"mypy saw {checked[1]} files, the tree has {expected}")
        return 1
    return subprocess.run([f"{binaries}/basedpyright"], cwd=root, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
