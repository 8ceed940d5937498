"""Pods come and go at random, each with a GPU or a MIG device, or with a share of one.

What a scheduler allocates by what is published is counted here once more, by the GPU's own figures
and the simulator's rule for MIG devices.
"""

import asyncio
import json
import random
from dataclasses import dataclass

import pytest

from nodeagent.claims.capacity import CLIENTS, MEMORY, THREADS
from nodeagent.claims.names import WHOLE_GPU, places
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.pool_offer import OfferContext, PoolOffer, pool_offer
from nodeagent.claims.offering.resource_slices import NodeReference, resource_slices
from nodeagent.claims.serving.cdi import file_name
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.mps.shares import MEMORY_VARIABLE, THREADS_VARIABLE
from nodeagent.plan.desired import SharedBy
from nodeagent.plan.observed import DeviceDaemon, Gpu
from nodeagent.simulation import SimulatedNode, simulated
from tests.claims.boards import legal_sets
from tests.claims.machine import NODE, Home, laid_out
from tests.claims.test_random_pods import AtOnce
from tests.simulated_cluster import allocator

MIB = 1 << 20
BOARDS = ("t4", "l40s", "a100-80gb", "h100-80gb", "b200")
SHARING: tuple[SharedBy, ...] = ("memory", "memory", 4)  # in lives that take turns


@dataclass(frozen=True, slots=True)
class Pod:
    """With its claim, the device of that and what it asked for: none, all of it."""

    claim: tuple[str, str, str]
    device: allocator.Allocated
    asked: allocator.Amounts
    uuid: str  # of the device


