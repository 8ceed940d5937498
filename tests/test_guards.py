"""The guards in conftest.py catch what they are there for."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_the_guards_catch_each_kind_of_leak(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaks and outward connections fail with a message that names them; orderly tests pass."""
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
