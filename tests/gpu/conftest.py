"""A simulated node, and the driver on top of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.simulation import SimulatedNode, simulated


@pytest.fixture
def node() -> Iterator[SimulatedNode]:
    """Two simulated H100, MIG off."""
    with simulated("h100-80gb:2") as node:
        yield node


@pytest.fixture
async def driver(node: SimulatedNode) -> AsyncIterator[Driver]:
    """The driver of that node, with short deadlines."""
    async with Driver(observe_deadline=2, step_deadline=2) as driver:
        yield driver
