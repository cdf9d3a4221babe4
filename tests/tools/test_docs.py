"""Links of the documents lead somewhere, and nothing in them is about a machine of ours."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text())

    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_test_that_the_guarantees_name_exists():
    text = (ROOT / "docs" / "guarantees.md").read_text()
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)(?:\.\.\.)?`", text):
        assert f"def {name}" in tests, name
    for path in re.findall(r"`(tests/[\w/]+\.py)`", text):
        assert (ROOT / path).exists(), path


def test_every_property_is_explained_in_the_code_and_in_the_help():
    from click.testing import CliRunner

    from filestream.settings import StreamProperties
    from filestream.tools.commands.streams import properties

    shown = CliRunner().invoke(properties, ["--help"])

    assert shown.exit_code == 0
    for name in StreamProperties().for_people():
        assert name in StreamProperties.__doc__
        assert re.search(rf"^ +{name}\b", shown.output, re.MULTILINE), name
