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
from tests.machine_load import stretched
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
    run = run_of(tmp_path, "def test_fails():\n    assert False\n")
    assert run.returncode == 1
    assert run.stdout.count("1 failed") == 1
    assert run.stdout.count("def test_fails") == 1
    assert "so far" not in run.stderr


def run_of(folder: Path, case: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What pytest says of a case, with a reaper of its own."""
    (folder / "test_case.py").write_text(case)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(PRESENT)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--asyncio-mode=auto", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


HANGS = """
import signal, time

def test_fails():
    assert 6 * 7 == 54

def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(3600)
"""


def test_a_run_that_is_ended_names_what_failed(tmp_path: Path) -> None:
    """Each failure is shown when it happens, and all are named where no summary comes."""
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest.replace("STUCK = 60.0", "STUCK = 0.1"))
    run = run_of(tmp_path, HANGS, "-o", "timeout=0.5")
    assert run.returncode == 1
    assert "assert (6 * 7) == 54" in run.stdout
    assert "in test_hangs" in run.stderr
    assert run.stderr.endswith("Failed so far:\ntest_case.py::test_fails\n")


def programs_of(folder: str) -> list[str]:
    """The programs of MPS whose pipes are below a folder."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    found = (mps_process(pid) for pid in pids)
    return [one.program for one in found if one and one.pipe_directory.startswith(folder)]


def until(so: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + stretched(30.0)
    while not so():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
