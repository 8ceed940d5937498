"""A node with two MPS daemons that have clients, two plans to change between, and its checks."""

import contextlib
from pathlib import Path
from typing import Any

from nodeagent.mps.processes import CONTROL, MpsProcess
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.plan import GpuOutcome, StepResult
from nodeagent.plan.steps import StartMps, StopMps
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.simulation.mps.clients import SimulatedClient
from tests.machine_load import until
from tests.mps.fleet_rig import status
from tests.reconcile.controller_rig import Agent, NodeRig, document, mig_devices

GIB = 1 << 30
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


class Bench:
    """A node with two daemons that have clients; `served` are their devices with their pids."""

    def __init__(self, rig: NodeRig, node: SimulatedNode, agent: Agent) -> None:
        self.rig, self.node, self.agent = rig, node, agent
        self.served: dict[str, int | None] = {}
        self.clients: list[SimulatedClient] = []
        self.goal = BEFORE

    async def start(self) -> None:
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
        self.goal = AFTER if self.goal == BEFORE else BEFORE
        return self.goal

    def check_clients(self, where: str) -> None:
        for client in self.clients:
            client.free(client.allocate(1 << 20))
        now = {device: status(self.agent.fleet, device).pid for device in self.served}
        assert now == self.served, where

    def check_reported(self, outcomes: tuple[GpuOutcome, ...], where: str) -> None:
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


def is_daemon(one: MpsProcess) -> bool:
    try:
        return b"-f" in Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def daemons_of(gpu: Gpu) -> dict[str, Any]:
    return {gpu.uuid: gpu.mps, **{device.uuid: device.mps for device in mig_devices(gpu)}}


def problems(outcome: Any) -> list[Any]:
    return [problem for gpu in outcome.gpus for problem in gpu.problems]


@contextlib.asynccontextmanager
async def bench(**settings: Any) -> Any:
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
