"""What is put right without a call of the kubelet's, on a simulated node."""

import pytest

from nodeagent.claims.model import ClaimRecord, RecordPhase
from nodeagent.claims.records import read_records
from nodeagent.claims.serving.cdi import file_name
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.claims.upkeep.upkeep import Upkeep
from nodeagent.errors import StillInUse
from nodeagent.plan.problems import Code
from nodeagent.simulation import SimulatedNode, simulated
from tests.claims.machine import UIDS, Home, laid_out, pool, pool_of
from tests.rig import Rig

DEVICE = "mig-1g-10gb-2"


async def messages(claims: NodeClaims, home: Home, rig: Rig) -> list[str]:
    """What is amiss after a round that sees the node as it is now."""
    await rig.round()
    return [problem.message for problem in await home.upkeep(claims).round()]


def recorded(home: Home) -> ClaimRecord:
    [record] = read_records(home.records_dir)
    assert isinstance(record, ClaimRecord)
    return record


async def test_what_is_in_order_is_left(node: SimulatedNode, home: Home) -> None:
    async with home.agent() as (claims, rig):
        name = home.claim(0, (pool(rig), DEVICE))
        await claims.prepare(*name)
        home.run_pod(name, (pool(rig), DEVICE))
        home.api_away = True
        before = recorded(home), (home.cdi / file_name(UIDS[0])).stat().st_ino
        assert await messages(claims, home, rig) == []
        assert (recorded(home), (home.cdi / file_name(UIDS[0])).stat().st_ino) == before
        assert laid_out(node) == [(2, 1)]


async def test_what_is_made_again_waits_once_for_the_api_server(
    node: SimulatedNode, home: Home
) -> None:
    """Not with the claim's lock held, for which the kubelet's calls wait."""
    async with home.agent() as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), DEVICE)))
        (home.cdi / file_name(UIDS[0])).unlink()
        home.fetched = 0
        assert await messages(claims, home, rig) == []
        assert (home.files(), home.fetched) == ([file_name(UIDS[0])], 1)


async def test_a_monitor_that_is_gone(node: SimulatedNode, home: Home) -> None:
    """An administrator's claim gives nothing back: a GPU that is lost does not keep it, but keeps
    what was made there for another one.
    """
    async with home.agent() as (claims, rig):
        name = home.claim(0, (pool(rig), "gpu"), (pool(rig, 1), "gpu"))
        for result in home.claims[name[:2]]["status"]["allocation"]["devices"]["results"]:
            result["adminAccess"] = True
        await claims.prepare(*name)
        await claims.prepare(*home.claim(1, (pool(rig, 1), DEVICE)))
        home.claims.clear()
        node.lose(1)
        [kept] = await messages(claims, home, rig)
        assert "claim team/trainer-1 is left as it is" in kept
        assert (home.records(), home.files()) == ([f"{UIDS[1]}.json"], [file_name(UIDS[1])])


async def test_a_process_that_came_since_the_node_was_observed(
    node: SimulatedNode, home: Home
) -> None:
    """The GPU is observed again in its turn: the release fails with its name, and is begun."""
    async with home.agent() as (claims, rig):
        [device] = await claims.prepare(*home.claim(0, (pool(rig), DEVICE)))
        await rig.round()
        home.claims.clear()
        node.occupy(device.uuid, pid=4711, command="train")
        [problem] = await home.upkeep(claims).round()
        assert problem.code is Code.IN_USE
        assert "4711" in problem.message
        assert laid_out(node) == [(2, 1)]
        node.release(device.uuid)
        home.api_away = True  # what was begun is finished without it
        assert await messages(claims, home, rig) == []
        assert laid_out(node) == []


async def test_a_release_that_was_refused_and_another_pod(node: SimulatedNode, home: Home) -> None:
    """The kubelet neither prepares a shared claim again for a second pod nor asks again for its
    release: what that pod has stays until the kubelet does not list it any more.
    """
    async with home.agent() as (claims, rig):
        name = home.claim(0, (pool(rig), DEVICE))
        [device] = await claims.prepare(*name)
        node.occupy(device.uuid, pid=4711, command="train")
        with pytest.raises(StillInUse):
            await claims.release(UIDS[0])
        home.run_pod(name, (pool(rig), DEVICE))
        node.release(device.uuid)
        for _ in range(2):
            [message] = await messages(claims, home, rig)
            used = "its release was begun, but it is used by pod team/trainer-0-pod"
            assert message == f"claim team/trainer-0: {used}"
            assert recorded(home).devices == (device,)
            assert (laid_out(node), home.files()) == ([(2, 1)], [file_name(UIDS[0])])
        home.pods = []
        assert await messages(claims, home, rig) == []
        assert (laid_out(node), home.records(), home.files()) == ([], [], [])


