"""Pods come and go at random, each with a share of a GPU, with all of it or with a MIG device.

What a scheduler allocates by what is published is counted here once more, by the GPU's own figures
and the simulator's rule for MIG devices.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeagent.claims.capacity import CLIENTS, MEMORY, THREADS
from nodeagent.claims.names import WHOLE_GPU, places
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.pool_offer import OfferContext, PoolOffer, pool_offer
from nodeagent.claims.offering.resource_slices import NodeReference, resource_slices
from nodeagent.claims.serving.cdi import file_name
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.gpu.driver import Driver
from nodeagent.mps.shares import MEMORY_VARIABLE, THREADS_VARIABLE
from nodeagent.plan.desired import SharedBy
from nodeagent.plan.observed import DeviceDaemon, Gpu
from nodeagent.plan.plan import Policy
from nodeagent.plan.steps import StartMps, Step, StopMps
from nodeagent.reconcile.node_controller import LastObservation
from nodeagent.reconcile.owner import GpuOwners
from nodeagent.simulation import SimulatedNode, simulated
from tests.claims.boards import legal_sets
from tests.claims.machine import NODE, Hardware, Home, laid_out, no_daemons
from tests.claims.test_random_pods import AtOnce
from tests.simulated_cluster.allocator import (
    Allocated,
    Amounts,
    Request,
    complete_pools,
    first_fit,
    of_profile,
    of_type,
)

MIB = 1 << 20
BOARDS = ("t4", "l40s", "a100-80gb", "h100-80gb", "b200")
SHARING: tuple[SharedBy, ...] = ("memory", "memory", 4)  # in lives that take turns


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


@dataclass(frozen=True, slots=True)
class Pod:
    """With its claim, the device of that and what it asked for: none, all of it."""

    claim: tuple[str, str, str]
    device: Allocated
    asked: Amounts


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
        self.lives += 1
        driver = Driver(observe_deadline=30, step_deadline=30)
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
            for pod in self._pods:
                assert await claims.prepare(*pod.claim)
            held = frozenset(pod.device.device for pod in self._pods)
            context = OfferContext(NODE, GpuRules(share=share), 0, held, self._offer)
            self._offer = pool_offer(gpu, context)
            for _ in range(rounds):
                if self._rng.random() < 0.4 and self._pods:
                    await self._end(claims, self._rng.choice(self._pods))
                else:
                    await self._come(claims, gpu, share)
                self._check(gpu)
            while last and self._pods:
                await self._end(claims, self._pods[0])
            await owners.close()

    def left(self) -> tuple[list[str], list[str], dict[str, DeviceDaemon]]:
        """Records, CDI files and daemons."""
        return self._home.records(), self._home.files(), self._daemons

    async def _come(self, claims: NodeClaims, gpu: Gpu, share: SharedBy) -> None:
        assert self._offer
        slices = resource_slices(self._offer, NodeReference(NODE, "uid"), 1)
        profiles = sorted({p.profile.name for n, p in places(gpu).items() if n in self._names()})
        kind = self._rng.choices(["share", "whole", "part"], [6, 2, 4 * bool(profiles)])[0]
        asked = self._amounts(gpu) if kind == "share" else {}
        profile = self._rng.choice(profiles) if kind == "part" else ""
        wanted = of_profile(profile) if profile else of_type("gpu")
        taken = (pod.device for pod in self._pods)
        found = first_fit(complete_pools(slices), taken, Request(wanted, asked))
        self.seen.add((kind, bool(found)))
        assert bool(found) is self._fits(gpu, share, asked, profile), (asked, profile, self._pods)
        if found:
            self.allocated += 1
            pod = Pod(self._home.claim(self.allocated, *found), found[0], asked)
            self._pods.append(pod)
            await claims.prepare(*pod.claim)
        if found and asked:
            assert found[0].consumed == self._takes(gpu, share, asked)

    def _names(self) -> set[str]:
        return {device.name for device in self._offer.devices} if self._offer else set()

    def _amounts(self, gpu: Gpu) -> Amounts:
        """Of memory any, of the others often none."""
        asked = {MEMORY: self._rng.randint(1, self._rng.choice([gpu.memory // 16, gpu.memory]))}
        for name, most in ((THREADS, 60), (CLIENTS, 40)):
            if self._rng.random() < 0.4:
                asked[name] = self._rng.randint(1, most)
        return asked

    def _fits(self, gpu: Gpu, share: SharedBy, asked: Amounts, profile: str) -> bool:
        """Whether it is to be had, by what pods have."""
        shares = [pod.device.consumed or {} for pod in self._pods if pod.asked]
        parts = {pod.device.device for pod in self._pods} - {WHOLE_GPU}
        if profile:
            places_of = {n for n, p in places(gpu).items() if p.profile.name == profile}
            legal, more = legal_sets(self._board), places_of - parts
            return len(parts) == len(self._pods) and any({*parts, n} in legal for n in more)
        if not asked:
            return not self._pods
        takes = self._takes(gpu, share, asked)
        room = {MEMORY: gpu.memory, THREADS: 100, CLIENTS: 48}
        return len(shares) == len(self._pods) and all(
            sum(one[name] for one in shares) + takes[name] <= most for name, most in room.items()
        )

    def _takes(self, gpu: Gpu, share: SharedBy, asked: Amounts) -> Amounts:
        """Whole steps of the memory, no threads and one client unless they are asked for."""
        step = gpu.memory // share // MIB * MIB if isinstance(share, int) else 256 * MIB
        return {THREADS: 0, CLIENTS: 1, **asked, MEMORY: -(-asked[MEMORY] // step) * step}

    async def _end(self, claims: NodeClaims, pod: Pod) -> None:
        await claims.release(pod.claim[2])
        self._pods.remove(pod)

    def _check(self, gpu: Gpu) -> None:
        """On the card are the MIG devices that pods have, and each share has what was consumed."""
        parts = [p.device.device for p in self._pods if p.device.device != WHOLE_GPU]
        there = sorted(places(gpu)[name].placement for name in parts)
        assert laid_out(self._node) == [(place.start, place.size) for place in there]
        limits = {}
        for pod in self._pods:
            consumed = pod.device.consumed or {MEMORY: gpu.memory}
            if pod.device.device == WHOLE_GPU and gpu.memory - consumed[MEMORY] >= 256 * MIB:
                in_proportion = 10_000 * consumed[MEMORY] // gpu.memory / 100
                threads = consumed[THREADS] or in_proportion
                limits[pod.claim[2]] = consumed[MEMORY] // MIB, threads
            self._check_file(pod, limits.get(pod.claim[2]))
        daemon = self._daemons.get(gpu.uuid)
        shares = daemon.runs.sharing.shares if daemon else ()
        assert {one.name: (one.memory, one.threads) for one in shares} == limits

    def _check_file(self, pod: Pod, limits: tuple[int, float] | None) -> None:
        """What its containers are given as their limits."""
        [device] = json.loads((self._home.cdi / file_name(pod.claim[2])).read_text())["devices"]
        env = dict(text.split("=", 1) for text in device["containerEdits"].get("env", ()))
        found = env.get(MEMORY_VARIABLE), env.get(THREADS_VARIABLE)
        assert found == ((f"0={limits[0]}M", f"{limits[1]:g}") if limits else (None, None))


async def come_and_go(board: str, home: Home, allocations: int) -> None:
    """Whatever a scheduler allocates is made, and it allocates whatever there is room for; nothing
    is lost, and nothing left.
    """
    with simulated(f"{board}:1") as node:
        day = Day(board, node, home)
        while day.allocated < allocations:
            await day.live(40)
        await day.live(0, last=True)
    assert day.left() == ([], [], {})
    parts = {("part", True), ("part", False)} if board in {"h100-80gb", "b200"} else set()
    assert day.seen == {(k, had) for k in ("share", "whole") for had in (True, False)} | parts


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
