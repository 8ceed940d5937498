"""The documentation names what there is: every setting, command and option, and no other."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from nodeagent.cli.parser import build_parser, parse
from nodeagent.documents.reading import read_document
from nodeagent.settings import Settings, load_settings
from nodeagent.settings.sources import setting_names

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
SETTINGS = (ROOT / "docs/settings.md").read_text(encoding="utf-8")


def _rows(text: str) -> dict[str, list[str]]:
    """Table rows by the name in code that they begin with."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and (name := re.match(r"`([\w.-]+)", cells[0])):
            rows[name[1]] = cells
    return rows


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def test_every_setting_is_documented_with_its_default() -> None:
    """Each setting has one row, and the default written there is the one in force."""
    rows = _rows(SETTINGS.split("## Names that are no settings", maxsplit=1)[0])
    assert list(setting_names()) == list(rows)
    defaults = json.loads(load_settings(None, {}, {}).model_dump_json())
    for name, (_, default, *_) in rows.items():
        value = defaults
        for part in name.split("."):
            value = value[part]
        if name == "node_name":
            assert "host name" in default
        elif value is None:
            assert default == "none"
        else:
            written = f"{value:g}" if isinstance(value, float) else str(value)
            assert default == f"`{written}`", name


def test_every_command_is_in_the_readme() -> None:
    """README's table of commands has exactly the commands that the program has."""
    table = README.split("## Commands")[1].split("## ")[0]
    commands = [name for name in _rows(table) if not name.startswith("-")]
    assert set(_subparsers(build_parser())) == set(commands)


def test_every_simulation_is_documented() -> None:
    """docs/simulator.md shows every form of `nodeagent simulate`."""
    page = (ROOT / "docs/simulator.md").read_text(encoding="utf-8")
    for name in _subparsers(_subparsers(build_parser())["simulate"]):
        assert f"simulate {name}" in page, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_pages_exist(page: Path) -> None:
    """Each `nodeagent ...` in code parses, so no page shows an option that is not there."""
    text = page.read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    shown = re.findall(r"^nodeagent (.+)$", blocks, re.MULTILINE)
    shown += re.findall(r"`nodeagent ([^`]+)`", text)
    for command in shown:
        if not re.match(r"COMMAND|\.\.\.", command):  # a synopsis
            parse([word for word in command.split() if word != "--help"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_in_the_pages_lead_somewhere(page: Path) -> None:
    """A link to a file of this repository leads to a file that is there."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documents_in_the_pages_are_accepted(page: Path, tmp_path: Path) -> None:
    """Each YAML block is what its first line says: a plan or settings that are accepted."""
    for block in re.findall(
        r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        if "settings.yaml" in block.splitlines()[0]:
            path = tmp_path / "settings.yaml"
            path.write_text(block, encoding="utf-8")
            assert isinstance(load_settings(path, {}, {}), Settings)
        else:
            assert read_document(block).entries
