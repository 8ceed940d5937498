"""A simulated node with MPS: real driver part, fleet, memory and publisher, on stand-ins."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from nodeagent.documents.reading import read_document
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.original_settings import FILE_NAME, OriginalSettings
from nodeagent.gpu.users import UsageSource
from nodeagent.mps.files.publisher import Publisher
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.launch.launcher import Launcher
from nodeagent.mps.setup import accounts_for
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import ComputeInstance, Gpu, ObservedNode
from nodeagent.plan.plan import GpuOutcome, NodeOutcome, NodePlan
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve
from nodeagent.plan.shares import Host
from nodeagent.reconcile import node_controller
from nodeagent.reconcile.executor import execute
from nodeagent.settings import MpsSettings
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.mps.clients import SimulatedClient
from tests.mps.fleet_rig import POLICY, US, FleetRig
from tests.rig import SMI

DEFAULT, PROHIBITED, EXCLUSIVE = 0, 2, 3  # compute modes, as NVML numbers them


@dataclass(slots=True)
class Agent:
    """One agent's parts as long as it lives, or those of one `apply`."""

    node: node_controller.NodeController
    fleet: Fleet
    memory: OriginalSettings

    async def planned(self, text: str) -> NodePlan:
        return plan(_desired(text, observed := await self.node.observe()), observed)

    async def reach(self, text: str, *, parallel: int = 1) -> NodeOutcome:
        return await execute(await self.planned(text), self.node, parallel=parallel)

    async def made(self, text: str) -> GpuOutcome:
        """A round that has to go well; the first GPU's outcome."""
        outcome = await self.reach(text)
        assert not [p for gpu in outcome.gpus for p in gpu.problems], outcome
        return outcome.gpus[0]

    async def gpu(self) -> Gpu:
        return (await self.node.observe()).gpus[0]


def _desired(text: str, observed: ObservedNode) -> DesiredNode:
    document = read_document(text)
    user = f"{US}" if os.geteuid() == 0 else f"{US}:{os.getegid()}"
    return resolve(document, observed, Host(user, accounts_for(document, user)))


def document(*gpus: str) -> str:
    return f"version: v1\ngpus: [{', '.join(gpus)}]\n"


WHOLE = document("{devices: [0], mps: {shares: {small: {count: 2, memory: 4Gi, threads: 20}}}}")
NOTHING = document("{devices: [0], mig: disabled}")
TWO = document("{devices: [0], mig: {3g.40gb: 2}, mps: {replicas: 2}}")
RECUT = document("{devices: [0], mig: {1g.10gb: 2}, mps: {replicas: 2}}")


def mig_devices(gpu: Gpu) -> list[ComputeInstance]:
    ordered = sorted(gpu.instances, key=lambda instance: instance.placement)
    return [device for instance in ordered for device in instance.compute]


class NodeRig(FleetRig):
    """The fleet's rig with a simulated node, whose state is in `state`."""

    def __init__(self, *, programs: Path | None = None) -> None:
        super().__init__(programs=programs)
        self.state = self.folder / "node.json"
        self.cdi_dir = self.folder / "cdi"
        self.memory_file = self.folder / "state" / FILE_NAME

    @asynccontextmanager
    async def agent(
        self,
        *,
        exclusive: bool = True,
        time_slices: bool = False,
        policy: MpsSettings = POLICY,
        launcher: Callable[..., Launcher] = ChildLauncher,
        allocations: UsageSource | None = None,
        health: node_controller.HealthWatch | None = None,
    ) -> AsyncIterator[Agent]:
        """One agent's life; its daemons outlive it."""
        observation = node_controller.LastObservation()
        fleet = Fleet(
            self.context(
                policy,
                launcher(self.programs),
                check=node_controller.compute_mode_check(observation, exclusive=exclusive),
                report=lambda device, report: self.reports.append((device, report)),
            )
        )
        memory = OriginalSettings(self.memory_file)
        publisher = Publisher(run_dir=self.run_dir, cdi_dir=self.cdi_dir)
        driver = Driver(
            observe_deadline=30,
            step_deadline=30,
            nvidia_smi=SMI,
            sources=[allocations] if allocations else (),
            original=memory,
            time_slices=time_slices,
        )
        whole = node_controller.NodeController(driver, fleet, publisher, observation, health=health)
        async with fleet, whole:
            yield Agent(whole, fleet, memory)

    def published(self, device: str) -> set[str]:
        folder = self.run_dir / "mps" / device / "env"
        return {path.stem for path in folder.iterdir()} if folder.exists() else set()

    def announced(self) -> str:
        """The CDI specification; "" while there is none."""
        file = self.cdi_dir / "nodeagent.io-mps.json"
        return file.read_text() if file.exists() else ""

    def slot(self, device: str, name: str, *, at: str = "0") -> SimulatedClient:
        """A CUDA program with that slot's environment, not yet accepted."""
        lines = (self.run_dir / "mps" / device / "env" / f"{name}.env").read_text().splitlines()
        environment = dict(line.split("=", 1) for line in lines if line and line[0] != "#")
        pipes = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        return SimulatedClient(pipes, uid=US, environment=environment, state=self.state, device=at)


def modes(node: SimulatedNode) -> list[int]:
    """The compute modes that the hardware has: of each GPU, then of its MIG devices."""
    found = []
    for card in node.cards:
        parts = (part.compute_mode for _, part in card.mig_devices())
        found += [card.state.compute_mode, *parts]
    return found
