"""Pods come and go at random, on every kind of card.

What a scheduler's first fit over the published slices allocates is made, stays as long as it is
used, and leaves nothing behind.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import pytest

from nodeagent.claims.model import ClaimRefused
from nodeagent.claims.names import WHOLE_GPU, DevicePlace, places
from nodeagent.claims.offering.devices import OfferedDevice
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.pool_offer import OfferContext, PoolOffer, pool_offer
from nodeagent.claims.offering.resource_slices import NodeReference, resource_slices
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.errors import StillInUse
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.structs import replace
from tests.claims.boards import KINDS
from tests.claims.machine import NODE, Home, laid_out
from tests.simulated_cluster import allocator

P = ParamSpec("P")
Result = TypeVar("Result")

ROUNDS_OF_A_LIFE = 40  # until the agent is started again
PARTS = 10  # of the long test on each kind of card, each with a seed of its own


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with a claim for one device. `works`: it has a process there, `pid` once it runs."""

    number: int
    claim: tuple[str, str, str]
    pool: str
    device: str
    works: bool
    pid: int | None = None

    @property
    def title(self) -> str:
        return f"claim {self.claim[0]}/{self.claim[1]}"


class Pods:
    """One card's pods. Those in `forced` were deleted by force: the scheduler takes their devices
    for free, and their containers have not ended.
    """

    def __init__(self, node: SimulatedNode, home: Home, seed: int) -> None:
        self._node, self._home, self._rng = node, home, random.Random(seed)
        self._running: dict[int, Pod] = {}
        self._forced: dict[int, Pod] = {}
        self._offer: PoolOffer | None = None
        self._pools: Mapping[str, allocator.Pool] = {}
        self._places: Mapping[str, DevicePlace] = {}
        self._published: Mapping[str, OfferedDevice] = {}
        self.allocated = self.waited = self.refused = self.restarts = 0

    async def live(self, until: int) -> None:
        """The life of one agent, or less when so many claims were allocated."""
        async with self._home.core() as (claims, _):
            await self._begin(claims)
            for _ in range(ROUNDS_OF_A_LIFE):
                if self.allocated >= until:
                    break
                await self._round(claims)
                self._check(claims)
        self.restarts += 1

    async def end(self) -> None:
        """All pods end; nothing is left of any."""
        async with self._home.core() as (claims, _):
            await asyncio.gather(*(self._end(claims, pod) for pod in self._all()))
            self._check(claims)
        assert (self._home.records(), self._home.files()) == ([], [])

    # --- what happens ---------------------------------------------------------------------------

    async def _begin(self, claims: NodeClaims) -> None:
        """The agent looks after what it finds, and publishes: ever the same devices."""
        self._home.pods = []
        for pod in self._running.values():
            self._home.run_pod(pod.claim, (pod.pool, pod.device))
        problems = await self._home.upkeep(claims).round()
        used = [pod for pod in self._forced.values() if pod.pid]
        assert len(problems) == len(used)  # each is named, and left alone
        self._forced = {pod.number: pod for pod in used}
        self._check(claims)
        [gpu] = (await claims.observe()).gpus
        held = frozenset(pod.device for pod in self._all())
        offer = pool_offer(gpu, OfferContext(NODE, GpuRules(), 0, held, self._offer))
        assert self._offer in (None, offer)
        self._offer, self._places = offer, places(gpu)
        self._published = {device.name: device for device in offer.devices}
        self._pools = allocator.complete_pools(
            resource_slices(offer, NodeReference(NODE, "uid"), 1)
        )

    async def _round(self, claims: NodeClaims) -> None:
        """A few pods come and go side by side."""
        rng = self._rng
        going = [pod for pod in self._running.values() if rng.random() < 0.25]
        for pod in [pod for pod in going if rng.random() < 0.1]:
            going.remove(pod)
            self._forced[pod.number] = self._running.pop(pod.number)
            self._deallocate(pod)
        there = [pod for pod in self._running.values() if pod not in going]
        coming = [new for _ in range(rng.randint(1, 3)) if (new := self._schedule())]
        if not self._crowded():
            going += [pod for pod in self._forced.values() if rng.random() < 0.3]
        others = [self._end(claims, pod) for pod in going]
        others += [self._repeat(claims, pod) for pod in there if rng.random() < 0.05]
        started, _ = await asyncio.gather(
            asyncio.gather(*(self._start(claims, pod) for pod in coming)), asyncio.gather(*others)
        )
        waiting = [pod for pod, runs in zip(coming, started, strict=True) if not runs]
        if waiting:
            self.refused += len(waiting)
            await asyncio.gather(*(self._end(claims, pod) for pod in [*self._forced.values()]))
            assert all(await asyncio.gather(*(self._start(claims, pod) for pod in waiting)))

    def _schedule(self) -> Pod | None:
        """A new pod's claim, allocated; None when it has to wait."""
        names = [name for name in self._published if name != WHOLE_GPU]
        profiles = sorted({self._places[name].profile.name for name in names})
        sizes = {place.profile.name: place.placement.size for place in self._places.values()}
        [profile] = self._rng.choices(profiles, [1 / sizes[profile] for profile in profiles])
        whole = WHOLE_GPU in self._published and self._rng.random() < 0.05
        wanted = (lambda d: d["name"] == WHOLE_GPU) if whole else allocator.of_profile(profile)
        taken = [allocator.Allocated(pod.pool, pod.device) for pod in self._running.values()]
        found = allocator.first_fit(self._pools, taken, allocator.Request(wanted))
        if not found:
            self.waited += 1
            return None
        self.allocated += 1
        works = self._rng.random() < 0.2
        [device] = found
        claim = self._home.claim(self.allocated, device)
        pod = Pod(self.allocated, claim, device.pool, device.device, works)
        self._running[pod.number] = pod
        return pod

    async def _start(self, claims: NodeClaims, pod: Pod) -> bool:
        """Whether it runs. Only containers of pods that were deleted by force can be in its way."""
        in_the_way = [one.title for one in self._forced.values()] if self._crowded() else []
        try:
            [device] = await claims.prepare(*pod.claim)
        except (ClaimRefused, StillInUse) as error:
            if any(title in error.message for title in in_the_way):
                return False
            raise
        assert (device.result.pool, device.result.device) == (pod.pool, pod.device)
        if pod.works:
            process = self._node.occupy(device.uuid or device.gpu, command="train")
            self._running[pod.number] = replace(pod, pid=process.pid)
        return True

    async def _repeat(self, claims: NodeClaims, pod: Pod) -> None:
        """A container is started again, or another pod has the claim, too."""
        before = [record.devices for record in claims.store.records if record.uid == pod.claim[2]]
        assert [await claims.prepare(*pod.claim)] == before

    async def _end(self, claims: NodeClaims, pod: Pod) -> None:
        """It is refused while a process is there, and leaves that its device."""
        if pod.pid:
            with pytest.raises(StillInUse, match=str(pod.pid)):
                await claims.release(pod.claim[2])
            assert self._node.release(pid=pod.pid) == 1
        await claims.release(pod.claim[2])
        if self._forced.pop(pod.number, None) is None:
            self._running.pop(pod.number, None)
            self._deallocate(pod)

    def _deallocate(self, pod: Pod) -> None:
        del self._home.claims[pod.claim[:2]]

    # --- what has to be so ----------------------------------------------------------------------

    def _check(self, claims: NodeClaims) -> None:
        """On the card is what the pods have, and nothing else; every process has its device."""
        here = self._all()
        parts = [self._places[pod.device].placement for pod in here if pod.device != WHOLE_GPU]
        assert laid_out(self._node) == sorted((p.start, p.size) for p in parts)
        assert {r.uid for r in claims.store.records} == {pod.claim[2] for pod in here}
        assert len(self._home.files()) == len(here)
        processes = {process.pid for process in self._node.card(0).state.processes}
        assert processes == {pod.pid for pod in here if pod.pid}

    def _all(self) -> list[Pod]:
        return [*self._running.values(), *self._forced.values()]

    def _crowded(self) -> bool:
        """Whether those deleted by force have what the scheduler gave to others."""
        taken = Counter[str]()
        for pod in self._all():
            taken.update(self._published[pod.device].consumes)
        totals = self._offer.totals if self._offer else {}
        return any(amount > totals[counter] for counter, amount in taken.items())


