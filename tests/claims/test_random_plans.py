"""Plans and pods come and go at random on one card: neither loses what it has to the other."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from nodeagent.claims.capacity import MEMORY
from nodeagent.claims.model import ClaimRefused
from nodeagent.claims.names import WHOLE_GPU, places
from nodeagent.claims.offering.gpu_rules import GpuRules, Mode
from nodeagent.claims.offering.node_offers import NodeOffers, goals_of
from nodeagent.claims.offering.planned import FILE_NAME, PlannedPlaces, planned_places_file
from nodeagent.claims.offering.resource_slices import NodeReference, resource_slices
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.errors import NodeagentError
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.reconcile.plan_update import NoPlan
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.views.node_state import Phase
from tests.claims.machine import NODE, Home, laid_out
from tests.rig import Rig, plan_text, running
from tests.simulated_cluster.allocator import Allocated, Request, complete_pools, first_fit

PLANS = [
    "{3g.40gb: 1}",
    "{1g.10gb: 2}",
    "{1g.10gb: 1, 2g.20gb: 1}",
    "{3g.40gb: 2}",
    "{7g.80gb: 1}",
    "[{profile: 1g.10gb, start: 3}, {profile: 2g.20gb, start: 4}]",
    "[{profile: 1c.3g.40gb, count: 3}]",
    "{}",
    "enabled",
    "disabled",
]
SETTLED = {Phase.IN_SYNC, Phase.BLOCKED, Phase.NO_PLAN}
Claim = tuple[str, str, str]


class Day:
    """A machine with a plan and pods; `held` are the prepared claims with their devices, which
    they `share`, if they may, by turns: there are no daemons.
    """

    def __init__(
        self, node: SimulatedNode, home: Home, seed: int, mode: Mode, *, share: bool
    ) -> None:
        self.node, self.home, self.rng = node, home, random.Random(seed)
        self.share = share
        self.offers = NodeOffers(NODE, mode, share_mig="time" if share else "off")
        self.now = 1_800_000_000  # seconds since 1970
        self.held: dict[Claim, Allocated] = {}
        self.count = self.refused = self.blocked = self.plans = self.shared = 0
        self.text: bytes | None = None
        self.lives = 0

    async def live(self, rounds: int, *, reboot: bool = False, last: bool = False) -> None:
        """The life of one agent, after a reboot of the machine or not."""
        self.rebooted = reboot
        if reboot:
            self.reboot()
        noted = PlannedPlaces(planned_places_file(self.home.folder / FILE_NAME))
        noted.load()

        def rules(gpu: Gpu) -> GpuRules:
            return self.offers.rules(gpu, goals_of(rig.state.plan), claims.store.records)

        def with_claims(goal: DesiredGpu, gpu: Gpu) -> DesiredGpu:
            return noted.as_before(claims.store.with_claims(goal, gpu), gpu)

        async def observe() -> ObservedNode:
            return rig.state.observed

        rig = Rig(self.home.folder, with_claims=with_claims)
        claims = self.home.node_claims(rig.owners, observe, rules=rules)
        await claims.store.load()
        async with running(rig):
            await self._plan(rig, self.text)
            self.gpu = rig.gpu()
            await self._prepare_again(rig, claims)
            for _ in range(rounds):
                await self._round(rig, claims)
                noted.record(
                    rig.state.observed.gpus, goals_of(rig.state.plan), claims.store.records
                )
                self._check()
            if last:
                await self._end(rig, claims)

    async def _end(self, rig: Rig, claims: NodeClaims) -> None:
        """All pods are gone: nothing is left of them, and the plan has all that it wants."""
        for _, _, uid in self.held:
            await claims.release(uid)
        self.held.clear()
        await rig.round()
        await rig.until(lambda: rig.state.phase is Phase.IN_SYNC)
        assert (self.home.records(), self.home.files()) == ([], [])

    async def _prepare_again(self, rig: Rig, claims: NodeClaims) -> None:
        """As the kubelet does after a start; what no plan has any more cannot be there."""
        for claim in sorted(self.held):
            try:
                await claims.prepare(*claim)
            except NodeagentError as error:
                if not (self.rebooted and "is not there" in error.message):
                    raise
                del self.held[claim]
                await claims.release(claim[2])
        await rig.round()
        self._check()

    async def _round(self, rig: Rig, claims: NodeClaims) -> None:
        match self.rng.choice(["plan", "claim", "claim", "claim", "release", "late"]):
            case "plan":
                text = plan_text(self.rng.choice(PLANS))
                await self._plan(rig, text + b"  dra: false\n" * self.rng.randrange(2))
            case "claim" if found := self._allocate(rig, claims):
                await self._prepare(claims, *found)
            case "late" if found := self._allocate(rig, claims):
                await self._plan(rig, plan_text(self.rng.choice(PLANS)))
                await self._prepare(claims, *found)
            case "release" if self.held:
                claim = self.rng.choice(sorted(self.held))
                del self.held[claim]
                await claims.release(claim[2])
        await rig.round()
        if rig.state.phase is Phase.BLOCKED:
            self.blocked += 1
            said = " ".join(problem.message for problem in rig.state.problems)
            assert any(f"{namespace}/{name}" in said for namespace, name, _ in self.held), said

    async def _plan(self, rig: Rig, text: bytes | None) -> None:
        await rig.rest()
        self.text, before = text, rig.state.rounds
        if text is None:
            rig.plan.offer(NoPlan("none"))
        else:
            self.plans += 1
            rig.offer(text + f"# {self.plans}\n".encode())  # also the same once more
        await rig.until(lambda: rig.state.rounds > before and rig.state.phase in SETTLED)

    def _allocate(self, rig: Rig, claims: NodeClaims) -> tuple[Claim, Allocated] | None:
        """As a scheduler does, of what is published now."""
        self.now += self.rng.choice([1, 300, 700])
        goals = goals_of(rig.state.plan)
        offers = self.offers.make(
            rig.state.observed.gpus, goals, claims.store.records, now=self.now
        )
        node = NodeReference(NODE, "11111111-2222-3333-4444-555555555555")
        slices = [one for offer in offers for one in resource_slices(offer, node, 1)]
        kind = self.rng.choice(["1g.10gb", "2g.20gb", "3g.40gb", ""])
        asked = {MEMORY: self.rng.randint(1, 9 << 30)} if self.share and kind else {}

        def wanted(device: Mapping[str, Any]) -> bool:
            name = str(device["name"])
            return (
                name == WHOLE_GPU if not kind else name.startswith(f"mig-{kind}-".replace(".", "-"))
            )

        found = first_fit(complete_pools(slices), self.held.values(), Request(wanted, asked))
        if not found:
            return None
        self.count += 1
        return self.home.claim(self.count, *found), found[0]

    def reboot(self) -> None:
        self.lives += 1
        self.home.boot_id = f"boot {self.lives}"
        self.node.reboot()

    async def _prepare(self, claims: NodeClaims, claim: Claim, device: Allocated) -> None:
        try:
            await claims.prepare(*claim)
        except ClaimRefused:
            self.refused += 1
        except NodeagentError as error:  # the plan was first
            if not any(why in error.message for why in ("is not there", "in use", "beside")):
                raise
            self.refused += 1
            await claims.release(claim[2])
        else:
            self.held[claim] = device

    def _check(self) -> None:
        """What each claim has is there, alone but for those that have shares of it."""
        there = laid_out(self.node)
        known = places(self.gpu)
        for name, consumed in self._devices().items():
            if name == WHOLE_GPU:
                assert there == []
                assert len(self.held) == 1
            else:
                place, memory = known[name].placement, known[name].profile.memory
                assert (place.start, place.size) in there, (name, there)
                assert len(consumed) == 1 or sum(one or memory + 1 for one in consumed) <= memory
                self.shared += len(consumed) > 1
        taken = [known[name].placement.mask for name in self._devices() if name != WHOLE_GPU]
        assert sum(taken) == sum({*taken})

    def _devices(self) -> Mapping[str, Sequence[int]]:
        """What is consumed of the memory of each, by claim; 0: it is not shared."""
        found: dict[str, list[int]] = {}
        for one in self.held.values():
            found.setdefault(one.device, []).append((one.consumed or {}).get(MEMORY, 0))
        return found


@pytest.mark.parametrize(
    ("mode", "seed", "share"),
    [
        (Mode.DYNAMIC, 1, False),
        pytest.param(Mode.DYNAMIC, 2, False, marks=pytest.mark.full),
        (Mode.STATIC, 3, False),
        (Mode.DYNAMIC, 12, True),
    ],
)
async def test_plans_and_pods_at_random(home: Home, mode: Mode, seed: int, share: bool) -> None:
    """What a claim was given stays, over restarts and reboots; a plan that cannot be waits for the
    claims, names them, and is carried out when they are gone.
    """
    with simulated("h100-80gb") as node:
        day = Day(node, home, seed, mode, share=share)
        for life in range(6):
            await day.live(12, reboot=life % 2 == 1)
        await day.live(12, last=True)
        assert day.count > 5
        assert day.blocked
        assert bool(day.shared) is share
