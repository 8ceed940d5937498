"""A run of tests that is ended from outside leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.mps.processes import CONTROL, SERVER, mps_process
from tests.reaper import PRESENT

ROOT = Path(__file__).parents[1]
# A daemon with a server, and an agent of a kind: what leaves its parent, and what does not.
CASE = """
import asyncio, subprocess
from pathlib import Path
from tests.mps.fleet_rig import GPU, FleetRig, wanted

async def test_that_does_not_end():
    with FleetRig() as rig:
        async with rig.fleet() as fleet:
            await fleet.start(GPU, wanted())
            with rig.client() as client:
                await asyncio.to_thread(client.wait_until_accepted)
                Path("folder.new").write_text(str(rig.folder))
                Path("folder.new").rename("folder")
                await asyncio.sleep(3600)
"""


@pytest.mark.parametrize(
    "end",
    [
        lambda run: run.kill(),
        lambda run: run.terminate(),
        lambda run: os.killpg(run.pid, signal.SIGKILL),
    ],
    ids=["killed", "terminated", "group killed"],
)
def test_daemons_end_with_their_run(
    tmp_path: Path, end: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    """The stand-in, its server and its client are gone soon after pytest is."""
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_case.py").write_text(CASE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(PRESENT)
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "--asyncio-mode=auto", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: (tmp_path / "folder").exists() or run.poll() is not None)
        folder = (tmp_path / "folder").read_text()
        assert {CONTROL, SERVER} <= set(programs_of(folder))
    finally:
        end(run)
        run.wait()
    until(lambda: not programs_of(folder))


def test_the_exit_code_is_that_of_the_tests(tmp_path: Path) -> None:
    """The caller of pytest sees one process, its output and its exit code."""
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_case.py").write_text("def test_fails():\n    assert False\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(PRESENT)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--asyncio-mode=auto", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stdout.count("1 failed") == 1


def programs_of(folder: str) -> list[str]:
    """The programs of MPS whose pipes are below a folder."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    found = (mps_process(pid) for pid in pids)
    return [one.program for one in found if one and one.pipe_directory.startswith(folder)]


def until(so: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + 30.0
    while not so():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
