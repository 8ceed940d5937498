"""Steps come to their ends, whatever happens meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.errors import DeadlineExceeded, DriverError
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import Access, MigMode, Placement
from nodeagent.plan.steps import SetMigMode
from nodeagent.simulation import SimulatedNode
from tests.gpu.hanging import settled
from tests.gpu.steps_of import create, laid_out, layout
from tests.machine_load import stretched


async def test_a_step_needs_no_observation_before(node: SimulatedNode) -> None:
    """The agent may have been started just now."""
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        uuid = (await driver.observe()).gpus[0].uuid
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        await driver.apply(SetMigMode(uuid, enabled=True, reason=""))
        assert (await driver.observe_gpu(uuid)).mig == MigMode(current=True, pending=True)


async def test_a_step_that_is_cancelled_is_finished_first(
    driver: Driver, node: SimulatedNode
) -> None:
    """SIGTERM in the middle of a creation leaves no half-made instance."""
    gpu = await laid_out(driver, 0)
    hang = node.inject("nvmlDeviceCreateGpuInstanceWithPlacement", hang=True)
    step = asyncio.create_task(driver.apply(create(gpu, "3g.40gb", 0)))
    async with asyncio.timeout(stretched(30)):
        while hang.times:
            await asyncio.sleep(0.001)
    step.cancel()
    await asyncio.sleep(0.02)
    assert not step.done()
    node.clear_faults()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert layout(await driver.observe_gpu(gpu.uuid)) == {Placement(0, 4): ("3g.40gb",)}


async def test_a_step_that_hangs_ends_at_its_deadline(hasty: Driver, node: SimulatedNode) -> None:
    """And its GPU is unknown until the call returns; then what came of it is seen."""
    gpu = await laid_out(hasty, 0)
    node.inject("nvmlGpuInstanceCreateComputeInstance", hang=True)
    with pytest.raises(DeadlineExceeded, match=r"creating 3g\.40gb at 0:4 did not return"):
        await hasty.apply(create(gpu, "3g.40gb", 0))
    assert (await hasty.observe_gpu(gpu.uuid)).access is Access.UNKNOWN
    node.clear_faults()
    await settled(hasty)
    assert layout(await hasty.observe_gpu(gpu.uuid)) == {Placement(0, 4): ("3g.40gb",)}


async def test_errors_name_the_gpu(driver: Driver) -> None:
    """A node has several."""
    gpu = await laid_out(driver, 1, at0="7g.80gb")
    with pytest.raises(DriverError, match=r"^GPU 1: the GPU has no free room"):
        await driver.apply(create(gpu, "1g.10gb", 0))
