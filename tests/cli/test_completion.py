"""Shell completion and manual pages: all commands and options, in what the shells take."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.parser import build_parser
from tools.make_man_pages import pages

if TYPE_CHECKING:
    from tests.cli.conftest import Program

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
LINES = {
    "nodeagent st": "status",
    "nodeagent simulate occ": "occupy",
    "nodeagent mps st": "status",
    "nodeagent --state node.json expo": "export",
    "nodeagent plan --res": "--reset",
    "nodeagent plan --reset wh": "whenIdle",
    "nodeagent completion f": "fish",
    "nodeagent mps restart --f": "--force",
    "nodeagent bundle a": "a.tar.gz a folder",
    "nodeagent plan -f a.": "a.tar.gz",
    "nodeagent run --run-dir a": "a folder",
    "nodeagent run --node-name a": "",
    "nodeagent explain Blocked ecc inf": "inforom inforomCorrupt",
    "nodeagent explain mps-sh": "mps-shm",
    "nodeagent --simulate gb3": "gb300",
}


def _script(program: Program, shell: str) -> Path:
    made = program("completion", shell)
    assert (made.code, made.err) == (0, "")
    return program.file(made.out, f"completion.{shell}")


@pytest.mark.parametrize("shell", CHECKS)
def test_each_script_has_every_word_and_is_accepted(program: Program, shell: str) -> None:
    """The shell finds no fault in it."""
    script = _script(program, shell)
    text = script.read_text(encoding="utf-8")
    for parser in build_parser().with_subcommands():
        assert parser.prog.rpartition(" ")[2] in text
        for name in (name for action in parser.actions for name in action.option_strings):
            assert (name.lstrip("-") if shell == "fish" else name) in text
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    done = subprocess.run([*CHECKS[shell], script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes(program: Program) -> None:
    """Commands below commands, options, their values, files."""
    script = _script(program, "bash")
    (program.directory / "a folder").mkdir()
    program.file("", "a.tar.gz")
    lines = "".join(
        f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_nodeagent; "
        'echo "${COMPREPLY[*]}"\n'
        for line in LINES
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", f"compopt() {{ :; }}\nsource {script.name}\n{lines}"],
        cwd=program.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    found = dict(zip(LINES, done.stdout.splitlines(), strict=True))
    assert {k: set(v.split()) for k, v in found.items()} == {
        k: set(v.split()) for k, v in LINES.items()
    }


def test_every_command_has_a_manual_page(tmp_path: Path) -> None:
    """With its options; roff finds no fault in it."""
    made = pages()
    for parser in build_parser().with_subcommands():
        page = made[f"{parser.prog.replace(' ', '-')}.1"].replace("\\-", "-")
        assert all(name in page for action in parser.actions for name in action.option_strings)
    if shutil.which("groff") is None:
        pytest.skip("there is no groff on this machine")
    for name, page in made.items():
        (tmp_path / name).write_text(page, encoding="utf-8")
    command_line = ["groff", "-man", "-Tutf8", "-ww", "-z", *made]
    done = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
