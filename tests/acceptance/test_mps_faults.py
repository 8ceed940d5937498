import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.errors import DriverError
from nodeagent.mps.processes import CONTROL, SERVER, mps_process
from nodeagent.simulation import Code, SimulatedNode
from nodeagent.simulation.mps.clients import SimulatedClient
from tests.acceptance.mps_bench import AFTER, BEFORE, Bench, bench, is_daemon, problems
from tests.agent_environment import agent_environment
from tests.machine_load import stretched
from tests.mps.fleet_rig import US

CHANGING = (
    "nvmlDeviceSetComputeMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance*",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
)
# All calls of a round, which takes minutes, or a few of them, evenly spread.
THOROUGH = bool(os.environ.get("NODEAGENT_TEST_ALL_CODES"))
SPREAD = 10_000 if THOROUGH else 4
AFTER_THEIR_WORK = CHANGING if THOROUGH else CHANGING[:2]


@pytest.mark.timeout(1800 if THOROUGH else 600)  # some dozen whole rounds, with real processes
@pytest.mark.full
@pytest.mark.parametrize("spread", [0, SPREAD])
async def test_every_kind_of_driver_call_fails_once(spread: int) -> None:
    """Calls that change something, instead of their work and after it, and others spread over the
    whole round: never a lie, never a wedge, never a client's daemon ended.
    """
    async with bench() as made:
        before = made.node.journal.total()
        assert not problems(await made.agent.reach(made.turn(), parallel=2))
        count = made.node.journal.total() - before
        for function in CHANGING:
            await _one_fault(made, function, name=function)
        for function in AFTER_THEIR_WORK if spread else AFTER_THEIR_WORK[:1]:
            await _one_fault(made, f"after {function}", name=function, applied=True)
        for number in range(1, count, max(1, count // spread)) if spread else ():
            await _one_fault(made, f"call {number} of {count}", at=number)


async def _one_fault(
    made: Bench, where: str, *, name: str = "*", applied: bool = False, at: int | None = None
) -> None:
    node, goal = made.node, made.turn()
    at_call = None if at is None else node.journal.total() + at
    fault = node.inject(name, error=Code.UNKNOWN, times=1, applied=applied, at_call=at_call)
    try:
        outcome = await made.agent.reach(goal, parallel=2)
    except DriverError:  # nothing could be observed, so nothing was begun
        pass
    else:
        made.check_reported(outcome.gpus, where)
    node.clear_faults(fault)
    made.check_clients(where)
    again = await made.agent.reach(goal, parallel=2)
    assert not problems(again), f"{where}: wedged"
    made.check_reported(again.gpus, where)
    rest = await made.agent.planned(goal)
    assert not rest.steps, f"{where}: the plan is not reached later"
    made.check_clients(where)


# --- an apply that is killed ----------------------------------------------------------------------


EXCLUSIVE, DEFAULT = 3, 0


class Home:
    """A simulated node in a folder that every user can reach, worked on by `apply` processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "node.json"
        self.run = folder / "node.json.mps" / "run" / "mps"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "nodeagent", *arguments, "--state", str(self.state)]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=agent_environment(),
            text=True,
        )

    def apply(self, plan: Path, *more: str) -> dict[str, Any]:
        process = self.start("apply", "-f", str(plan), "-o", "json", *more)
        out, err = process.communicate(timeout=stretched(60))
        assert process.returncode == 0, (out, err)
        data: dict[str, Any] = json.loads(out)
        return data

    def processes(self, program: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for entry in Path("/proc").iterdir():
            one = mps_process(int(entry.name)) if entry.name.isdecimal() else None
            ours = one and one.program == program and str(self.folder) in one.pipe_directory
            if one and ours and (program == SERVER or is_daemon(one)):
                found.setdefault(Path(one.pipe_directory).parent.name, []).append(one.pid)
        return found

    def client(self, device: str, slot: str) -> SimulatedClient:
        lines = (self.run / device / "env" / f"{slot}.env").read_text().splitlines()
        environment = dict(line.split("=", 1) for line in lines if line and line[0] != "#")
        pipes = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        client = SimulatedClient(
            pipes, uid=US, environment=environment, state=self.state, device=device
        )
        client.wait_until_accepted(20)
        return client

    def modes(self) -> dict[str, int]:
        with SimulatedNode(state=self.state) as node:
            whole, divided = node.cards
            migs = {divided.mig_uuid(i, c): c.compute_mode for i, c in divided.mig_devices()}
            return {whole.identity.uuid: whole.state.compute_mode, **migs}

    def end_everything(self) -> None:
        for program in (CONTROL, SERVER):
            for pids in self.processes(program).values():
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, 9)


@pytest.fixture
def home(short_folder: Path) -> Iterator[Home]:
    """Worked on by `apply`; what that started ends with the test."""
    made = Home(short_folder)
    yield made
    made.end_everything()


@pytest.mark.timeout(240)  # processes killed, and as many more that go on
@pytest.mark.parametrize("moments", [2, pytest.param(10, marks=pytest.mark.full)])
def test_apply_killed_at_any_moment(home: Home, moments: int) -> None:
    plans = [home.folder / "before.yaml", home.folder / "after.yaml"]
    for path, text in zip(plans, (BEFORE, AFTER), strict=True):
        path.write_text(text)
    home.apply(plans[0], "--simulate", "h100-80gb:2")
    with SimulatedNode(state=home.state) as node:
        [used] = [
            node.card(1).mig_uuid(i, c) for i, c in node.card(1).mig_devices() if i.start == 4
        ]
        whole = node.card(0).identity.uuid
    cut_short = 0
    with home.client(whole, "small-0") as one, home.client(used, "replica-0") as other:
        served = {device: home.processes(CONTROL)[device] for device in (whole, used)}
        for moment in range(moments):
            plan = plans[(moment + 1) % 2]
            with SimulatedNode(state=home.state) as node:
                slow = node.inject(delay=0.005, times=None)  # so that it lasts, however quick it is
            process = home.start("apply", "-f", str(plan), "-o", "json")
            time.sleep(0.3 + moment / moments * 0.9)
            process.kill()
            process.communicate()
            cut_short += process.returncode != 0
            with SimulatedNode(state=home.state) as node:
                node.clear_faults(slow)
            for client in (one, other):
                client.free(client.allocate(1 << 20))
            done = home.apply(plan)
            where = f"moment {moment}: {done}"
            assert done["verdictAfter"] == "inSync", where
            controls, servers = home.processes(CONTROL), home.processes(SERVER)
            assert {device: controls[device] for device in served} == served, where
            assert all(len(pids) == 1 for pids in controls.values()), where
            assert set(servers) <= set(controls), where
            modes = home.modes()
            assert set(controls) == {d for d, mode in modes.items() if mode == EXCLUSIVE}, where
            assert len(controls) == 3, where
            assert {mode for d, mode in modes.items() if d not in controls} <= {DEFAULT}, where
    assert cut_short >= moments // 2  # else the moments were too late to prove anything
    checked = home.start("assert", "-f", str(plans[0]))
    assert checked.communicate(timeout=stretched(60))[1] == ""
    assert checked.returncode == 0
