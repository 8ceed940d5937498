"""Shell completion and manual pages: all commands and options, in what the shells take."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.commands import all_options
from nodeagent.cli.completion import all_commands
from tools.make_man_pages import pages

if TYPE_CHECKING:
    from tests.cli.conftest import Program

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
LINES = {
    "nodeagent st": "status",
    "nodeagent sim": "simulate",
    "nodeagent simulate occ": "occupy",
    "nodeagent mps st": "status",
    "nodeagent --state plan expo": "export",
    "nodeagent --state = plan expo": "export",
    "nodeagent plan --res": "--reset",
    "nodeagent plan --reset wh": "whenIdle",
    "nodeagent plan --reset = wh": "whenIdle",
    "nodeagent plan -o =": "text json yaml",
    "nodeagent completion f": "fish",
    "nodeagent mps restart --f": "--force",
    "nodeagent bundle a": "a.tar.gz a folder",
    "nodeagent plan -f a.": "a.tar.gz",
    "nodeagent run --run-dir a": "a folder",
    "nodeagent run --node-name a": "",
    "nodeagent explain InU": "InUse",
    "nodeagent explain Blocked ecc inf": "inforom inforomCorrupt",
    "nodeagent explain 7": "74 78 79",
    "nodeagent explain mps-sh": "mps-shm",
    "nodeagent --simulate gb3": "gb300",
    "nodeagent plan --simulate = l4": "l40s",
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
    for path, command in all_commands():
        assert path[-1] in text
        named = (option for option in all_options(command) if not option.is_argument)
        for name in (name for option in named for name in option.names):
            assert (name.lstrip("-") if shell == "fish" else name) in text
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    done = subprocess.run([*CHECKS[shell], script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes(program: Program) -> None:
    """Commands below commands, options, their values, files; values are no commands."""
    script = _script(program, "bash")
    (program.directory / "a folder").mkdir()
    program.file("", "a.tar.gz")
    lines = "".join(
        f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _nodeagent; "
        'echo "${COMPREPLY[*]}"\n'
        for line in LINES
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", f"source {script.name}\n{lines}"],
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


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish on this machine")
def test_fish_completes(program: Program) -> None:
    """The same; where a value follows at once, the option stays before it."""
    script = _script(program, "fish")
    (program.directory / "a folder").mkdir()
    program.file("", "a.tar.gz")
    expected = {line.replace(" = ", "="): words for line, words in LINES.items()}
    expected |= {
        "nodeagent plan --reset=wh": "--reset=whenIdle",
        "nodeagent plan --simulate=l4": "--simulate=l40s",
        "nodeagent plan -o ": "text json yaml",
        "nodeagent bundle a": "a.tar.gz a folder/",
        "nodeagent run --run-dir a": "a folder/",
    }
    del expected["nodeagent plan -o ="]
    lines = "".join(
        f"complete -C '{line}' | string split -f1 \\t | string unescape | string join ' '\necho .\n"
        for line in expected
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script.name}\n{lines}"],
        cwd=program.directory,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(program.directory)},
    )
    assert done.stderr == ""
    found = dict(zip(expected, done.stdout.split(".\n")[:-1], strict=True))
    assert {k: set(v.split()) for k, v in found.items()} == {
        k: set(v.split()) for k, v in expected.items()
    }


def test_every_command_has_a_manual_page(tmp_path: Path) -> None:
    """With its options; roff finds no fault in it."""
    made = pages()
    for path, command in all_commands():
        page = made[f"{'-'.join(path)}.1"].replace("\\-", "-")
        named = (option for option in all_options(command) if not option.is_argument)
        assert all(name in page for option in named for name in option.names)
    if shutil.which("groff") is None:
        pytest.skip("there is no groff on this machine")
    for name, page in made.items():
        (tmp_path / name).write_text(page, encoding="utf-8")
    command_line = ["groff", "-man", "-Tutf8", "-ww", "-z", *made]
    done = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
