"""`nodeagent demo`: what it claims, what it leaves behind, and its commands typed by hand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from nodeagent.cli import main
from tests.acceptance.agent_home import SOON, Home
from tests.machine_load import stretched

DEMO = [sys.executable, "-m", "nodeagent", "demo"]
TOUR = 180.0  # seconds on a busy machine; ten on a quiet one


def environment(home: Home) -> dict[str, str]:
    """The tour's folder is then in the home's."""
    return {**os.environ, "TMPDIR": str(home.folder), "PYTHONPATH": str(Path.cwd())}


def left(home: Home) -> list[str]:
    """Files, and processes that were started with a path in the home's folder."""
    found = [str(path) for path in home.folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if f"{home.folder}/na-demo-".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def toured(home: Home) -> str:
    """What a whole tour prints."""
    done = subprocess.run(
        DEMO, env=environment(home), capture_output=True, text=True, timeout=TOUR, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_the_tour(home: Home) -> None:
    """Each claim holds, the blocker is named, and nothing is left."""
    shown = toured(home)
    assert shown.count("# true: ") == 7
    assert "is in use by pid 4711711 (train)" in shown
    assert "mig-configs:" in shown
    assert left(home) == []


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
def test_an_end_in_between(home: Home, number: signal.Signals) -> None:
    """The agent and the MPS daemon, which would outlive it, end with the tour."""
    with subprocess.Popen(DEMO, env=environment(home), stdout=-1, text=True) as tour:
        assert tour.stdout is not None
        read_until("the MPS daemon answers", tour.stdout)
        assert any("nvidia-cuda-mps-control" in each for each in left(home))
        tour.send_signal(number)
        tour.communicate(timeout=stretched(SOON))
    assert tour.returncode == 130
    assert left(home) == []


def read_until(words: str, stream: IO[str]) -> None:
    """Read lines until one has these words."""
    assert any(words in row for row in stream), f"it ended before {words!r}"


def test_it_takes_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be another node than the one that is named."""
    assert main(["demo", "--simulate", "t4:1"]) == 2
    assert "--simulate" in capsys.readouterr().err


REPORTS = r"""
set -m
reports() {
    until nodeagent status -o json 2> /dev/null | grep -q "\"phase\": \"$1\""; do sleep 0.1; done
}
"""
PHASES = {  # that each of these commands comes after, "" where no agent runs yet
    "nodeagent plan": ["", "Blocked"],
    "nodeagent status": ["InSync", "Blocked", "InSync"],
    "nodeagent assert": ["InSync"],
}


@pytest.mark.full
def test_its_commands_can_be_typed(home: Home) -> None:
    """In this order, each once the agent is as far: they end as in the tour."""
    typed = re.findall(r"^\$ (cat .*?^END|.+?)$", toured(home), re.MULTILINE | re.DOTALL)
    phases = {command: iter(found) for command, found in PHASES.items()}
    script = REPORTS
    for command in typed:
        awaited = phases.get(" ".join(command.split()[:2]), iter([""]))
        if phase := next(awaited):
            script += f"reports {phase}\n"
        script += f"{command}\necho ended: $?\n"
    ended = subprocess.run(
        ["bash", "-c", f"{script}wait"],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=TOUR,
        check=False,
    )
    codes = re.findall(r"^ended: (\d+)$", ended.stdout, re.MULTILINE)
    assert sorted(codes) == ["0"] * (len(typed) - 1) + ["3"], ended.stderr
    assert "is in use by pid 4711711 (train)" in ended.stdout
