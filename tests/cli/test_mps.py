import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.errors import DrainTimedOut, NodeagentError, StillInUse
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from tests.api.serving import Doing, api, observe
from tests.cli.agent_server import meeting
from tests.cli.conftest import Program
from tests.machine_load import stretched
from tests.views.daemons import mps_client, mps_daemon

WANTED = WantedMps(Sharing((Share("small", 4, 8192, 15.0),), "report"), Account(1000, 1000))
CLIENT = mps_client(4712, "python", 1000, "small", "small-0", 5, 8 << 30, 15.0)


@contextmanager
def agent(directory: Path, error: NodeagentError | None = None) -> Iterator[tuple[str, Doing]]:
    """An agent whose GPU 1 has a daemon; gives the device and what it was asked to do."""
    started, ended = threading.Event(), threading.Event()
    given: list[Any] = []

    async def serve() -> None:
        device = (await observe()).gpus[1].uuid
        daemon = mps_daemon(device, "Ready", WANTED, pid=815, clients=(CLIENT,))
        doing = Doing(error)
        async with api(unix_socket=directory / "agent.sock", doing=doing, daemons=(daemon,)):
            given.extend((device, doing))
            started.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(stretched(30))
        yield given[0], given[1]
    finally:
        ended.set()
        thread.join()


def test_status_and_clients(program: Program) -> None:
    with agent(program.directory) as (device, _):
        where = ("--run-dir", program.directory)
        shown = program("mps", "status", *where)
        assert shown.code == 0
        assert shown.out.splitlines()[1].split()[:5] == ["GPU", "1", "Ready", "815", "1000"]
        assert "small-0" in program("mps", "clients", "1", *where).out
        report = program("mps", "status", device, "-o", "json", *where).json
        assert [daemon["device"] for daemon in report["daemons"]] == [device]
        assert program("mps", "clients", "-o", "json", *where).json == report
        assert yaml.safe_load(program("mps", "clients", "-o", "yaml", *where).out) == report
        assert program("mps", "status", "0", *where).out == "No device has MPS.\n"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("restart", "1"), ("restart", False)),
        (("restart", "1", "--force"), ("restart", True)),
        (("drain", "1"), ("drain", None, False)),
        (("drain", "1", "--timeout", "2.5", "--force"), ("drain", 2.5, True)),
        (("drain", "1", "--timeout", "0"), ("drain", 0.0, False)),
    ],
)
def test_restart_or_drain(words: tuple[str, ...], asked: tuple[Any, ...], program: Program) -> None:
    with agent(program.directory) as (device, doing):
        where = ("--run-dir", program.directory)
        done = program("mps", *words, *where)
        assert done.code == 0, done
        assert done.out.startswith(f"the MPS daemon of {device} was {words[0]}")
        report = program("mps", *words, *where, "-o", "json").json
        assert report["device"] == device
    assert [(call[0], *call[2:]) for call in doing.asked if call[0] != "done"] == [asked, asked]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StillInUse("used by pid 4712 (python)", remedy="end it"), 3),
        (DrainTimedOut("pid 4712 (python) is left", remedy="end it"), 3),
        (NodeagentError("it did not come back", remedy="see its log"), 1),
    ],
)
def test_what_cannot_be_done_is_said(error: NodeagentError, code: int, program: Program) -> None:
    with agent(program.directory, error):
        failed = program("mps", "drain", "1", "--timeout", "1", "--run-dir", program.directory)
    assert (failed.code, failed.out) == (code, "")
    assert failed.err == f"nodeagent: {error.message}\n  {error.remedy}\n"


def test_a_simulated_agent_without_a_socket(program: Program) -> None:
    state = ("--state", program.directory / "node.json")
    failed = program("mps", "restart", "0", *state)
    assert (failed.code, failed.out) == (1, "")
    assert "--run-dir" in failed.err.splitlines()[1]
    assert "simulated" in failed.err.splitlines()[1]


def test_an_agent_that_goes_away_is_reported(program: Program) -> None:
    with meeting(lambda _: None, program.directory / "agent.sock"):
        failed = program("mps", "restart", "0", "--run-dir", program.directory)
    assert failed.code == 1
    assert "ended before it answered" in failed.err
    assert "mps status" in failed.err
