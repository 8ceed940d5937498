"""`nodeagent run`, as a process, with the other commands beside it."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent_environment import own_host
from tests.machine_load import stretched

if TYPE_CHECKING:
    from tests.cli.conftest import Program

SPLIT = "{devices: [0, 1], mig: {3g.40gb: 1, 1g.10gb: 4}}"


@contextmanager
def _agent(program: Program, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """An agent; asked to stop by SIGTERM afterwards."""
    with program.process("run", *words, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=stretched(30))


def _address(process: subprocess.Popen[str]) -> str:
    """Where it says that it answers."""
    assert process.stderr is not None
    for row in process.stderr:
        if row.startswith("{") and (url := json.loads(row).get("url")):
            return str(url).removeprefix("http://").rstrip("/")
    raise AssertionError("it ended before it answered")


def test_an_agent_on_a_simulated_node(program: Program) -> None:
    """It applies the plan, `status` sees it, `apply` is turned away, and SIGTERM ends it well."""
    plan = program.plan(SPLIT)
    program.node("h100-80gb:2")
    words = ("--state", program.state, "--plan", plan, "--listen", "127.0.0.1:0")
    with _agent(program, *words) as process:
        shown = program("status", "--listen", _address(process))
        assert shown.code == 0
        assert "InSync" in shown.out
        assert "GPUs 0-1" in shown.out
        assert program.on("assert", "-f", plan).code == 0
        refused = program.on("apply", "-f", plan)
        assert refused.code == 1
        assert f"process {process.pid}" in refused.err
    assert process.returncode == 0


def test_it_says_where_to_look(program: Program) -> None:
    """Once it is ready: two commands that can be pasted, and last, alone, the page's address."""
    address = f"{own_host()}:9417"
    words = ("--simulate", "t4:1", "--state", program.state, "--listen", address)
    with _agent(program, *words, "--plan", program.directory / "none.yaml") as process:
        assert process.stderr is not None
        rows = list(itertools.takewhile(lambda row: row != f"http://{address}/\n", process.stderr))
        status, xid = (shlex.split(row) for row in rows[-2:])
        assert status[:3] == xid[:3] == [sys.executable, "-m", "nodeagent"]
        assert program(*xid[3:]).code == 0
        status.remove("--watch")
        assert program(*status[3:]).code == 0
    assert rows[0].startswith("nodeagent keeps simulated t4:1 as ")
    assert process.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--listen", "nowhere"),
        ("--drift", "ignore"),
        ("--resync", "0"),
        ("--parallel", "many"),
        ("--simulate", "h100:1"),
        ("--settings", "/nowhere/settings.yaml"),
    ],
)
def test_bad_settings_are_code_2(words: tuple[str, ...], program: Program) -> None:
    """Two lines, and no agent. Another agent may have the usual address."""
    refused = program("run", "--listen", f"{own_host()}:9417", *words)
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) <= 2


def test_a_taken_address_is_code_1(program: Program) -> None:
    """It names the address, who has it and what to do, before anything is changed."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ("--simulate", "t4:1", "--state", program.state)
        failed = program("run", *words, "--listen", f"127.0.0.1:{port}")
    assert failed.code == 1
    assert failed.err.startswith(
        f"nodeagent: the API cannot listen on 127.0.0.1:{port}: process {os.getpid()} ("
    )
    assert f"`--listen 127.0.0.1:{port + 1}`, or end it: `kill {os.getpid()}`" in failed.err
    assert len(failed.err.splitlines()) == 2
    assert list(program.directory.iterdir()) == []
