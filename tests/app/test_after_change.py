"""The command after a change of devices, as docs/tasks.md has it; its program has a stand-in."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.app.agent_process import Process, agent, profiles, write_plan
from tests.doc_blocks import ROOT, blocks_of
from tests.folders import executable
from tests.machine_load import wait_until

PROGRAM = "/usr/bin/nvidia-ctk"
# Writes down how it was called; with the file `broken` beside it, or `late`, it fails so. While
# there is one `held`, it does not end.
STAND_IN = """#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/calls"
[ -e "$here/late" ] && { sleep 600 & echo $! > "$here/left"; wait; }
while [ -e "$here/held" ]; do sleep 0.02; done
[ -e "$here/broken" ] && { echo no driver; exit 3; }
env | cut -d= -f1 | sort | grep -v -e PWD -e SHLVL -e '^_$' | paste -sd' ' > "$here/environment"
"""


@contextmanager
def running(folder: Path, *files: str, **more: object) -> Iterator[Process]:
    """An agent that divides a GPU in two, with the page's settings, and the stand-in and these
    files beside it as the program that they name.
    """
    page = (ROOT / "docs/tasks.md").read_text(encoding="utf-8")
    block = next(one.body for one in blocks_of(page) if PROGRAM in one.body)
    settings = yaml.safe_load(block)
    program, *words = settings["after_change"]["command"]
    assert program == PROGRAM
    stand_in = executable(folder / "nvidia-ctk", STAND_IN)
    settings["after_change"] |= {"command": [str(stand_in), *words], **more}
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    for name in files:
        (folder / name).touch()
    write_plan(folder, "{3g.40gb: 2}")
    with agent(folder, "--settings", f"{folder}/settings.yaml") as process:
        yield process
        assert process.end() == 0


def calls(folder: Path) -> list[str]:
    return [line for path in folder.glob("calls") for line in path.read_text().splitlines()]


def failures(status: Any) -> list[str]:
    return [one["message"] for one in status["problems"] if one["code"] == "AfterChange"]


def test_it_runs_at_the_start_and_after_each_change(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        process.until_phase("InSync")
        process.until(lambda _: len(calls(tmp_path)) == 1)
        write_plan(tmp_path, "{1g.10gb: 7}")
        process.until(lambda body: profiles(body) == ["1g.10gb"] * 7)
        process.until(lambda _: len(calls(tmp_path)) == 2)
    assert calls(tmp_path) == ["cdi generate --output=/var/run/cdi/nvidia.yaml"] * 2
    assert (tmp_path / "environment").read_text() == "LC_ALL PATH\n"


def test_a_change_and_back_while_it_runs_has_it_run_once_more(tmp_path: Path) -> None:
    with running(tmp_path, "held") as process:
        process.until(lambda body: profiles(body) == ["3g.40gb"] * 2)
        process.until(lambda _: len(calls(tmp_path)) == 1)
        write_plan(tmp_path, "{1g.10gb: 7}")
        process.until(lambda body: profiles(body) == ["1g.10gb"] * 7)
        write_plan(tmp_path, "{3g.40gb: 2}")
        process.until(lambda body: profiles(body) == ["3g.40gb"] * 2)
        (tmp_path / "held").unlink()
        process.until(lambda _: len(calls(tmp_path)) == 2)


def test_its_failure_is_a_problem_and_keeps_nothing_waiting(tmp_path: Path) -> None:
    with running(tmp_path, "broken") as process:
        status = process.until(lambda body: bool(failures(body)))
        assert status["phase"] == "InSync"
        assert failures(status)[0].endswith("ended with 3: no driver")
        (tmp_path / "broken").unlink()
        write_plan(tmp_path, "{1g.10gb: 7}")
        status = process.until(lambda body: not failures(body) and len(calls(tmp_path)) > 1)
        assert profiles(status) == ["1g.10gb"] * 7


def test_one_that_does_not_end_is_ended(tmp_path: Path) -> None:
    """With what it had started: at each try there would be one more."""
    with running(tmp_path, "late", deadline=0.3) as process:
        status = process.until(lambda body: bool(failures(body)))
        assert "did not end within 0.3 s and was ended" in failures(status)[0]
        left = Path("/proc", (tmp_path / "left").read_text().strip(), "cmdline")
        wait_until(lambda: not (left.exists() and left.read_bytes()))
