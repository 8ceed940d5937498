"""Pods come and go at random on GPUs without MIG, each with an MPS share or with all of one."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeagent.claims.names import WHOLE_GPU, share_named
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.pool_offer import OfferContext, pool_offer
from nodeagent.claims.offering.resource_slices import NodeReference, resource_slices
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.errors import StillInUse
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import DeviceDaemon, Gpu
from nodeagent.plan.plan import Policy
from nodeagent.plan.steps import StartMps, Step, StopMps
from nodeagent.reconcile.node_controller import LastObservation
from nodeagent.reconcile.owner import GpuOwners
from nodeagent.simulation import SimulatedNode, simulated
from tests.claims.machine import NODE, Hardware, Home, PodsOfProcesses, no_daemons, reserve
from tests.simulated_cluster.allocator import Allocated, Request, complete_pools, first_fit, of_type

GIB = 1 << 30
Claim = tuple[str, str, str]


class Serving(Hardware):
    """With daemons that are Ready at once; they are there, by device, longer than it."""

    def __init__(self, driver: Driver, daemons: dict[str, DeviceDaemon]) -> None:
        super().__init__(driver, daemons.get, LastObservation())
        self._daemons = daemons

    async def apply(self, step: Step) -> None:
        match step:
            case StartMps():
                self._daemons[step.device] = DeviceDaemon(step.wanted, "Ready")
            case StopMps():
                del self._daemons[step.device]
            case _:
                await super().apply(step)


@dataclass(slots=True)
class Pod:
    """With its claim and the device of that; `pid` of its process there, 0: it has none."""

    claim: Claim
    device: str
    pid: int = 0

    @property
    def name(self) -> str:
        return f"pod-of-{self.claim[1]}"


class Day:
    """One GPU's pods, over several lives of the agent. Shares are of another size in each."""

    def __init__(self, node: SimulatedNode, home: Home, seed: int) -> None:
        self._node, self._home, self._rng = node, home, random.Random(seed)
        self._uuid = node.card(0).identity.uuid
        self._daemons: dict[str, DeviceDaemon] = {}
        self._pods_of: dict[int, str] = {}
        self._running: list[Pod] = []
        self.allocated = self.waited = self.refused = 0

    async def live(self, rounds: int, share: int, *, last: bool = False) -> None:
        """The life of one agent; with the `last` one all pods end."""
        source = PodsOfProcesses(self._pods_of)
        driver = Driver(observe_deadline=30, step_deadline=30, sources=[source])
        async with Serving(driver, self._daemons) as hardware:
            [gpu] = (await hardware.observe()).gpus
            owners = GpuOwners(nullcontext(hardware), Policy())
            await owners.open()
            claims = self._home.node_claims(
                owners,
                hardware.observe,
                ClaimDaemons("1000", Path("/run/nodeagent"), False, no_daemons),
                lambda _: GpuRules(share=share),
            )
            await claims.store.load()
            for pod in self._running:
                reserve(claims, pod.claim, pod.name)
                assert await claims.prepare(*pod.claim)
            for _ in range(rounds):
                await self._round(claims, gpu, share)
                self._check(gpu)
            while last and self._running:
                await self._end(claims, self._running[0])
            await owners.close()

    def left(self) -> tuple[list[str], list[str], dict[str, DeviceDaemon]]:
        """Records, CDI files and daemons."""
        return self._home.records(), self._home.files(), self._daemons

    async def _round(self, claims: NodeClaims, gpu: Gpu, share: int) -> None:
        if self._running and self._rng.random() < 0.4:
            await self._end(claims, self._rng.choice(self._running))
            return
        held = frozenset(pod.device for pod in self._running)
        offer = pool_offer(gpu, OfferContext(NODE, GpuRules(share=share), 0, held=held))
        pools = complete_pools(resource_slices(offer, NodeReference(NODE, "uid"), 1))
        wanted = of_type("gpu" if self._rng.random() < 0.3 else "mps")
        taken = [Allocated(offer.pool, device) for device in held]
        found = first_fit(pools, taken, Request(wanted))
        if not found:
            self.waited += 1
            return
        self.allocated += 1
        name = found[0].device
        pod = Pod(self._home.claim(self.allocated, *found), name)
        self._running.append(pod)
        reserve(claims, pod.claim, pod.name)
        [device] = await claims.prepare(*pod.claim)
        assert (device.result.device, device.mps is None) == (name, name == WHOLE_GPU)
        if self._rng.random() < 0.5:
            kind = "compute" if pod.device == WHOLE_GPU else "mps"
            pod.pid = self._node.occupy(self._uuid, kind=kind).pid
            self._pods_of[pod.pid] = pod.name

    async def _end(self, claims: NodeClaims, pod: Pod) -> None:
        """Its release is refused while it has a process; those of others are no matter."""
        if pod.pid:
            with pytest.raises(StillInUse) as refused:
                await claims.release(pod.claim[2])
            assert [pid for pid in self._pods_of if str(pid) in refused.value.message] == [pod.pid]
            self.refused += 1
            self._node.release(pid=pod.pid)
            del self._pods_of[pod.pid]
        await claims.release(pod.claim[2])
        self._running.remove(pod)

    def _check(self, gpu: Gpu) -> None:
        """The daemon is for the shares that pods have, and these have no memory in common."""
        devices = [pod.device for pod in self._running]
        daemon = self._daemons.get(self._uuid)
        served = [share.name for share in daemon.runs.sharing.shares] if daemon else []
        assert served == sorted(device for device in devices if device != WHOLE_GPU)
        assert WHOLE_GPU not in devices or len(devices) == 1
        shares = [share for share in map(share_named, devices) if share]
        assert len(shares) == sum(one.overlaps(other) for one in shares for other in shares)
        assert sum(share.memory for share in shares) <= gpu.memory
        assert {p.pid for p in self._node.card(0).state.processes} == set(self._pods_of)


@pytest.mark.parametrize("board", ["t4", "l40s"])
async def test_shares_come_and_go(board: str, home: Home) -> None:
    """Whatever a scheduler's first fit allocates is made; nothing is lost, and nothing left."""
    with simulated(f"{board}:1") as node:
        day = Day(node, home, seed=len(board))
        for size in (4, 6, 4, 5):
            await day.live(20, size * GIB)
        await day.live(5, 4 * GIB, last=True)
    assert day.left() == ([], [], {})
    assert min(day.allocated, day.waited, day.refused) > 3
