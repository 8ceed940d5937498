"""docs/commands.md against the parser: every command and option is there, and no other."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from nodeagent.cli.commands import COMMANDS, MPS_COMMANDS
from nodeagent.cli.parser import Parser, build_parser
from nodeagent.cli.simulate.options import SIMULATIONS

PAGE = (Path(__file__).parents[2] / "docs/commands.md").read_text(encoding="utf-8")
NAMES = [
    *COMMANDS,
    *(f"simulate {name}" for name in SIMULATIONS),
    *(f"mps {name}" for name in MPS_COMMANDS),
]


def _parsers(parser: Parser, prefix: str = "") -> dict[str, set[str]]:
    """Option names by command."""
    parser.fill()
    found: dict[str, set[str]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                found |= _parsers(child, f"{prefix}{name} ")
    options = {option for action in parser._actions for option in action.option_strings}
    return {prefix.strip(): options - {"-h", "--help"}, **found}


OPTIONS = _parsers(build_parser())
GLOBAL = {"--simulate", "--state", "-o", "--output", "--no-color"}


def _section(name: str) -> str:
    match = re.search(rf"^##+ `{name}`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"docs/commands.md has no section `{name}`"
    return match[1]


def _first_column(text: str) -> set[str]:
    cells = (row.split("|")[1] for row in text.splitlines() if row.startswith("| `-"))
    return {option for cell in cells for option in re.findall(r"`(-[\w-]+)", cell)}


@pytest.mark.parametrize("name", NAMES)
def test_a_commands_options_are_documented(name: str) -> None:
    """The table of its section has exactly the options that it takes beside the common ones."""
    assert _first_column(_section(name)) == OPTIONS[name] - GLOBAL


def test_the_common_options_are_documented() -> None:
    """And every command takes them."""
    common = PAGE.split("## Options of every command")[1].split("\n## ")[0]
    assert _first_column(common) == GLOBAL
    assert all(options >= GLOBAL for options in OPTIONS.values())


def test_no_section_is_about_what_is_not_there() -> None:
    """A command that went takes its section along."""
    assert set(re.findall(r"^##+ `([^`]+)`$", PAGE, re.MULTILINE)) == set(NAMES)


def test_all_exit_codes_are_documented() -> None:
    """The four of the table."""
    table = PAGE.split("## Exit codes")[1].split("\n## ")[0]
    assert re.findall(r"^\| (\d) \|", table, re.MULTILINE) == ["0", "1", "2", "3"]
