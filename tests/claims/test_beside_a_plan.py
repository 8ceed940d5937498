"""Claims and a plan on one simulated card: each keeps what is its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest

from nodeagent.claims.offering.gpu_rules import GpuRules, Mode
from nodeagent.claims.offering.node_offers import NodeOffers, goals_of
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.documents.reading import digest_of
from nodeagent.errors import StillInUse
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.plan import Policy, Verdict
from nodeagent.reconcile.active_plan import ActivePlan
from nodeagent.reconcile.plan_update import PlanText
from nodeagent.reconcile.step_run import NodeDriver
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.views.node_state import Phase
from tests.claims.machine import NODE, UIDS, Home, laid_out, pool
from tests.claims.mps_rig import share
from tests.mps.fleet_rig import US, ready, status
from tests.reconcile.controller_rig import NodeRig
from tests.rig import Rig, plan_text, running

PLAN = "{3g.40gb: 1}"
THREE = "mig-3g-40gb-4"  # where the planner puts it on an empty card


@asynccontextmanager
async def planned(
    home: Home, mig: str = PLAN, mps: tuple[ClaimDaemons, NodeDriver] | None = None
) -> AsyncIterator[tuple[NodeClaims, Rig]]:
    """One agent's life, with a plan for the first GPU that is in sync, and MPS where its parts are
    given; claims share MIG devices then.
    """
    daemons, driver = mps or (None, None)
    offers = NodeOffers(NODE, Mode.DYNAMIC, share_mig="memory" if mps else "off")

    async def observe() -> ObservedNode:
        return rig.state.observed

    def rules(gpu: Gpu) -> GpuRules:
        return offers.rules(gpu, goals_of(rig.state.plan), claims.store.records)

    rig = Rig(
        home.folder,
        driver=nullcontext(driver) if driver else None,
        with_claims=lambda *goal: claims.store.with_claims(*goal),  # noqa: PLW0108  # made below
    )
    claims = home.node_claims(rig.owners, observe, daemons, rules)
    await claims.store.load()
    async with running(rig):
        await offer(rig, plan_text(mig, "[0]"), Phase.IN_SYNC)
        yield claims, rig


async def offer(rig: Rig, text: bytes, phase: Phase) -> None:
    """Have another plan, and wait until it is what it becomes."""
    await rig.rest()
    before = rig.state.rounds
    rig.offer(text)
    await rig.until(lambda: rig.state.rounds > before and rig.state.phase is phase)


async def test_a_claim_uses_what_the_plan_has(node: SimulatedNode, home: Home) -> None:
    async with planned(home) as (claims, rig):
        assert laid_out(node) == [(4, 4)]
        [device] = await claims.prepare(*home.claim(0, (pool(rig), THREE)))
        assert device.fixed
        instance = rig.gpu().instances[0]
        assert (device.instance, device.uuid) == (instance.id, instance.compute[0].uuid)
        await claims.prepare(*home.claim(1, (pool(rig), "mig-1g-10gb-0")))
        assert laid_out(node) == [(0, 1), (4, 4)]
        await rig.round()
        assert rig.state.phase is Phase.IN_SYNC
        for uid in UIDS[:2]:
            await claims.release(uid)
        assert laid_out(node) == [(4, 4)]
        assert (home.records(), home.files()) == ([], [])


async def test_a_preview_knows_of_claims(node: SimulatedNode, home: Home) -> None:
    async with planned(home) as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-0")))
        await rig.round()
        beside, alone = rig.plan, ActivePlan(rig.control)
        preview = PlanText(plan_text("{7g.80gb: 1}", "[0]")), rig.state.observed, Policy()
        _, found = beside.preview(*preview)
        assert found.verdict is Verdict.BLOCKED
        assert "claim team/trainer-0" in str(found.gpus[0].problems)
        assert alone.preview(*preview)[1].verdict is Verdict.APPLICABLE


async def test_mps_that_a_plan_wants_of_all_instances(node: SimulatedNode, home: Home) -> None:
    """It is not wanted of those of claims, which may be too small for it."""
    async with planned(home, "enabled") as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-0")))
        await rig.round()
        text = plan_text("enabled", "[0]") + b"  mps: {replicas: 9}\n"
        beside, alone = rig.plan, ActivePlan(rig.control)
        preview = PlanText(text), rig.state.observed, Policy()
        assert beside.preview(*preview)[1].verdict is Verdict.IN_SYNC
        assert alone.preview(*preview)[1].verdict is Verdict.UNSATISFIABLE
        rig.offer(text)
        await rig.until(lambda: rig.state.digest == digest_of(text))


async def test_what_is_used_is_not_released(node: SimulatedNode, home: Home) -> None:
    async with planned(home) as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), THREE)))
        node.occupy(f"0/{rig.gpu().instances[0].id}/0", pid=4711, command="train")
        with pytest.raises(StillInUse, match=rf"{THREE} of .* is in use by pid 4711"):
            await claims.release(UIDS[0])
        assert home.records() == [f"{UIDS[0]}.json"]
        node.release(pid=4711)
        await claims.release(UIDS[0])
        assert home.records() == []


@pytest.mark.parametrize("plan", [PLAN, "{3g.40gb: 2}"])
async def test_claims_share_what_the_plan_has(plan: str, home: Home) -> None:
    """Their daemon comes and goes on the plan's instance, which stays; the plan is in sync with it,
    and the next agent and its claims take it over.
    """
    with NodeRig() as machine, simulated("h100-80gb:1", state=machine.state) as node:
        layout: list[tuple[int, int]] = []
        for number in (0, 1):
            async with machine.agent() as parts:
                daemons = ClaimDaemons(f"{US}:{US}", machine.run_dir, False, parts.fleet.poll)
                async with planned(home, plan, (daemons, parts.node)) as (claims, rig):
                    layout = laid_out(node)
                    [device] = await claims.prepare(*share(home, rig, number, device=THREE))
                    assert device.fixed
                    assert (await ready(parts.fleet, device.uuid)).is_ready
                    shares = status(parts.fleet, device.uuid).shares
                    assert set(shares or ()) == {*UIDS[: number + 1]}
                    await rig.round()
                    assert rig.state.phase is Phase.IN_SYNC
                    for uid in UIDS[:2] if number else ():
                        await claims.release(uid)
                        await rig.round()
                    assert len(parts.fleet.statuses()) == 1 - number
        assert (laid_out(node), home.records()) == (layout, [])
        assert node.journal.total("nvmlGpuInstanceDestroy") == 0
