import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.mps.processes import CONTROL, SERVER, mps_process
from tests.machine_load import wait_until
from tests.reaper import PRESENT
from tests.virtual_time import is_under_way

# --- guards ---------------------------------------------------------------------------------------


pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")

# One file, because each run of pytest inside a test costs a second.
CASES = """
import asyncio, os, socket, subprocess, threading, time
import pynvml

kept = []

def test_thread():
    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()

def test_process():
    kept.append(subprocess.Popen(["sleep", "9"]))

async def test_task():
    kept.append(asyncio.create_task(asyncio.sleep(60)))

def test_pynvml():
    pynvml.nvmlLib = object()

async def test_failure():
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.create_future().set_exception, OSError("not awaited"))

def test_setting():
    assert os.environ.keys().isdisjoint({"NODEAGENT_PLAN_FILE", "http_proxy", "LANG", "TZ"})
    assert time.localtime(0).tm_hour == 0

def test_connection():
    with socket.socket() as s:
        s.connect(("192.0.2.1", 9))

async def test_orderly():
    await asyncio.gather(asyncio.to_thread(len, ""), asyncio.sleep(0))
    process = await asyncio.create_subprocess_exec("true")
    assert await process.wait() == 0
"""


def test_guards_catch_leaks(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODEAGENT_PLAN_FILE", "http_proxy", "LANG"):
        monkeypatch.setenv(name, "/somewhere")
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    monkeypatch.setenv("COLUMNS", "160")
    pytester.makeconftest(CONFTEST.replace("stretched(GRACE)", "0.1"))
    pytester.makepyfile(CASES)
    result = pytester.runpytest_subprocess("--asyncio-mode=auto", "-p", "no:cacheprovider", "-v")
    result.assert_outcomes(passed=7, failed=1, errors=5)
    for test, words in {
        "thread": "the test left threads*",
        "failure": "the test left what was never retrieved: *Future*",
        "process": "the test left processes*sleep*",
        "task": "the test left tasks*",
        "pynvml": "the test left pynvml with another library*",
    }.items():
        result.stdout.fnmatch_lines([f"*ERROR*::test_{test} - AssertionError: {words}"])
    result.stdout.fnmatch_lines(["*FAILED*::test_connection*a test connects to 192.0.2.1"])


# --- the end of a run -----------------------------------------------------------------------------


ROOT = Path(__file__).parents[1]
# A daemon with a server, and an agent of a kind: what leaves its parent, and what does not.
CASE = """
import asyncio, subprocess
from pathlib import Path
from tests.mps.fleet_rig import GPU, FleetRig, wanted

async def test_that_does_not_end():
    with FleetRig() as rig:
        async with rig.started() as fleet:
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
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
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
        wait_until(lambda: (tmp_path / "folder").exists() or run.poll() is not None)
        folder = (tmp_path / "folder").read_text()
        assert {CONTROL, SERVER} <= set(programs_of(folder))
    finally:
        end(run)
        run.wait()
    wait_until(lambda: not programs_of(folder))


def test_the_exit_code_is_that_of_the_tests(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    run = run_of(tmp_path, "def test_fails():\n    assert False\n")
    assert run.returncode == 1
    assert run.stdout.count("1 failed") == 1
    assert run.stdout.count("def test_fails") == 1
    assert "so far" not in run.stderr


def run_of(folder: Path, case: str, *words: str) -> subprocess.CompletedProcess[str]:
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
    (tmp_path / "conftest.py").write_text(CONFTEST.replace("STUCK = 60.0", "STUCK = 0.1"))
    run = run_of(tmp_path, HANGS, "-o", "timeout=0.5")
    assert run.returncode == 1
    assert "assert (6 * 7) == 54" in run.stdout
    assert "in test_hangs" in run.stderr
    assert run.stderr.endswith("Failed so far:\ntest_case.py::test_fails\n")


TEARDOWN_HANGS = """
import time, pytest

@pytest.fixture
def held():
    yield
    time.sleep(3600)

def test_fails(held):
    assert 6 * 7 == 54

def test_is_slow(held):
    time.sleep(3600)

def test_after(): pass
"""


def test_a_teardown_that_hangs_after_a_failure_ends(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    run = run_of(tmp_path, TEARDOWN_HANGS, "-o", "timeout=0.5")
    assert "assert (6 * 7) == 54" in run.stdout
    assert run.stdout.count("\nE       Failed: Timeout (>0.5s)") == 3
    assert re.search(r"2 failed, 1 passed, 2 errors in", run.stdout)


def test_a_part_says_how_it_ended_and_what_failed(tmp_path: Path) -> None:
    """With the options of `make test`: nothing of what passes but their number."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    makefile = Path(__file__).parents[1].joinpath("Makefile").read_text(encoding="utf-8")
    (options,) = re.findall(r"^QUIET .*LABELLED\),(.*)\)$", makefile, re.MULTILINE)
    cases = "def test_a(): pass\ndef test_b(): assert 6 * 7 == 54\ndef test_c(): pass\n"
    lines = run_of(tmp_path, cases, *options.split()).stdout.splitlines()
    assert lines[0].strip("_") == " test_case.py::test_b (call) "
    assert re.fullmatch(r"1 failed, 2 passed in .*s", lines[-1])


def programs_of(folder: str) -> list[str]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    found = (mps_process(pid) for pid in pids)
    return [one.program for one in found if one and one.pipe_directory.startswith(folder)]


# --- virtual time ---------------------------------------------------------------------------------


def test_what_has_arrived_is_not_under_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        with one, other:
            one.sendall(b"x" * 1000)
            other.recv(1, socket.MSG_WAITALL | socket.MSG_PEEK)
            ends = [server.fileno(), one.fileno(), other.fileno(), 0]
            assert not is_under_way(ends)
            assert not is_under_way(ends[:2])  # the other end is another program's


def test_a_connection_that_is_not_answered_is_under_way() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        clients = [socket.socket() for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        assert is_under_way(client.fileno() for client in clients)
        for client in clients:
            client.close()
