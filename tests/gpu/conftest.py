"""A simulated node, and the driver on top of it."""

from collections.abc import AsyncIterator

import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.simulation import SimulatedNode
from tests.machine_load import stretched, until


def quick() -> float:
    """Seconds; a deadline that only calls that hang exceed."""
    return stretched(0.4)


@pytest.fixture
async def driver(node: SimulatedNode) -> AsyncIterator[Driver]:
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        yield driver


@pytest.fixture
async def hasty(node: SimulatedNode) -> AsyncIterator[Driver]:
    """A driver with short deadlines; calls that hang are let go at the end."""
    async with Driver(observe_deadline=quick(), step_deadline=quick()) as driver:
        try:
            yield driver
        finally:
            node.clear_faults()
            await settled(driver)


async def settled(driver: Driver) -> None:
    await until(lambda: not any(worker.stuck for worker in driver.pool._workers))