async def come_and_go(board: str, home: Home, allocations: int, part: int = 0) -> Pods:
    """So many claims on one card of that kind; the seed is fixed, another one in each part."""
    with simulated(f"{board}:1") as node:
        state = node.card(0).state
        state.mig = state.pending = board.startswith("a")  # which needs a reset to change it
        pods = Pods(node, home, seed=KINDS.index(board) + len(KINDS) * part)
        while pods.allocated < allocations:
            await pods.live(allocations)
        await pods.end()
    return pods


@pytest.mark.parametrize(
    "board",
    [
        pytest.param(kind, marks=() if kind in {"a30", "h100-80gb"} else pytest.mark.full)
        for kind in KINDS
    ],
)
async def test_pods_come_and_go(board: str, home: Home) -> None:
    """Every allocation is made, none is lost, and nothing in use is taken down."""
    pods = await come_and_go(board, home, 100)
    assert pods.waited > 10
    assert pods.refused > 0
    assert pods.restarts > 1


class AtOnce(ThreadPoolExecutor):
    """Without threads: each claim hands them ten jobs, and to wake them costs a third of it all.
    Claims come side by side as before.
    """

    def submit(
        self, fn: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[Result]:
        """Call it here and now."""
        future = Future[Result]()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  # raised where it is waited for
            future.set_exception(error)
        return future


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("board", KINDS)
async def test_pods_come_and_go_for_long(
    board: str, part: int, home: Home, record_property: Callable[[str, object], None]
) -> None:
    """100,000 allocations on all kinds of cards together; in the first part with threads."""
    if part:
        asyncio.get_running_loop().set_default_executor(AtOnce())
    began = time.process_time()
    pods = await come_and_go(board, home, 100_000 // len(KINDS) // PARTS, part)
    record_property("cpu", time.process_time() - began)
    for name in ("allocated", "waited", "refused", "restarts"):
        record_property(name, getattr(pods, name))
