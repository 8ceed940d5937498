"""Claims on GPUs that are lost: the kubelet has its answer, and the record the rest."""

import pytest

from nodeagent.claims.model import ClaimHeldUp, RecordPhase
from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.simulation import SimulatedNode, simulated
from tests.claims.machine import UIDS, Home, laid_out, pool, pool_of
from tests.claims.mps_rig import agent, client, share, unresolved
from tests.reconcile.controller_rig import DEFAULT, EXCLUSIVE, NodeRig, modes

DEVICE = "mig-1g-10gb-2"


@pytest.mark.parametrize("comes_back", ["as it was", "empty", "at a reboot", "never"])
async def test_the_release_of_a_slice(node: SimulatedNode, home: Home, comes_back: str) -> None:
    """It is over for the kubelet. The record holds the place, over a restart of the agent as well,
    until the GPU answers again and its slice is destroyed, or the machine was started anew.
    """
    async with home.agent() as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), DEVICE)))
        del home.claims["team", "trainer-0"]
        node.lose(0)
        await rig.round()
        await claims.release(UIDS[0])
        await claims.release(UIDS[0])  # the kubelet may ask once more
        [record] = claims.store.records
        assert (record.phase, home.files()) == (RecordPhase.RELEASING, [])
    with node.changes():
        if comes_back != "never":
            node.card(0).state.failure = 0
        if comes_back == "empty":
            node.card(0).state.instances.clear()
    if comes_back in ("at a reboot", "never"):
        home.boot_id = "second"
        node.reboot()
        if comes_back == "never":
            node.lose(0)
    async with home.core() as (claims, hardware):
        if comes_back == "as it was":
            with pytest.raises(ClaimHeldUp, match="is held: mig-1g-10gb-2 of claim team/trainer-0"):
                await claims.prepare(*home.claim(1, (pool_of(node), DEVICE)))
        assert await home.upkeep(claims).round() == ()
        assert (home.records(), laid_out(node)) == ([], [])
        await hardware.observe()


async def test_while_it_is_lost(node: SimulatedNode, home: Home) -> None:
    """Each round says what is left, and what the claim has elsewhere is free."""
    async with home.agent() as (claims, rig):
        both = (pool(rig, 0), "gpu"), (pool(rig, 1), DEVICE)
        await claims.prepare(*home.claim(0, *both))
        home.claims.clear()
        node.lose(0)
        for expected in ([], ["claim team/trainer-0 is left as it is: GPU 0 does not answer"]):
            found = await unresolved(claims, home, rig)
            assert [message.partition(": the GPU has")[0] for message in found] == expected
        assert laid_out(node, 1) == []
        await claims.prepare(*home.claim(1, both[1]))
        node.lose(1, error="NVML_ERROR_UNKNOWN")
        await rig.round()
        with pytest.raises(NodeagentError, match="does not answer"):
            await claims.release(UIDS[1])  # it may still be there, and used


async def test_a_claim_that_is_allocated_anew(node: SimulatedNode, home: Home) -> None:
    """It keeps its uid, and comes on another GPU at once. What was made before is left, and known
    to be of no claim, should the GPU come back without a reset.
    """
    async with home.agent() as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), DEVICE)))
        node.lose(0)
        await rig.round()
        await claims.prepare(*home.claim(0, (pool(rig, 1), "mig-1g-10gb-4")))
        assert laid_out(node, 1) == [(4, 1)]
        with node.changes():
            node.card(0).state.failure = 0
        await rig.round()
        [left] = await home.upkeep(claims).round()
        assert "belongs to no claim" in left.message
        await claims.release(UIDS[0])
        assert (home.records(), laid_out(node), laid_out(node, 1)) == ([], [(2, 1)], [])


async def test_another_pod_of_a_claim_that_was_released_while_a_gpu_of_it_was_lost(
    node: SimulatedNode, home: Home
) -> None:
    """The record keeps what is on the GPU until that answers, and then has it again."""
    async with home.agent() as (claims, rig):
        both = (pool(rig, 0), DEVICE), (pool(rig, 1), DEVICE)
        await claims.prepare(*home.claim(0, *both))
        node.lose(0)
        await rig.round()
        await claims.release(UIDS[0])
        with pytest.raises(NodeagentError, match="does not answer"):
            await claims.prepare(*home.claim(0, *both))
        with node.changes():
            node.card(0).state.failure = 0
        await rig.round()
        await claims.prepare(*home.claim(0, *both))
        assert (laid_out(node, 0), laid_out(node, 1)) == ([(2, 1)], [(2, 1)])
        await claims.release(UIDS[0])
        assert (home.records(), laid_out(node, 0), laid_out(node, 1)) == ([], [], [])


@pytest.mark.parametrize("which", [0, 1])
async def test_a_gpu_of_a_daemon(machine: NodeRig, home: Home, which: int) -> None:
    """The daemon ends with the last claim, and the other GPU is free; the lost one gets its compute
    mode back when it answers again.
    """
    with simulated("l40s:2", state=machine.state) as node:
        cards = sorted(node.cards, key=lambda card: card.identity.uuid)
        lost, other = cards[which], cards[1 - which]
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            [device, _] = await claims.prepare(*share(home, rig, 0, 0, 1))
            await claims.prepare(*share(home, rig, 1, other.index))
            with client(home, machine, device) as program:
                node.lose(lost.index)
                await rig.round()
                with pytest.raises(StillInUse, match=f"{program.pid}"):
                    await claims.release(UIDS[0])
            for uid in UIDS[: 2 * which]:
                await claims.release(uid)
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            await parts.fleet.poll()
            for uid in UIDS[:2]:
                await claims.release(uid)
            home.claims.clear()
            assert (parts.fleet.statuses(), machine.processes()) == ((), [])
            assert (modes(node)[other.index], modes(node)[lost.index]) == (DEFAULT, EXCLUSIVE)
            assert home.records() == [f"{UIDS[0]}.json"]
            await claims.prepare(*home.claim(2, (pool(rig, other.index), "gpu")))
            with node.changes():
                lost.state.failure = 0
            await unresolved(claims, home, rig)
            assert (home.records(), modes(node)) == ([f"{UIDS[2]}.json"], [DEFAULT] * 2)


async def test_a_gpu_that_is_back_and_used(machine: NodeRig, home: Home) -> None:
    """It was lost when it was looked at last."""
    with simulated("l40s:2", state=machine.state) as node:
        async with agent(home, machine, share="memory") as (claims, rig, _):
            await claims.prepare(*share(home, rig, 0, 0, 1))
            node.lose(0)
            await rig.round()
            with node.changes():
                node.card(0).state.failure = 0
            pid = node.occupy("0").pid
            with pytest.raises(StillInUse, match=f"{pid}"):
                await claims.release(UIDS[0])
