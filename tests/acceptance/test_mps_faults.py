import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from nodeagent.errors import DriverError
from nodeagent.mps.processes import CONTROL, SERVER, mps_process
from nodeagent.simulation import Code, SimulatedNode
from tests.acceptance.agent_home import Home
from tests.acceptance.mps_bench import AFTER, BEFORE, Bench, bench, is_daemon, problems

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


def _apply(home: Home, plan: Path, *more: str) -> dict[str, Any]:
    done = home.run("apply", *_on(home, plan), "-o", "json", *more)
    assert done.returncode == 0, (done.stdout, done.stderr)
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def _on(home: Home, plan: Path) -> list[str]:
    return ["-f", str(plan), "--state", str(home.state)]


def _processes(home: Home, program: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").iterdir():
        one = mps_process(int(entry.name)) if entry.name.isdecimal() else None
        ours = one and one.program == program and str(home.folder) in one.pipe_directory
        if one and ours and (program == SERVER or is_daemon(one)):
            found.setdefault(Path(one.pipe_directory).parent.name, []).append(one.pid)
    return found


def _modes(home: Home) -> dict[str, int]:
    with SimulatedNode(state=home.state) as node:
        whole, divided = node.cards
        migs = {divided.mig_uuid(i, c): c.compute_mode for i, c in divided.mig_devices()}
        return {whole.identity.uuid: whole.state.compute_mode, **migs}


@pytest.mark.timeout(240)  # processes killed, and as many more that go on
@pytest.mark.parametrize("moments", [2, pytest.param(10, marks=pytest.mark.full)])
def test_apply_killed_at_any_moment(home: Home, moments: int) -> None:
    plans = [home.folder / "before.yaml", home.folder / "after.yaml"]
    for path, text in zip(plans, (BEFORE, AFTER), strict=True):
        path.write_text(text)
    _apply(home, plans[0], "--simulate", home.boards)
    with SimulatedNode(state=home.state) as node:
        [used] = [
            node.card(1).mig_uuid(i, c) for i, c in node.card(1).mig_devices() if i.start == 4
        ]
        whole = node.card(0).identity.uuid
    cut_short = 0
    clients = home.client(whole, "small-0", whole), home.client(used, "replica-0", used)
    with clients[0] as one, clients[1] as other:
        served = {device: _processes(home, CONTROL)[device] for device in (whole, used)}
        for moment in range(moments):
            plan = plans[(moment + 1) % 2]
            with SimulatedNode(state=home.state) as node:
                slow = node.inject(delay=0.005, times=None)  # so that it lasts, however quick it is
            process = subprocess.Popen(
                home.command("apply", *_on(home, plan)),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=home.environment,
            )
            time.sleep(0.3 + moment / moments * 0.9)
            process.kill()
            cut_short += process.wait() != 0
            with SimulatedNode(state=home.state) as node:
                node.clear_faults(slow)
            for client in (one, other):
                client.free(client.allocate(1 << 20))
            done = _apply(home, plan)
            where = f"moment {moment}: {done}"
            assert done["verdictAfter"] == "inSync", where
            controls, servers = _processes(home, CONTROL), _processes(home, SERVER)
            assert {device: controls[device] for device in served} == served, where
            assert all(len(pids) == 1 for pids in controls.values()), where
            assert set(servers) <= set(controls), where
            modes = _modes(home)
            assert set(controls) == {d for d, mode in modes.items() if mode == EXCLUSIVE}, where
            assert len(controls) == 3, where
            assert {mode for d, mode in modes.items() if d not in controls} <= {DEFAULT}, where
    assert cut_short >= moments // 2  # else the moments were too late to prove anything
    checked = home.run("assert", *_on(home, plans[0]))
    assert (checked.returncode, checked.stderr) == (0, "")
