"""Runs mypy and basedpyright over the package, and fails when one of them saw only a part of it.

Type checkers read folders, not Python: ``build/typing`` gets the shape of the installed package,
made of links. Without it they would look at the ground floor alone and call it a success; so
the number of files that each one saw is compared with the tree.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLOORS = {"filestream": "", "partitions": "partitions", "consumers": "consumers", "tools": "tools"}
# pyright reads the stub beside the compiled kernel, and is told to leave the kernel alone.
NOT_FOR_PYRIGHT = 1


def main(binaries: str) -> int:
    """Returns an exit code."""
    expected = _lay_links(ROOT / "build" / "typing" / "filestream")
    mypy = _run(f"{binaries}/mypy", "--config-file", "setup.cfg")
    pyright = _run(f"{binaries}/basedpyright", "--verbose")
    saw = {
        "mypy": re.search(r"(\d+) source files", mypy.stdout),
        "basedpyright": re.search(r"Found (\d+) source files", pyright.stdout),
    }
    print(mypy.stdout.strip() or mypy.stderr.strip())
    print(
        *(line for line in pyright.stdout.splitlines() if re.search(" (error|warning)", line)),
        sep="\n",
    )
    code = mypy.returncode or pyright.returncode
    for name, found in saw.items():
        count = int(found[1]) if found else 0
        if count < expected - (NOT_FOR_PYRIGHT if name != "mypy" else 0):
            print(f"{name} saw {count} files, the tree has {expected}")
            code = code or 1
    return code


def _lay_links(package: Path) -> int:
    """Link every module into the shape of the package; returns how many modules there are."""
    shutil.rmtree(package, ignore_errors=True)
    count = 0
    for floor, below in FLOORS.items():
        for source in (ROOT / floor).rglob("*.py*"):
            if source.suffix in (".py", ".pyi", ".typed"):
                link = package / below / source.relative_to(ROOT / floor)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(source)
                count += source.suffix == ".py"
    return count


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
