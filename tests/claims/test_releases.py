"""Releases of claims on a simulated node: what goes with them, and what stays."""

from __future__ import annotations

import pytest

from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.simulation import SimulatedNode
from tests.claims.machine import UIDS, Home, laid_out, pool


@pytest.mark.parametrize("device", ["mig-3g-40gb-4", "gpu"])
async def test_a_claim_on_two_gpus_is_released_whole_or_not(
    node: SimulatedNode, home: Home, device: str
) -> None:
    """While a device on one GPU is used, the one on the other stays, whichever comes first."""
    async with home.agent() as (claims, rig):
        first, last = sorted((0, 1), key=lambda index: rig.gpu(index).uuid)
        both = home.claim(0, (pool(rig, first), "mig-1g-10gb-0"), (pool(rig, last), device))
        used = next(d for d in await claims.prepare(*both) if d.gpu == rig.gpu(last).uuid)
        before = laid_out(node, first), laid_out(node, last)
        node.occupy(used.device_uuid, pid=4711, command="train")
        for _ in range(2):
            with pytest.raises(StillInUse, match="4711"):
                await claims.release(UIDS[0])
            assert (laid_out(node, first), laid_out(node, last)) == before
        assert len(home.files()) == len(home.records()) == 1
        node.release(pid=4711)
        await claims.release(UIDS[0])
        assert (laid_out(node, first), laid_out(node, last)) == ([], [])
        assert home.files() == home.records() == []


async def test_a_release_that_is_finished_late(node: SimulatedNode, home: Home) -> None:
    """What another program made meanwhile, in the same place and with the same id, stays."""
    async with home.agent() as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-0")))
        kept = home.cdi.rename(home.folder / "kept")
        home.cdi.write_text("a file in the directory's place")
        with pytest.raises(NodeagentError, match="cannot be used"):
            await claims.release(UIDS[0])
        assert laid_out(node) == []
        with node.changes():
            node.card(0).create_instance(profile=19, place=(0, 1))
        home.cdi.unlink()
        kept.rename(home.cdi)
        await claims.release(UIDS[0])
        assert (laid_out(node), home.records(), home.files()) == ([(0, 1)], [], [])


async def test_a_release_that_fails_on_its_second_gpu(node: SimulatedNode, home: Home) -> None:
    """What another program made on the first one meanwhile, with the same id, stays."""
    async with home.agent() as (claims, rig):
        first, last = sorted((0, 1), key=lambda index: rig.gpu(index).uuid)
        places = [(pool(rig, index), "mig-1g-10gb-0") for index in (first, last)]
        await claims.prepare(*home.claim(0, *places))
        fault = node.inject("nvmlComputeInstanceDestroy", error="UNKNOWN", times=None, gpu=last)
        with pytest.raises(NodeagentError):
            await claims.release(UIDS[0])
        assert (laid_out(node, first), laid_out(node, last)) == ([], [(0, 1)])
        with node.changes():
            node.card(first).create_instance(profile=19, place=(0, 1))
        node.clear_faults(fault)
        await claims.release(UIDS[0])
        assert (laid_out(node, first), laid_out(node, last)) == ([(0, 1)], [])
        assert home.files() == home.records() == []
