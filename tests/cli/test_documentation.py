"""docs/commands.md against the parser: every command and option is there, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodeagent.cli.parser import build_parser

PAGE = (Path(__file__).parents[2] / "docs/commands.md").read_text(encoding="utf-8")
OPTIONS = {
    parser.prog.removeprefix("nodeagent").strip(): {
        option for action in parser.actions for option in action.option_strings
    }
    - {"-h", "--help"}
    for parser in build_parser().with_subcommands()
}
NAMES = [name for name in OPTIONS if name]
GLOBAL = {"--simulate", "--state", "-o", "--output", "--no-color"}


SHARED = {"--settings", "--listen", "--run-dir", "--state-dir"}


def _section(name: str) -> str:
    match = re.search(rf"^##+ `{name}`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"docs/commands.md has no section `{name}`"
    return match[1]


def _first_column(text: str) -> set[str]:
    cells = (row.split("|")[1] for row in text.splitlines() if row.startswith("| `-"))
    return {option for cell in cells for option in re.findall(r"`(-[\w-]+)", cell)}


@pytest.mark.parametrize("name", NAMES)
def test_a_commands_options_are_documented(name: str) -> None:
    """The table of its section has those that it takes beside the common and the shared ones."""
    named, taken = _first_column(_section(name)), OPTIONS[name] - GLOBAL
    assert named <= taken
    assert taken - named <= SHARED


def test_who_takes_the_shared_options_is_documented() -> None:
    """By each row of their table; `run` takes them all."""
    table = PAGE.split("## Options of several commands")[1].split("\n## ")[0]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| `-")]
    listed = {
        option.strip(" `"): set(re.findall(r"`([^`]+)`", who)) for _, option, _, who, _ in rows
    }
    assert listed == {
        option: {name for name in NAMES if option in OPTIONS[name]} - {"run"} for option in SHARED
    }


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
