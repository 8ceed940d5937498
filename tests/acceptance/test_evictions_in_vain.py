import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from nodeagent.cluster.kubelet.allocations import ByUuid, Holding
from nodeagent.cluster.kubelet.device_users import Allocations, with_allocations
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.users import UsageReading, UsageSource
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.problems import Code
from nodeagent.plan.steps import CreateGpuInstance
from nodeagent.plan.users import PodName
from nodeagent.simulation import SimulatedNode
from nodeagent.views.node_state import Phase
from tests.acceptance.cluster_rig import NODE, Member
from tests.cluster.drain.rig import MIXED
from tests.machine_load import until
from tests.rig import destruction, do
from tests.simulated_cluster.api_server import ApiServer

PLAN = "version: v1\ngpus: [{devices: all, whenInUse: evict, mig: {1g.10gb: 7}}]\n"


class Pods(UsageSource):
    """The kubelet, as a source of users: gives devices to pods of the namespace team."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, str] = {}  # UUIDs by pod

    async def read(self) -> Allocations:
        return Allocations(
            tuple(
                Holding(PodName("team", pod), "main", ByUuid(uuid.lower()))
                for pod, uuid in self.given.items()
            )
        )

    async def with_users(
        self, gpus: Sequence[Gpu], asked: Awaitable[UsageReading] | None = None
    ) -> list[Gpu]:
        reading = await (asked or self.ask())
        return [with_allocations(g, reading, {}) if g.access is Access.OK else g for g in gpus]


class Agent(Member):
    def __init__(self, folder: Path, api: ApiServer, *, mend: bool, retry: float) -> None:
        self.pods = Pods()
        driver = Driver(observe_deadline=5, step_deadline=5, sources=[self.pods])
        super().__init__(folder, api, driver=driver, mend=mend, retry=retry)

    def give(self, pod: str, position: int = 0) -> None:
        """The pod starts, and gets the MIG device of this instance."""
        self.api.add_pod(pod, namespace="team", node=NODE)
        self.pods.given[pod] = self.rig.gpu().instances[position].compute[0].uuid


@asynccontextmanager
async def agent(
    folder: Path, api: ApiServer, plan: str, *, mend: bool = True, retry: float = 3600
) -> AsyncIterator[Agent]:
    api.patch_node(NODE, {"metadata": {"labels": MIXED}})
    it = Agent(folder, api, mend=mend, retry=retry)
    async with it.running():
        it.plan(plan)
        await it.rig.settle(Phase.IN_SYNC)
        yield it


def evicted(server: ApiServer) -> list[str]:
    return [str(eviction["metadata"]["name"]) for eviction in server.evictions]


def whole(gpu: Gpu) -> CreateGpuInstance:
    profile = gpu.profile("7g.80gb")
    assert profile is not None
    place = profile.placements[0]
    return CreateGpuInstance(gpu.uuid, profile.id, profile.name, place, (7,), "a test")


async def test_drift_evicts_nobody(tmp_path: Path, gpus: SimulatedNode, api: ApiServer) -> None:
    """The layout would be left as it is all the same; another plan may evict."""
    async with agent(tmp_path, api, PLAN, mend=False) as it:
        gpu = it.rig.gpu()
        await do(*(destruction(gpu, n) for n in range(7)), whole(gpu))
        await it.rig.round()
        assert it.rig.codes == {Code.DRIFT}
        it.give("a")
        for _ in range(3):
            await it.rig.round()
            await asyncio.sleep(0.1)
        assert it.rig.codes == {Code.DRIFT, Code.IN_USE}
        assert evicted(api) == []
        it.plan(PLAN.replace("1g.10gb: 7", "3g.40gb: 2"))
        await until(lambda: evicted(api) == ["a"])


async def failed_once(it: Agent) -> None:
    """A pod was evicted for a change that then failed, and another has the device by now."""
    it.give("a")
    it.plan(PLAN)
    await until(lambda: evicted(it.api) == ["a"])
    del it.pods.given["a"]
    await it.rig.until(lambda: Code.STEP_FAILED in it.rig.codes)
    it.give("b")
    await it.rig.round()
    assert it.rig.codes == {Code.IN_USE}


WHOLE = PLAN.replace("1g.10gb: 7", "7g.80gb: 1")


async def test_a_failure_evicts_nobody(tmp_path: Path, gpus: SimulatedNode, api: ApiServer) -> None:
    """A change that fails each time must not cost all pods that get the GPU in between."""
    gpus.inject("nvmlComputeInstanceDestroy", error="UNKNOWN", times=None)
    async with agent(tmp_path, api, WHOLE, retry=3600) as it:
        await failed_once(it)
        for _ in range(3):
            await it.rig.round()
            await asyncio.sleep(0.1)
        assert evicted(api) == ["a"]


async def test_the_next_attempt_evicts(tmp_path: Path, gpus: SimulatedNode, api: ApiServer) -> None:
    gpus.inject("nvmlComputeInstanceDestroy", error="UNKNOWN")
    async with agent(tmp_path, api, WHOLE, retry=0.5) as it:
        await failed_once(it)
        await until(lambda: evicted(api) == ["a", "b"])
        it.pods.given.clear()
        await it.rig.settle(Phase.IN_SYNC)
