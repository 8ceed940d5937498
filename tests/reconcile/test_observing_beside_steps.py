"""An observation takes as long as its slowest GPU; the others are worked on meanwhile."""

from __future__ import annotations

import asyncio

from nodeagent.plan.shares import ComputeMode
from nodeagent.plan.steps import SetComputeMode
from nodeagent.simulation import simulated
from tests.mps.fleet_rig import until
from tests.reconcile.controller_rig import NodeRig

EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


async def test_what_was_read_since_it_began_is_kept(rig: NodeRig) -> None:
    """It began before a step on GPU 0 and ends after it: GPU 0 is what the step made of it."""
    with simulated("h100-80gb:2") as node:
        async with rig.agent() as agent:
            first, _ = (await agent.node.observe()).gpus
            slow = node.inject(gpu=1, hang=True, times=1000)
            observing = asyncio.create_task(agent.node.observe())
            await until(lambda: slow.times < 1000)
            await agent.node.apply(SetComputeMode(first.uuid, first.uuid, EXCLUSIVE, "a test's"))
            node.clear_faults()
            observed = await observing
            assert [gpu.compute_mode for gpu in observed.gpus] == [EXCLUSIVE, ComputeMode.DEFAULT]
            assert agent.node.seen == observed
