"""A machine with claims: its API server's objects, its folders, its present agent."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from nodeagent.claims.model import Allocated
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.serving.cdi import Capabilities, ClaimFiles
from nodeagent.claims.serving.claim_object import ClaimObject, read_claim
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.claims.serving.node_claims import ClaimPlaces, NodeClaims
from nodeagent.claims.serving.pod_object import PodObject, read_pod
from nodeagent.claims.serving.toolkit import ToolkitEdits
from nodeagent.claims.upkeep.upkeep import Upkeep
from nodeagent.cluster.kubelet.device_users import Allocations
from nodeagent.errors import NodeagentError
from nodeagent.files.cdi import Edits
from nodeagent.gpu.capability_files import Instance
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.users import UsageReading, UsageSource
from nodeagent.plan.desired import SharedBy
from nodeagent.plan.observed import DeviceDaemon, Gpu, ObservedNode
from nodeagent.plan.plan import Policy
from nodeagent.plan.steps import Destruction, StartMps, Step, StopMps
from nodeagent.plan.users import Usage
from nodeagent.reconcile.node_controller import LastObservation, NodeReader
from nodeagent.reconcile.owner import GpuOwners
from nodeagent.reconcile.plan_update import NoPlan
from nodeagent.reconcile.step_run import NodeDriver
from nodeagent.simulation import SimulatedNode
from nodeagent.structs import replace
from nodeagent.views.node_state import Phase as NodePhase
from tests.claims.samples import reserved
from tests.machine_load import stretched
from tests.rig import SOON, Rig, open_driver, running
from tests.simulated_cluster.allocator import Allocated as Allocation

NODE = "gpu-node-0"


def uid(number: int) -> str:
    return f"{number:08x}-1111-2222-3333-444444444444"


UIDS = [uid(number) for number in range(9)]
TOOLKIT = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "all", "containerEdits": {}}],
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
}


@cache
def capabilities() -> dict[int, Instance]:
    """As /proc/driver/nvidia-caps/mig-minors has it for eight GPUs."""
    numbers: dict[int, Instance] = {}
    for gpu in range(8):
        for instance in range(15):
            for compute in (None, *range(8)):
                numbers[len(numbers) + 3] = (gpu, instance, compute)
    return numbers


async def no_daemons() -> None:
    """There are none to be asked."""


def claim_files(
    folder: Path,
    toolkit: Callable[[], Edits] = Edits,
    daemons: ClaimDaemons | None = None,
    *,
    capabilities: Capabilities = capabilities,
) -> ClaimFiles:
    none = ClaimDaemons("1000", folder / "run", False, no_daemons)
    return ClaimFiles(folder / "cdi", capabilities, toolkit, daemons or none)


def allocated(*devices: tuple[str, str] | Allocation, share: str = "") -> dict[str, Any]:
    """The status of a claim with these pools and devices, and that shareID."""
    results = [Allocation(*one).result(f"r{i}", share) for i, one in enumerate(devices)]
    return {"allocation": {"devices": {"results": results}}}


class PodsOfProcesses(UsageSource):
    """A source of users that knows the pods of processes in the namespace team, by their pids."""

    def __init__(self, pods: Mapping[int, str]) -> None:
        super().__init__()
        self._pods = pods

    async def read(self) -> UsageReading:
        return Allocations()

    async def with_users(
        self, gpus: Sequence[Gpu], asked: Awaitable[UsageReading] | None = None
    ) -> list[Gpu]:
        return [
            replace(gpu, usage=self._named(gpu.usage)).with_mig_devices(
                lambda _, device: replace(device, usage=self._named(device.usage))
            )
            for gpu in gpus
        ]

    def _named(self, usage: Usage) -> Usage:
        processes = tuple(
            replace(user, namespace="team", pod=self._pods[user.pid])
            if user.pid in self._pods
            else user
            for user in usage.processes
        )
        return replace(usage, processes=processes)


def reserve(claims: NodeClaims, claim: tuple[str, str, str], pod: str) -> None:
    claims.pods.was_read(claim[:2], reserved(claim[2], pod))


class Hardware(NodeReader):
    """The driver, with the node as it was observed last. Daemons are Ready at once; they are there,
    by device, longer than it.
    """

    def __init__(
        self, driver: Driver, observation: LastObservation, daemons: dict[str, DeviceDaemon]
    ) -> None:
        super().__init__(driver, daemons.get, observation)
        self._daemons = daemons

    async def insist_on_idle(self, steps: Sequence[Destruction]) -> None:
        await self._driver.insist_on_idle(steps)

    async def apply(self, step: Step) -> None:
        match step:
            case StartMps():
                for device in step.wanted.devices_on(step.device):
                    self._daemons[device] = DeviceDaemon(step.wanted, "Ready")
            case StopMps():
                for device in self._daemons[step.device].runs.devices_on(step.device):
                    del self._daemons[device]
            case _:
                await self._driver.apply(step)


class Home:
    """One machine: its API server's claims, its folders, its present agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boot_id = "first"
        self.api_away = False
        self.fetched = 0  # claims that the API server was asked for
        self.pods: list[Allocated] | None = []  # what the kubelet lists; None: it does not answer
        self.claims: dict[tuple[str, str], Any] = {}
        self.pod_objects: dict[tuple[str, str], Any] = {}  # at the API server
        (folder / "etc-cdi").mkdir(parents=True)
        (folder / "etc-cdi" / "nvidia.json").write_text(json.dumps(TOOLKIT))
        self.records_dir = folder / "state" / "claims"
        self.cdi = folder / "cdi"
        self.toolkit: Callable[[], Edits] = ToolkitEdits([folder / "etc-cdi"]).read

    def claim(
        self, number: int, *devices: tuple[str, str] | Allocation, name: str = ""
    ) -> tuple[str, str, str]:
        """Allocate pools and devices to a claim; what the kubelet calls it."""
        name = name or f"trainer-{number}"
        self.claims["team", name] = {
            "metadata": {"namespace": "team", "name": name, "uid": uid(number)},
            "status": allocated(*devices, share=uid(number)),
        }
        return "team", name, uid(number)

    def run_pod(self, claim: tuple[str, str, str], *keys: tuple[str, str]) -> None:
        """A pod has the claim's devices, given as pool and device."""
        assert self.pods is not None
        namespace, name, _ = claim
        self.pods += [Allocated(namespace, name, f"{name}-pod", (*key, "")) for key in keys]

    async def allocations(self) -> tuple[Allocated, ...]:
        if self.pods is None:
            raise NodeagentError("the kubelet does not answer")
        return tuple(self.pods)

    async def fetch(self, namespace: str, name: str) -> ClaimObject | None:
        self.fetched += 1
        if self.api_away:
            raise NodeagentError("the API server does not answer")
        found = self.claims.get((namespace, name))
        return read_claim(json.dumps(found).encode()) if found else None

    async def fetch_pod(self, namespace: str, name: str) -> PodObject | None:
        if self.api_away:
            raise NodeagentError("the API server does not answer")
        found = self.pod_objects.get((namespace, name))
        return read_pod(json.dumps(found).encode()) if found else None

    def node_claims(
        self,
        owners: GpuOwners,
        observe: Callable[[], Awaitable[ObservedNode]],
        daemons: ClaimDaemons | None = None,
        rules: Callable[[Gpu], GpuRules] = lambda _: GpuRules(),
    ) -> NodeClaims:
        return NodeClaims(
            ClaimPlaces(NODE, self.boot_id, self.records_dir),
            owners=owners,
            fetch=self.fetch,
            fetch_pod=self.fetch_pod,
            observe=observe,
            files=claim_files(self.folder, self.toolkit, daemons),
            rules=rules,
        )

    @asynccontextmanager
    async def core(
        self,
        *,
        step_deadline: float = 5.0,
        daemons: dict[str, DeviceDaemon] | None = None,
        rules: GpuRules | None = None,
    ) -> AsyncIterator[tuple[NodeClaims, Hardware]]:
        """One life of the claims alone on the driver, without the loop beside them."""
        driver, observation = open_driver(step_deadline=step_deadline), LastObservation()

        async def observe() -> ObservedNode:
            assert observation.node
            return observation.node

        async with Hardware(driver, observation, {} if daemons is None else daemons) as hardware:
            await hardware.observe()
            owners = GpuOwners(nullcontext(hardware), Policy())
            await owners.open()
            claims = self.node_claims(owners, observe, rules=lambda _: rules or GpuRules())
            await claims.store.load()
            try:
                yield claims, hardware
            finally:
                await owners.close()

    def upkeep(self, claims: NodeClaims) -> Upkeep:
        return Upkeep(claims, allocations=self.allocations, planned=frozenset)

    @asynccontextmanager
    async def agent(
        self,
        *,
        driver: AbstractAsyncContextManager[NodeDriver] | None = None,
        daemons: ClaimDaemons | None = None,
        share: SharedBy = "off",
    ) -> AsyncIterator[tuple[NodeClaims, Rig]]:
        """One agent's life, without a plan; with MPS and shares where they are given."""

        async def observe() -> ObservedNode:
            return rig.state.observed

        rig = Rig(
            self.folder,
            driver=driver,
            with_claims=lambda *goal: claims.store.with_claims(*goal),  # noqa: PLW0108  # made below
        )
        rules = GpuRules(share=share, share_mig=share)
        claims = self.node_claims(rig.owners, observe, daemons, lambda _: rules)
        await claims.store.load()
        async with running(rig):
            rig.plan.offer(NoPlan("no plan"))
            await rig.settle(NodePhase.NO_PLAN)
            yield claims, rig

    def files(self) -> list[str]:
        return sorted(path.name for path in self.cdi.iterdir()) if self.cdi.exists() else []

    def records(self) -> list[str]:
        folder = self.records_dir
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def pool_of(node: SimulatedNode, gpu: int = 0) -> str:
    return f"{NODE}/{node.card(gpu).identity.uuid.lower()}"


def pool(rig: Rig, gpu: int = 0) -> str:
    return f"{NODE}/{rig.gpu(gpu).uuid.lower()}"


def laid_out(node: SimulatedNode, gpu: int = 0) -> list[tuple[int, int]]:
    """What the hardware has: start and size of each GPU instance."""
    instances = node.card(gpu).state.instances
    return sorted((one.start, one.size) for one in instances)


async def until_done(call: Callable[[], Awaitable[object]]) -> None:
    """The kubelet calls again until it succeeds: a daemon that is on its way is not waited for."""
    async with asyncio.timeout(stretched(SOON)):
        while True:
            try:
                await call()
            except NodeagentError:
                await asyncio.sleep(0.05)
            else:
                return
