import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import pynvml
import pytest

from nodeagent.errors import NodeagentError, UsageError
from nodeagent.simulation import SimulatedNode, simulated
from tests.simulation import calls

ELSEWHERE = """
import sys
from ctypes import byref
from pathlib import Path
import pynvml
from nodeagent.simulation import simulated
with simulated(state=Path(sys.argv[1])) as node:
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    for line in sys.stdin:
        print(eval(line), flush=True)
    pynvml.nvmlShutdown()
"""


class Elsewhere:
    """Another process with the same node, which evaluates what it is sent."""

    def __init__(self, state: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE, str(state)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )

    def __enter__(self) -> Self:
        self._process.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.__exit__(None, None, None)

    def does(self, expression: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        print(expression, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "node.json"


def _layout() -> list[tuple[int, str]]:
    device = calls.gpu()
    names = calls.profiles(device)
    return [calls.place_of(one) for name in names for one in calls.instances(device, name)]


def test_a_node_survives(state: Path) -> None:
    with calls.node_with("h100-80gb", state=state, mirrored=True) as node:
        pynvml.nvmlDeviceSetMigMode(calls.gpu(), 1)
        device = calls.create_device(calls.gpu(), "3g", 4)
        uuid = pynvml.nvmlDeviceGetUUID(device)
        process = node.occupy(uuid, command="train")
        pynvml.nvmlDeviceSetComputeMode(device, pynvml.NVML_COMPUTEMODE_PROHIBITED)
    with calls.node_with(None, state=state, mig=False) as node:
        found = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        assert calls.place_of(calls.instances(calls.gpu(), "3g")[0]) == (1, "4:4")
        assert pynvml.nvmlDeviceGetComputeMode(found) == pynvml.NVML_COMPUTEMODE_PROHIBITED
        assert node.cards[0].processes(1, 0) == [process]


def test_the_boards_must_be_those_of_the_file(state: Path) -> None:
    for boards in ("h100-80gb:2,t4", None, "h100-80gb:1,h100-80gb,t4"):
        with simulated(boards, state=state) as node:
            assert len(node.cards) == 3
    with (
        pytest.raises(UsageError, match="h100-80gb:2,t4:1 and not t4:1"),
        simulated("t4", state=state),
    ):
        pass


def test_two_processes_share_a_node(state: Path) -> None:
    with simulated("h100-80gb", state=state), Elsewhere(state) as other:
        pynvml.nvmlInit()
        assert other.does("pynvml.nvmlDeviceSetMigMode(device, 1)") == "0"
        assert pynvml.nvmlDeviceGetMigMode(calls.gpu()) == [1, 1]
        calls.create(calls.gpu(), "3g", 0)
        assert other.does("pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, 9)") == "1"
        other.does("pynvml.nvmlDeviceCreateGpuInstance(device, 9)")
        calls.refused("InsufficientResources", lambda: calls.create(calls.gpu(), "1g"))
        assert _layout() == [(1, "0:4"), (2, "4:4")]
        pynvml.nvmlShutdown()


def test_handles_notice_what_others_destroyed(state: Path) -> None:
    with calls.node_with("h100-80gb", state=state), Elsewhere(state) as other:
        instance = calls.create(calls.gpu(), "7g")
        there = "pynvml.nvmlDeviceGetGpuInstanceById(device, 0)"
        other.does(f"pynvml.nvmlGpuInstanceDestroy({there})")
        other.does("pynvml.nvmlDeviceCreateGpuInstance(device, 0)")
        calls.refused("InvalidArgument", lambda: pynvml.nvmlGpuInstanceGetInfo(instance))
        assert _layout() == [(0, "0:8")]


def test_processes_and_faults_reach_the_other_process(state: Path) -> None:
    with calls.node_with("t4", state=state), Elsewhere(state) as other:
        other.does("node.occupy(0, 4711)")
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(calls.gpu())
        assert [process.pid for process in found] == [4711]
        assert other.does("node.release(0)") == "1"
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(calls.gpu()) == []
        other.does("node.inject('nvmlDeviceGetCount_v2', error='UNKNOWN')")
        calls.refused("Unknown", pynvml.nvmlDeviceGetCount)
        assert pynvml.nvmlDeviceGetCount() == 1
        other.does("pynvml.nvmlDeviceGetCount()")
        assert other.does("node.faults") == "[]"


def test_events_of_other_processes_arrive(state: Path) -> None:
    with calls.node_with("h100-80gb", state=state), Elsewhere(state) as other:
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(calls.gpu(), pynvml.nvmlEventMigConfigChange, events)
        threading.Timer(0.02, other.does, ("pynvml.nvmlDeviceSetMigMode(device, 0)",)).start()
        event = pynvml.nvmlEventSetWait_v2(events, 5000)
        assert event.eventType == pynvml.nvmlEventMigConfigChange


def test_a_killed_process_leaves_a_whole_file(state: Path) -> None:
    SimulatedNode("h100-80gb", state=state).close()
    for _ in range(3):
        with Elsewhere(state) as other:
            assert other.does("pynvml.nvmlDeviceSetMigMode(device, 1)") == "0"
            busy = "[pynvml.nvmlGpuInstanceDestroy(pynvml.nvmlDeviceCreateGpuInstance(device, 0))"
            threading.Timer(0.3, other.kill).start()
            assert other.does(f"{busy} for _ in range(10**9)]") == ""
        with SimulatedNode(state=state) as node:
            assert len(node.cards[0].state.instances) in {0, 1}
            node.reset(0)


@pytest.mark.parametrize(
    "content", ["not json", '{"format": "nodeagent-simulated-node/1"}', "[" * 100_000]
)
def test_a_file_that_is_no_state_is_refused(state: Path, content: str) -> None:
    state.write_text(content)
    with pytest.raises(NodeagentError, match="is not the state of a simulated node") as caught:
        SimulatedNode("t4", state=state)
    assert str(state) in str(caught.value)
    assert "remove it or name another" in str(caught.value)
    assert state.read_text() == content


def _damage(content: dict[str, Any], path: str, value: object) -> str:
    *parents, last = path.split(".")
    inner: Any = content
    for name in parents:
        inner = inner[int(name)] if name.isdigit() else inner[name]
    inner[last] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("gpus.0.board", "h1000"),
        (
            "gpus.0.instances",
            [{"id": 1, "profile": 99, "start": 0, "size": 4, "serial": 1, "compute": []}],
        ),
        ("gpus.0.processes", [{"pid": 1, "command": "x", "kind": "crypto"}]),
        ("switches", {"ampere_mode": "never"}),
    ],
)
def test_damaged_content_is_refused(state: Path, path: str, value: object) -> None:
    with simulated("h100-80gb", state=state) as node:
        node.cards[0].set_mig_mode(enabled=True)
        node.reset(0)
    state.write_text(_damage(json.loads(state.read_text()), path, value))
    with pytest.raises(NodeagentError, match="is not the state of a simulated node"):
        SimulatedNode(state=state)
