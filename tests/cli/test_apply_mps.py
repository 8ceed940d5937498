import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.mps.processes import CONTROL, mps_process
from nodeagent.simulation.mps.clients import SimulatedClient
from tests.cli.conftest import Program
from tests.machine_load import stretched, wait_until

USER = 1000 if os.geteuid() == 0 else os.geteuid()
SHARED = f"{{devices: [0], mps: {{replicas: 2, user: {USER}}}}}"


@pytest.fixture
def node(short: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Program]:
    """One simulated H100, in a folder that every user can reach and that sockets can have."""
    program = Program(short, capsys)
    program.node("h100-80gb:1")
    yield program
    for pid in daemons(short):
        os.kill(pid, signal.SIGKILL)
        _reap(pid)


def daemons(folder: Path) -> list[int]:
    """Pids of the control daemons whose things are in the folder."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    found = [mps_process(pid) for pid in pids]
    here = [one for one in found if one and one.pipe_directory.startswith(f"{folder}/")]
    return [one.pid for one in here if one.program == CONTROL]


def _reap(pid: int) -> None:
    """It is a child of this very process, in which the commands run."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_thrown_away_node_leaves_no_daemon(node: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(node.directory))
    done = node("apply", "-f", node.plan(SHARED), "--simulate", "h100-80gb:1")
    assert (done.code, done.err) == (0, "")
    assert "done     start MPS" in done.out
    assert daemons(node.directory) == []


def test_a_daemon_that_died_is_no_match(node: Program) -> None:
    plan = node.plan(SHARED)
    assert node.on("apply", "-f", plan).code == 0
    assert node.on("assert", "-f", plan).code == 0
    [pid] = daemons(node.directory)
    os.kill(pid, signal.SIGKILL)
    _reap(pid)
    checked = node.on("assert", "-f", plan)
    assert checked.code == 1
    assert "not as the document says: 1 GPU of 1 differ" in checked.out
    assert "the MPS daemon of GPU 0 is Backoff: its process is gone" in checked.out
    [problem] = node.on("plan", "-o", "json", "-f", plan).json["problems"]
    assert problem["code"] == "Mps"
    again = node.on("apply", "-f", plan)
    assert (again.code, again.out) == (0, "In sync: nothing to do.\n")
    assert len(daemons(node.directory)) == 1
    assert node.on("assert", "-f", plan).code == 0


def test_assert_names_a_compute_mode_that_differs(node: Program) -> None:
    """It is no part of the layout, so the layouts alone would be the same on both sides."""
    plan = node.plan(SHARED)
    assert node.on("apply", "-f", plan).code == 0
    state = node.directory / "node.json"
    there = json.loads(state.read_text())
    (card,) = (gpu for gpu in there["gpus"] if gpu["compute_mode"])
    card["compute_mode"] = 0
    state.write_text(json.dumps(there))
    checked = node.on("assert", "-f", plan)
    assert checked.code == 1
    assert "GPU 0: has MIG off, with MPS; should have compute mode exclusiveProcess" in checked.out


def test_a_daemon_that_does_not_come_is_a_failure_each_time(node: Program) -> None:
    knobs = ("simulate", "mps")
    assert node.on(*knobs, "start_error", "no luck today").code == 0
    plan = node.plan(SHARED)
    failed = node.on("apply", "-f", plan)
    assert failed.code == 1
    assert "no luck today" in failed.out
    again = node.on("apply", "-o", "json", "-f", plan)
    assert again.code == 1
    assert again.json["verdictAfter"] == "inSync"
    [problem] = again.json["problems"]
    assert problem["code"] == "Mps"
    assert "the MPS daemon of GPU 0 is" in problem["message"]
    assert "Partly failed" in node.on("apply", "-f", plan).out
    assert node.on(*knobs, "--clear").code == 0
    assert node.on("apply", "-f", plan).code == 0
    assert node.on("assert", "-f", plan).code == 0


def test_waiting_for_a_client(node: Program) -> None:
    assert node.on("apply", "-f", node.plan(SHARED)).code == 0
    [pid] = daemons(node.directory)
    bare = node.plan("{devices: [0], mig: disabled}")
    pipes = mps_process(pid)
    assert pipes is not None
    with SimulatedClient(
        Path(pipes.pipe_directory), uid=USER, state=node.state, device="0"
    ) as client:
        client.wait_until_accepted(20)
        refused = node.on("apply", "-f", bare)
        assert refused.code == 3
        assert str(client.pid) in refused.out
        words = ("apply", "-f", bare, "--wait", "120", "--state", node.state)
        with node.process(*words, stdout=subprocess.PIPE, text=True) as waiting:
            time.sleep(2)
            assert waiting.poll() is None
            client.allocate(1 << 20)
            client.close()
            out, _ = waiting.communicate(timeout=stretched(60))  # half of what it may wait
    assert waiting.returncode == 0
    assert "stop MPS" in out
    _reap(pid)
    assert daemons(node.directory) == []
