"""Claims with several GPUs under one MPS daemon."""

import asyncio

import pytest

from nodeagent.claims.model import ClaimHeldUp
from nodeagent.errors import StillInUse
from nodeagent.simulation import simulated
from tests.claims.machine import NODE, UIDS, Home, pool, reserve
from tests.claims.mps_rig import GIB, agent, client, given, share, unresolved
from tests.mps.fleet_rig import ready, status
from tests.reconcile.controller_rig import DEFAULT, EXCLUSIVE, NodeRig, modes


async def test_gpus_of_one_container(machine: NodeRig, home: Home) -> None:
    """Two GPUs of a claim have one daemon, and a claim with a share of one of them has it, too. It
    stays as it is for that one, in the next agent's life as well, and so does the other GPU.
    """
    pods: dict[int, str] = {}
    with simulated("l40s:2", state=machine.state) as node:
        uuids = sorted(card.identity.uuid for card in node.cards)
        last = next(c.index for c in node.cards if c.identity.uuid == uuids[1])
        async with agent(home, machine, share="memory", pods=pods) as (claims, rig, parts):
            job, notebook = share(home, rig, 0, 0, 1), share(home, rig, 1, last)
            for name in (job, notebook):
                reserve(claims, name, f"pod-of-{name[1]}")
            [first, _] = await claims.prepare(*job)
            [before] = parts.fleet.statuses()
            assert (before.is_ready, before.device) == (True, uuids[0])
            assert modes(node) == [EXCLUSIVE] * 2
            (edits, variables), (_, others) = given(home)
            assert variables == others
            assert variables["CUDA_VISIBLE_DEVICES"] == ",".join(uuids)
            assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M,1=8192M"
            paths = [one["path"] for one in edits["deviceNodes"]]
            assert sorted(paths) == ["/dev/nvidia0", "/dev/nvidia1"]
            await claims.prepare(*notebook)
            [(edits, variables)] = given(home, 1)
            assert [one["path"] for one in edits["deviceNodes"]] == [f"/dev/nvidia{last}"]
            assert variables["CUDA_VISIBLE_DEVICES"] == uuids[1]
            with client(home, machine, first) as program:
                pods[program.pid] = "pod-of-trainer-0"
                with pytest.raises(StillInUse, match=f"{program.pid}"):
                    await claims.release(UIDS[0])
                program.allocate(GIB)
            await claims.release(UIDS[0])
            whole = home.claim(2, (f"{NODE}/{uuids[0].lower()}", "gpu"))
            with pytest.raises(ClaimHeldUp, match="with none, but claim team/trainer-1 has it"):
                await claims.prepare(*whole)
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            await ready(parts.fleet, uuids[0])
            assert await unresolved(claims, home, rig) == []
            assert status(parts.fleet, uuids[0]).pid == before.pid
            with pytest.raises(ClaimHeldUp, match="with none, but claim team/trainer-1 has it"):
                await claims.prepare(*whole)
            await claims.release(UIDS[1])
            assert (parts.fleet.statuses(), machine.processes()) == ((), [])
            assert modes(node) == [DEFAULT] * 2
            await claims.prepare(*whole)


async def test_two_gpus_beside_a_whole_one_that_comes(machine: NodeRig, home: Home) -> None:
    """One of the two claims has what it wants, and the other nothing, also if they come at once."""
    with simulated("l40s:2", state=machine.state):
        async with agent(home, machine, share="memory") as (claims, rig, _):
            whole, job = home.claim(0, (pool(rig, 1), "gpu")), share(home, rig, 1, 0, 1)
            calls = claims.prepare(*whole), claims.prepare(*job)
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert {*map(type, outcomes)} == {tuple, ClaimHeldUp}
            assert len(home.records()) == 1


async def test_a_gpu_that_has_another_daemon(machine: NodeRig, home: Home) -> None:
    """It is not taken into one for several, and nothing is begun on the other GPU."""
    with simulated("l40s:2", state=machine.state) as node:
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            await claims.prepare(*share(home, rig, 0, 1))
            [before] = parts.fleet.statuses()
            job = share(home, rig, 1, 0, 1)
            with pytest.raises(ClaimHeldUp, match=r"but claim team/trainer-0 has it with an MPS"):
                await claims.prepare(*job)
            assert home.records() == [f"{UIDS[0]}.json"]
            assert modes(node).count(EXCLUSIVE) == 1
            await claims.release(UIDS[0])
            await claims.prepare(*job)
            [now] = parts.fleet.statuses()
            assert (now.is_ready, now.pid != before.pid) == (True, True)


async def test_claims_for_one_gpu_and_two_at_once(machine: NodeRig, home: Home) -> None:
    """Both have one daemon, or the one with two GPUs waits, and leaves the other as it is."""
    with simulated("l40s:2", state=machine.state):
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            for gpu in (0, 1, 0, 1):
                notebook, job = share(home, rig, 0, gpu), share(home, rig, 1, 0, 1)
                calls = claims.prepare(*job), claims.prepare(*notebook)
                both, one = await asyncio.gather(*calls, return_exceptions=True)
                assert isinstance(both, tuple | ClaimHeldUp), one
                assert await claims.prepare(*notebook)
                for uid in UIDS[:2]:
                    await claims.release(uid)
                assert parts.fleet.statuses() == ()


async def test_a_claim_goes_beside_a_lost_gpu_of_its_daemon(machine: NodeRig, home: Home) -> None:
    """Another claim keeps the daemon. What a claim has there waits until the GPU is back."""
    with simulated("l40s:2", state=machine.state) as node:
        first, last = sorted(node.cards, key=lambda card: card.identity.uuid)
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            for name in (
                share(home, rig, 0, 0, 1),
                share(home, rig, 1, first.index),
                share(home, rig, 2, last.index),
            ):
                await claims.prepare(*name)
            [before] = parts.fleet.statuses()
            node.lose(last.index)
            await claims.release(UIDS[1])
            [after] = parts.fleet.statuses()
            assert (after.pid, {*(after.shares or {})}) == (before.pid, {UIDS[0], UIDS[2]})
            await rig.round()
            await claims.release(UIDS[2])
            assert home.records() == [f"{UIDS[0]}.json", f"{UIDS[2]}.json"]
            with node.changes():
                last.state.failure = 0
            await rig.round()
            await asyncio.gather(*map(claims.release, (UIDS[0], UIDS[2])))
            assert (parts.fleet.statuses(), modes(node)) == ((), [DEFAULT] * 2)


async def test_a_daemon_of_two_gpus_without_a_record(machine: NodeRig, home: Home) -> None:
    """It ends, and both GPUs are as they were."""
    with simulated("l40s:2", state=machine.state) as node:
        async with agent(home, machine, share="memory") as (claims, rig, _):
            await claims.prepare(*share(home, rig, 0, 0, 1))
        (home.records_dir / home.records()[0]).unlink()
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            await parts.fleet.poll()
            await unresolved(claims, home, rig)
            assert (parts.fleet.statuses(), modes(node)) == ((), [DEFAULT] * 2)