@pytest.mark.parametrize("away", ["kubelet", "API server"])
async def test_nothing_is_released_while_one_cannot_be_asked(
    node: SimulatedNode, home: Home, away: str
) -> None:
    """Of kubelet and API server; when both answer again, it is."""
    async with home.agent() as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), DEVICE)))
        home.claims.clear()
        home.pods, home.api_away = (None, False) if away == "kubelet" else ([], True)
        found = await messages(claims, home, rig)
        assert [m for m in found if "the kubelet does not answer" in m] == found
        assert bool(found) == (away == "kubelet")
        assert laid_out(node) == [(2, 1)]
        home.pods, home.api_away = [], False
        assert await messages(claims, home, rig) == []
        assert laid_out(node) == []


async def test_a_claim_that_is_allocated_again_just_then(node: SimulatedNode, home: Home) -> None:
    """It was deallocated when it was asked about first; in its turn it is prepared already."""
    async with home.agent() as (claims, rig):
        name = home.claim(0, (pool(rig), DEVICE))
        await claims.prepare(*name)
        allocated = home.claims[name[:2]]
        home.claims[name[:2]] = allocated | {"status": {}}
        await rig.round()
        asked = 0

        async def allocations() -> tuple[()]:
            nonlocal asked
            asked += 1
            if asked == 2:
                home.claims[name[:2]] = allocated
            return ()

        assert await Upkeep(claims, allocations=allocations, planned=frozenset).round() == ()
        assert (asked, laid_out(node)) == (2, [(2, 1)])


async def test_what_cannot_be_made_again_is_tried_again(node: SimulatedNode, home: Home) -> None:
    """The kubelet does not ask for it any more; one claim's failure stops no other."""
    async with home.agent() as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), DEVICE)))
        await claims.prepare(*home.claim(1, (pool(rig, 1), DEVICE)))
        node.card(0).state.instances.clear()
        (home.cdi / file_name(UIDS[1])).unlink()
        node.inject("nvmlDeviceCreateGpuInstance*", error="NVML_ERROR_UNKNOWN", gpu=0)
        [message] = await messages(claims, home, rig)
        assert "trainer-0" in message
        assert (home.cdi / file_name(UIDS[1])).exists()
        assert await messages(claims, home, rig) == []
        assert laid_out(node) == [(2, 1)]
        assert {record.phase for record in claims.store.records} == {RecordPhase.READY}


async def test_a_card_that_was_taken_out(home: Home) -> None:
    """Its claims are released after a start of the machine, by the kubelet or by the agent itself;
    before it, a card that is not listed may be there, which is nothing to the kubelet.
    """
    with simulated("h100-80gb:2") as node:
        async with home.core() as (claims, _):
            for number in range(2):
                device = pool_of(node, 1), f"mig-1g-10gb-{number}"
                await claims.prepare(*home.claim(number, device))
    home.claims.clear()
    with simulated("h100-80gb:1"):
        async with home.core() as (claims, _):
            await claims.release(UIDS[0])
            assert len(home.records()) == 2
        home.boot_id = "second"
        async with home.core() as (claims, _):
            await claims.release(UIDS[0])
            assert home.records() == [f"{UIDS[1]}.json"]
            assert await home.upkeep(claims).round() == ()
            assert (home.records(), home.files()) == ([], [])


async def test_a_record_that_cannot_be_read(node: SimulatedNode, home: Home) -> None:
    async with home.agent() as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), DEVICE)))
        await claims.prepare(*home.claim(1, (pool(rig), "mig-1g-10gb-5")))
    damaged = home.records_dir / f"{UIDS[1]}.json"
    damaged.write_text("{")
    home.claims.clear()
    node.card(0).state.instances[:] = [one for one in node.card(0).state.instances if one.start > 2]
    home.claim(0, (pool(rig), DEVICE))
    async with home.agent() as (claims, rig):
        [message] = await messages(claims, home, rig)
        assert str(damaged) in message
        assert laid_out(node) == [(5, 1)]
        assert home.files() == [file_name(uid) for uid in UIDS[:2]]
        damaged.unlink()
        [message] = await messages(claims, home, rig)
        assert "belongs to no claim" in message
        assert laid_out(node) == [(2, 1), (5, 1)]
        assert home.files() == [file_name(UIDS[0])]
        assert claims.store.problems == ()
