"""whenInUse: evict, in the loop: no pod goes for a GPU on which nothing would be done then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.drain.hooks import ClusterHooks
from nodeagent.cluster.kubelet.allocations import ByUuid, Holding, PodName
from nodeagent.cluster.kubelet.device_users import Allocations, with_allocations
from nodeagent.cluster.node import KeptNode
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.users import UsageReading, UsageSource
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.plan import Policy
from nodeagent.plan.problems import Code
from nodeagent.plan.steps import CreateGpuInstance
from nodeagent.settings import KubernetesSettings
from nodeagent.simulation import simulated
from nodeagent.views.node_state import Phase
from tests import rig
from tests.cluster.client.rig import QUICK, kubeconfig, until
from tests.cluster.client.rig import running as running_tasks
from tests.cluster.drain.rig import MIXED, NODE, PACE
from tests.rig import Rig, destruction, do
from tests.simulated_cluster.api_server import ApiServer

PLAN = b"version: v1\ngpus: [{devices: all, whenInUse: evict, mig: {1g.10gb: 7}}]\n"


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

    async def joined(
        self, gpus: Sequence[Gpu], asked: Awaitable[UsageReading] | None = None
    ) -> list[Gpu]:
        reading = await (asked or self.ask())
        return [with_allocations(g, reading, {}) if g.access is Access.OK else g for g in gpus]


class Agent(Rig):
    """A loop with the hooks of a cluster, and the pods of its node."""

    def __init__(self, folder: Path, access: ClusterAccess, *, mend: bool, retry: float) -> None:
        self.pods = Pods()
        self.access = access
        self.cluster = ClusterHooks(
            access,
            NODE,
            settings=KubernetesSettings(),
            source="annotation",
            policy=Policy(),
            wake=lambda reason: self.control.wake(reason),  # noqa: PLW0108 # made later
            report=lambda _kind, _message: None,
            intervals=PACE,
        )
        driver = Driver(observe_deadline=5, step_deadline=5, sources=[self.pods])
        super().__init__(folder, mend=mend, retry=retry, driver=driver, hooks=self.cluster)

    def give(self, server: ApiServer, pod: str, position: int = 0) -> None:
        """The pod starts, and gets the MIG device of this instance."""
        server.add_pod(pod, namespace="team", node=NODE)
        self.pods.given[pod] = self.gpu().instances[position].compute[0].uuid


@asynccontextmanager
async def agent(
    folder: Path, server: ApiServer, *, mend: bool = True, retry: float = 3600
) -> AsyncIterator[Agent]:
    """At work within the block."""
    async with ClusterAccess(kubeconfig(folder, server.url), answer_within=5.0) as access:
        it = Agent(folder, access, mend=mend, retry=retry)
        follower = KeptNode(access, NODE, on_view=it.cluster.observe, watches=QUICK)
        async with rig.running(it), running_tasks(follower.run(), it.cluster.run()):
            yield it


def evicted(server: ApiServer) -> list[str]:
    """The pods whose eviction was granted."""
    return [str(eviction["metadata"]["name"]) for eviction in server.evictions]


def whole(gpu: Gpu) -> CreateGpuInstance:
    """The largest instance of a GPU."""
    profile = gpu.profile("7g.80gb")
    assert profile is not None
    place = profile.placements[0]
    return CreateGpuInstance(gpu.uuid, profile.id, profile.name, place, (7,), "a test")


async def test_no_pod_goes_for_drift_that_is_only_reported(tmp_path: Path) -> None:
    """The layout would be left as it is all the same; another plan may evict."""
    with simulated("h100-80gb:1"):
        async with ApiServer() as server, agent(tmp_path, server, mend=False) as it:
            server.add_node(NODE, labels=MIXED)
            it.offer(PLAN)
            await it.settle(Phase.IN_SYNC)
            await do(*(destruction(it.gpu(), n) for n in range(7)), whole(it.gpu()))
            await it.round()
            assert it.codes == {Code.DRIFT}
            it.give(server, "a")
            for _ in range(3):
                await it.round()
                await asyncio.sleep(0.1)
            assert it.codes == {Code.DRIFT, Code.IN_USE}
            assert evicted(server) == []
            it.offer(PLAN.replace(b"1g.10gb: 7", b"3g.40gb: 2"))
            await until(lambda: evicted(server) == ["a"])


async def failed_once(server: ApiServer, it: Agent) -> None:
    """A pod was evicted for a change that then failed, and another has the device by now."""
    server.add_node(NODE, labels=MIXED)
    it.offer(PLAN.replace(b"1g.10gb: 7", b"7g.80gb: 1"))
    await it.settle(Phase.IN_SYNC)
    it.give(server, "a")
    it.offer(PLAN)
    await until(lambda: evicted(server) == ["a"])
    del it.pods.given["a"]
    await it.until(lambda: Code.STEP_FAILED in it.codes)
    it.give(server, "b")
    await it.round()
    assert it.codes == {Code.IN_USE}


async def test_no_pod_goes_before_the_next_attempt_at_what_failed(tmp_path: Path) -> None:
    """A change that fails each time must not cost all pods that get the GPU in between."""
    with simulated("h100-80gb:1") as node:
        node.inject("nvmlComputeInstanceDestroy", error="UNKNOWN", times=None)
        async with ApiServer() as server, agent(tmp_path, server, retry=3600) as it:
            await failed_once(server, it)
            for _ in range(3):
                await it.round()
                await asyncio.sleep(0.1)
            assert evicted(server) == ["a"]


async def test_a_pod_goes_for_the_next_attempt_at_what_failed(tmp_path: Path) -> None:
    """It is due without anything that wakes the loop."""
    with simulated("h100-80gb:1") as node:
        node.inject("nvmlComputeInstanceDestroy", error="UNKNOWN")
        async with ApiServer() as server, agent(tmp_path, server, retry=0.5) as it:
            await failed_once(server, it)
            await until(lambda: evicted(server) == ["a", "b"])
            it.pods.given.clear()
            await it.settle(Phase.IN_SYNC)
