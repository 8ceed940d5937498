"""Plans with MPS while the driver, the daemons or the agent itself fail.

Whatever fails: a client's daemon goes on under its pid, what is said is what is so, and the next
round, or the next `apply`, reaches the plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.errors import DriverError
from nodeagent.mps.processes import CONTROL, SERVER, Identity, identify
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.plan import GpuOutcome, StepResult
from nodeagent.plan.problems import Code as Problems
from nodeagent.plan.steps import StartMps, StopMps
from nodeagent.simulation import Code, SimulatedNode, simulated
from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.views.plan_report import outcome_json
from tests.execute.controller_rig import Agent, NodeRig, document, mig_devices
from tests.mps.fleet_rig import US, quick, status, until

GIB = 1 << 30
EXCLUSIVE, DEFAULT = 3, 0
SHARES = "{devices: [0], mps: {shares: {small: {count: 2, memory: %s, threads: 20}}}}"
# GPU 0 has a client throughout, and so has the instance at slice 4 of GPU 1.
BEFORE = document(
    SHARES % "4Gi",
    "{devices: [1], mig: [{profile: 2g.20gb, start: 0, mps: {replicas: 2}}, "
    "{profile: 3g.40gb, start: 4, mps: {replicas: 2}}]}",
)
AFTER = document(
    SHARES % "8Gi",
    "{devices: [1], mig: [{profile: 1g.10gb, start: 1, mps: {replicas: 2}}, "
    "{profile: 1g.10gb, start: 0}, {profile: 3g.40gb, start: 4, mps: {replicas: 2}}]}",
)
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


class Bench:
    """A node with two daemons that have clients; `served` are their devices with their pids."""

    def __init__(self, rig: NodeRig, node: SimulatedNode, agent: Agent) -> None:
        self.rig, self.node, self.agent = rig, node, agent
        self.served: dict[str, int | None] = {}
        self.clients: list[SimulatedClient] = []
        self.goal = BEFORE

    async def start(self) -> None:
        """The plan before, and the clients."""
        assert not problems(await self.agent.reach(BEFORE, parallel=2))
        whole, divided = (await self.agent.node.observe()).gpus
        for device, name in ((whole.uuid, "small-0"), (mig_devices(divided)[1].uuid, "replica-0")):
            client = self.rig.slot(device, name, at=device)
            self.clients.append(client)
            client.wait_until_accepted()
            client.allocate(GIB)
            self.served[device] = status(self.agent.fleet, device).pid
        await until(lambda: all(status(self.agent.fleet, d).clients for d in self.served))

    def turn(self) -> str:
        """The other of the two plans."""
        self.goal = AFTER if self.goal == BEFORE else BEFORE
        return self.goal

    def check_clients(self, where: str) -> None:
        """They and their daemons are as they were."""
        for client in self.clients:
            client.free(client.allocate(1 << 20))
        now = {device: status(self.agent.fleet, device).pid for device in self.served}
        assert now == self.served, where

    def check_reported(self, outcomes: tuple[GpuOutcome, ...], where: str) -> None:
        """The outcome says what is so."""
        daemons = {one.pid for one in self.rig.processes(CONTROL) if is_daemon(one)}
        reported: set[int | None] = set()
        for outcome in outcomes:
            if outcome.failed:
                assert outcome.problems, f"{where}: failed, and nothing reported"
            if outcome.after.access is not Access.OK:
                continue
            reported |= self._check_gpu(outcome, where)
        if all(outcome.after.access is Access.OK for outcome in outcomes):
            assert daemons == reported - {None}, f"{where}: a daemon that is not reported"

    def _check_gpu(self, outcome: GpuOutcome, where: str) -> set[int | None]:
        card, gpu = self.node.card(outcome.after.index), outcome.after
        real = {card.mig_uuid(i, c) for i, c in card.mig_devices()}
        assert {d.uuid for d in mig_devices(gpu)} == real, f"{where}: a lie about devices"
        has = {device: daemon for device, daemon in daemons_of(gpu).items() if daemon}
        for report in outcome.steps:
            step, done = report.step, report.result is StepResult.DONE
            if isinstance(step, StartMps) and done:
                assert has[step.device].state == "Ready", f"{where}: said done, is not Ready"
            if isinstance(step, StopMps) and done:
                assert step.device not in has, f"{where}: said stopped, is there"
        for device, daemon in has.items():
            if daemon.state == "Ready":
                assert daemon.pid in {p.pid for p in self.rig.processes(CONTROL, device)}, where
        return {daemon.pid for daemon in has.values()}


def is_daemon(one: Identity) -> bool:
    """And no front-end, which runs for a moment."""
    try:
        return b"-f" in Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def daemons_of(gpu: Gpu) -> dict[str, Any]:
    """By device; None for those without."""
    return {gpu.uuid: gpu.mps, **{device.uuid: device.mps for device in mig_devices(gpu)}}


def problems(outcome: Any) -> list[Any]:
    """Of all GPUs."""
    return [problem for gpu in outcome.gpus for problem in gpu.problems]


@contextlib.asynccontextmanager
async def bench(**settings: Any) -> Any:
    """Everything of it ends with the test."""
    with NodeRig() as rig, simulated("h100-80gb:2", state=rig.state) as node:
        rig.impatient = True
        async with rig.agent(**settings) as agent:
            made = Bench(rig, node, agent)
            try:
                await made.start()
                yield made
            finally:
                rig.knobs(None).clear()  # the programs are those of other tests, too
                for client in made.clients:
                    client.close()


# --- the driver -----------------------------------------------------------------------------------


@pytest.mark.timeout(1800 if THOROUGH else 600)  # some dozen whole rounds, with real processes
@pytest.mark.parametrize("spread", [0, pytest.param(SPREAD, marks=pytest.mark.full)])
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


# --- the daemons ----------------------------------------------------------------------------------

STARTS = {  # with knobs of all daemons that start from then on
    "start_error": "no such device",
    "slow_start": 30.0,
    "hang": True,
    "busy": "error",
    "ignore_settings": True,
    "die_after": 0.0,
}


@pytest.mark.parametrize(
    "knob",
    [
        "start_error",
        "hang",
        *(
            pytest.param(knob, marks=pytest.mark.full)
            for knob in ("slow_start", "busy", "ignore_settings", "die_after")
        ),
    ],
)
async def test_a_daemon_that_does_not_start(knob: str) -> None:
    """It fails alone, the layout is as planned, the report says which and why; when its trouble is
    over it is Ready, and no other daemon or client was disturbed.
    """
    async with bench(policy=quick(start_deadline=2.0, limit_deadline=2.0)) as made:
        assert not problems(await made.agent.reach(BEFORE, parallel=2))
        made.goal = AFTER
        await _no_start(made, knob)


async def _no_start(made: Bench, knob: str) -> None:
    fleet, others = made.agent.fleet, [made.rig.knobs(d.device) for d in made.agent.fleet.running()]
    for knobs in others:  # one's own count more than everybody's
        knobs.turn(knob, NOT[knob])
    made.rig.knobs(None).turn(knob, STARTS[knob])
    outcome = await made.agent.reach(AFTER, parallel=2)
    made.check_reported(outcome.gpus, knob)
    made.check_clients(knob)
    assert [problem.code for problem in problems(outcome)] == [Problems.MPS], knob
    data = outcome_json(outcome, digest="", source="file")
    steps = [s for gpu in data["gpus"] for s in gpu["steps"] if s["result"] != "done"]
    failed = ("startMps", "failed", "1g.10gb")
    assert [(s["kind"], s["result"], s["profile"]) for s in steps] == [failed], knob
    assert "could not start MPS on 1g.10gb at 1" in data["problems"][0]["message"]
    made.rig.knobs(None).clear()
    for knobs in others:
        knobs.clear()
    fleet.retry()
    await until(lambda: all(daemon.is_ready for daemon in fleet.statuses()), 15)
    again = await made.agent.reach(AFTER)
    made.check_reported(again.gpus, knob)
    assert not problems(again), knob
    assert len(fleet.running()) == 3, knob
    made.check_clients(knob)


# What turns each of them back for one daemon, while it is turned for all.
NOT: dict[str, Any] = {
    "start_error": None,
    "slow_start": 0.0,
    "hang": False,
    "busy": None,
    "ignore_settings": False,
    "die_after": None,
}


@pytest.mark.parametrize(
    "knob",
    [
        "hang",
        "busy",
        pytest.param("deaf", marks=pytest.mark.full),
        pytest.param("server_deaf", marks=pytest.mark.full),
    ],
)
async def test_a_daemon_that_does_not_stop_as_it_should(knob: str) -> None:
    """One without clients: it ends all the same, or nothing is taken from under it, and the report
    says so; the others have their clients.
    """
    async with bench() as made:
        assert not problems(await made.agent.reach(BEFORE, parallel=2))
        await _no_stop(made, knob)


async def _no_stop(made: Bench, knob: str) -> None:
    fleet = made.agent.fleet
    first = mig_devices((await made.agent.node.observe()).gpus[1])[0].uuid
    with made.rig.slot(first, "replica-0", at=first) as client:
        client.wait_until_accepted()  # so that there is a server
        await until(lambda: bool(status(fleet, first).clients))
    await until(lambda: not status(fleet, first).clients)
    made.rig.knobs(first).turn(knob, "error" if knob == "busy" else True)
    outcome = await made.agent.reach(AFTER, parallel=2)
    made.check_reported(outcome.gpus, knob)
    made.check_clients(knob)
    [stop] = [r for r in outcome.gpus[1].steps if isinstance(r.step, StopMps)]
    if stop.result is not StepResult.DONE:
        assert outcome.gpus[1].turned_back, knob
        there = {device.uuid for device in mig_devices(outcome.gpus[1].after)}
        assert first in there, f"{knob}: its device went from under it"
    made.rig.knobs(first).clear()
    async with asyncio.timeout(120):
        while True:
            await fleet.poll()
            again = await made.agent.reach(AFTER, parallel=2)
            if not (found := problems(again)):
                break
            # Late answers of a daemon on a busy machine: not knowing counts as in use.
            assert {problem.code for problem in found} == {Problems.IN_USE}, knob
    made.check_reported(again.gpus, knob)
    made.check_clients(knob)
    # A server ends by itself when its daemon is gone.
    await until(lambda: not made.rig.processes(SERVER, first))


# --- the agent itself -----------------------------------------------------------------------------


class Home:
    """A simulated node in a folder that every user can reach, worked on by `apply` processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "node.json"
        self.run = folder / "node.json.mps" / "run" / "mps"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "nodeagent", *arguments, "--state", str(self.state)]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd())}
        return subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def apply(self, plan: Path, *more: str) -> dict[str, Any]:
        """To its end, which has to be a good one."""
        process = self.start("apply", "-f", str(plan), "-o", "json", *more)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (out, err)
        data: dict[str, Any] = json.loads(out)
        return data

    def processes(self, program: str) -> dict[str, list[int]]:
        """Pids by device."""
        found: dict[str, list[int]] = {}
        for entry in Path("/proc").iterdir():
            one = identify(int(entry.name)) if entry.name.isdecimal() else None
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
        """Compute modes as the hardware has them."""
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
def home() -> Iterator[Home]:
    """Short, for sockets' sake, and open to other users."""
    folder = Path(tempfile.mkdtemp(prefix="na-", dir="/tmp"))
    folder.chmod(0o755)
    made = Home(folder)
    try:
        yield made
    finally:
        made.end_everything()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(240)  # processes killed, and as many more that go on
@pytest.mark.parametrize("moments", [4, pytest.param(10, marks=pytest.mark.full)])
def test_apply_killed_at_any_moment(home: Home, moments: int) -> None:
    """The next `apply` reaches the plan; daemons with clients have the same pid throughout, none is
    doubled, no server is left without one, and compute modes are as they should be.
    """
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
            process = home.start("apply", "-f", str(plan), "-o", "json")
            time.sleep(0.3 + moment / moments * 0.9)
            process.kill()
            process.communicate()
            cut_short += process.returncode != 0
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
    assert checked.communicate(timeout=60)[1] == ""
    assert checked.returncode == 0
