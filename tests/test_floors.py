"""Nothing below imports above: the floors of the house, read from the imports."""

import ast
import configparser
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ["filestream", "partitions", "consumers", "tools"]  # ground first


def floor_of(module: str) -> int:
    """Floor of a dotted name: ``filestream.consumers.group`` stands on floor 2."""
    parts = module.split(".")
    return FLOORS.index(parts[1]) if len(parts) > 1 and parts[1] in FLOORS else 0


def imported(tree: ast.AST) -> set[str]:
    """Every filestream module that a file names in an import, wherever it stands."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute in this project"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "filestream"}


def test_no_room_imports_from_a_floor_above():
    face = ROOT / "filestream" / "__init__.py"
    upward = [
        f"{path.relative_to(ROOT)} imports {name}"
        for floor, folder in enumerate(FLOORS)
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != face
        for name in sorted(imported(ast.parse(path.read_text())))
        if floor_of(name) > floor
    ]
    assert upward == []


def test_backends_do_not_know_each_other():
    for folder in ("storage", "coordination"):
        for path in (ROOT / "filestream" / folder).glob("*.py"):
            if path.name in ("open.py", "__init__.py"):
                continue
            siblings = {
                name.split(".")[2]
                for name in imported(ast.parse(path.read_text()))
                if name.startswith(f"filestream.{folder}.")
            }
            # Some rooms serve any store; the rooms of one backend share a first name.
            known = {
                "base",
                "polling",
                "marks",
                "belief",
                "claims",
                "process",
                path.stem.split("_")[0],
            }
            strangers = {s for s in siblings if s.split("_")[0] not in known}
            assert strangers == set(), path


def test_setup_cfg_lists_every_package():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())

    folders = [p.parent for floor in FLOORS for p in (ROOT / floor).rglob("__init__.py")]
    dotted = [".".join(folder.relative_to(ROOT).parts) for folder in folders]
    present = {n if n.startswith("filestream") else f"filestream.{n}" for n in dotted}

    assert listed == present, "a folder that is not listed is missing from the wheel, silently"


def test_the_face_is_cheap():
    heavy = "{'pyarrow', 'fsspec', 'kazoo', 'pyspark', 'numpy', 'google_crc32c'}"
    code = f"import sys, filestream; dir(filestream); print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout.strip() == "[]"


def test_listing_streams_loads_no_arrow_and_no_spark():
    code = (
        "import sys; sys.argv = ['filestream', 'ls', '/'];"
        "from filestream.tools.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'pyarrow', 'pyspark', 'numpy', 'fsspec', 'kazoo'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout.strip().splitlines()[-1] == "[]"


def test_every_public_name_of_the_face_is_there():
    import filestream

    for name in filestream.__all__:
        assert getattr(filestream, name) is not None
