"""A simulated node, and the driver on top of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.simulation import SimulatedNode, simulated
from tests.gpu.hanging import QUICK, settled


@pytest.fixture
def node() -> Iterator[SimulatedNode]:
    """Two simulated H100, MIG off."""
    with simulated("h100-80gb:2") as node:
        yield node


@pytest.fixture
async def driver(node: SimulatedNode) -> AsyncIterator[Driver]:
    """The driver of that node, with short deadlines."""
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        yield driver


@pytest.fixture
async def hasty(node: SimulatedNode) -> AsyncIterator[Driver]:
    """A driver with short deadlines; calls that hang are let go at the end."""
    async with Driver(observe_deadline=QUICK, step_deadline=QUICK) as driver:
        try:
            yield driver
        finally:
            node.clear_faults()
            await settled(driver)