class Day:
    """One GPU's pods, over several lives of the agent."""

    def __init__(self, board: str, node: SimulatedNode, home: Home) -> None:
        self._board, self._node, self._home = board, node, home
        self._rng = random.Random(board)
        self._daemons: dict[str, DeviceDaemon] = {}
        self._pods: list[Pod] = []
        self._offer: PoolOffer | None = None
        self.allocated = self.lives = 0
        self.seen: set[tuple[str, bool]] = set()  # what was wanted, and whether it was to be had

    async def live(self, rounds: int, *, last: bool = False) -> None:
        """The life of one agent; with the `last` one all pods end."""
        share = SHARING[self.lives % len(SHARING)]
        rules = GpuRules(share=share, share_mig=share)
        self.lives += 1
        async with self._home.core(daemons=self._daemons, rules=rules) as (claims, hardware):
            assert hardware.seen
            [gpu] = hardware.seen.gpus
            for pod in self._pods:
                assert await claims.prepare(*pod.claim)
            held = frozenset(pod.device.device for pod in self._pods)
            self._offer = pool_offer(gpu, OfferContext(NODE, rules, 0, held, self._offer))
            for _ in range(rounds):
                if self._rng.random() < 0.4 and self._pods:
                    await self._end(claims, self._rng.choice(self._pods))
                else:
                    await self._come(claims, gpu, share)
                self._check(gpu)
            while last and self._pods:
                await self._end(claims, self._pods[0])

    def left(self) -> tuple[list[str], list[str], dict[str, DeviceDaemon]]:
        """Records, CDI files and daemons."""
        return self._home.records(), self._home.files(), self._daemons

    async def _come(self, claims: NodeClaims, gpu: Gpu, share: SharedBy) -> None:
        assert self._offer
        slices = resource_slices(self._offer, NodeReference(NODE, "uid"), 1)
        profiles = sorted({p.profile.name for n, p in places(gpu).items() if n in self._names()})
        kinds = {"share": 6, "whole": 2, "part": 4 * bool(profiles), "share of part": 8}
        kind = self._rng.choices([*kinds], [n if profiles else n % 8 for n in kinds.values()])[0]
        profile = self._rng.choice(profiles) if "part" in kind else ""
        asked = self._amounts(_memory(gpu, profile)) if "share" in kind else {}
        wanted = allocator.of_profile(profile) if profile else allocator.of_type("gpu")
        taken = (pod.device for pod in self._pods)
        found = allocator.first_fit(
            allocator.complete_pools(slices), taken, allocator.Request(wanted, asked)
        )
        self.seen.add((kind, bool(found)))
        assert bool(found) is self._fits(gpu, share, asked, profile), (asked, profile, self._pods)
        if found:
            self.allocated += 1
            claim = self._home.claim(self.allocated, *found)
            [device] = await claims.prepare(*claim)
            self._pods.append(Pod(claim, found[0], asked, device.device_uuid))
        if found and asked:
            consumed = (found[0].consumed or {}).items()
            takes = self._takes(_memory(gpu, profile), share, asked)
            assert {name: amount for name, amount in consumed if amount or name in takes} == takes

    def _names(self) -> set[str]:
        return {device.name for device in self._offer.devices} if self._offer else set()

    def _amounts(self, memory: int) -> allocator.Amounts:
        """Of memory any, of the others often none."""
        asked = {MEMORY: self._rng.randint(1, self._rng.choice([memory // 16, memory]))}
        for name, most in ((THREADS, 60), (CLIENTS, self._rng.choice([5, 40]))):
            if self._rng.random() < 0.4:
                asked[name] = self._rng.randint(1, most)
        return asked

    def _fits(self, gpu: Gpu, share: SharedBy, asked: allocator.Amounts, profile: str) -> bool:
        """Whether it is to be had, by what pods have."""
        there = {pod.device.device for pod in self._pods}
        devices = {n for n, p in places(gpu).items() if p.profile.name == profile} or {WHOLE_GPU}
        legal = legal_sets(self._board) if profile else ()
        return any(
            {*there, name} in legal or not there or name in there
            for name in devices
            if name not in there or asked
            if not asked or self._has_room(gpu, share, asked, name)
        )

    def _has_room(self, gpu: Gpu, share: SharedBy, asked: allocator.Amounts, device: str) -> bool:
        """Whether it is to be had of the device beside the shares of it; 60 clients have a GPU."""
        place = places(gpu).get(device)
        memory = place.profile.memory if place else gpu.memory
        clients = max(1, 60 * place.profile.slices // 7) if place else 60
        room = {MEMORY: memory, THREADS: 100, CLIENTS: clients}
        pods = [pod for pod in self._pods if pod.device.device == device]
        takes = self._takes(memory, share, asked)
        shares = [pod.device.consumed or {} for pod in pods if pod.asked]
        return len(shares) == len(pods) and all(
            sum(one[name] for one in shares) + takes[name] <= most for name, most in room.items()
        )

    def _takes(self, memory: int, share: SharedBy, asked: allocator.Amounts) -> allocator.Amounts:
        """Whole steps of the memory, no threads and one client unless they are asked for."""
        step = memory // share // MIB * MIB if isinstance(share, int) else 256 * MIB
        return {THREADS: 0, CLIENTS: 1, **asked, MEMORY: -(-asked[MEMORY] // step) * step}

    async def _end(self, claims: NodeClaims, pod: Pod) -> None:
        await claims.release(pod.claim[2])
        self._pods.remove(pod)

    def _check(self, gpu: Gpu) -> None:
        """On the card are the MIG devices that pods have, and each share has what was consumed."""
        parts = {p.device.device for p in self._pods} - {WHOLE_GPU}
        there = sorted(places(gpu)[name].placement for name in parts)
        assert laid_out(self._node) == [(place.start, place.size) for place in there]
        limits: dict[str, dict[str, tuple[int, float]]] = {}
        for pod in self._pods:
            place = places(gpu).get(pod.device.device)
            memory = place.profile.memory if place else gpu.memory
            consumed = pod.device.consumed or {MEMORY: memory}
            if memory - consumed[MEMORY] >= 256 * MIB:
                in_proportion = max(10_000 * consumed[MEMORY] // memory / 100, 0.1)
                threads = consumed[THREADS] or in_proportion
                limits.setdefault(pod.uuid, {})[pod.claim[2]] = consumed[MEMORY] // MIB, threads
            self._check_file(pod, limits.get(pod.uuid, {}).get(pod.claim[2]))
        assert {
            uuid: {one.name: (one.memory, one.threads) for one in daemon.runs.sharing.shares}
            for uuid, daemon in self._daemons.items()
        } == limits

    def _check_file(self, pod: Pod, limits: tuple[int, float] | None) -> None:
        """What its containers are given as their limits."""
        [device] = json.loads((self._home.cdi / file_name(pod.claim[2])).read_text())["devices"]
        env = dict(text.split("=", 1) for text in device["containerEdits"].get("env", ()))
        found = env.get(MEMORY_VARIABLE), env.get(THREADS_VARIABLE)
        assert found == ((f"0={limits[0]}M", f"{limits[1]:g}") if limits else (None, None))


def _memory(gpu: Gpu, profile: str) -> int:
    found = gpu.profile(profile)
    return found.memory if found else gpu.memory


async def come_and_go(board: str, home: Home, allocations: int) -> None:
    """What a scheduler has room for is allocated and made; nothing is lost, and nothing left."""
    with simulated(f"{board}:1") as node:
        day = Day(board, node, home)
        while day.allocated < allocations:
            await day.live(40)
        await day.live(0, last=True)
    assert day.left() == ([], [], {})
    kinds = {"share", "whole"}
    if board in {"h100-80gb", "b200"}:
        kinds |= {"part", "share of part"}
    assert day.seen == {(kind, had) for kind in kinds for had in (True, False)}


@pytest.mark.parametrize("board", BOARDS)
async def test_shares_come_and_go(board: str, home: Home) -> None:
    await come_and_go(board, home, 60)


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("board", BOARDS)
async def test_shares_come_and_go_for_long(board: str, home: Home) -> None:
    """20,000 allocations on all boards together."""
    asyncio.get_running_loop().set_default_executor(AtOnce())
    await come_and_go(board, home, 4_000)
