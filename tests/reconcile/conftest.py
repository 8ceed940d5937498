"""A simulated node with one H100, and the agent's parts on it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from nodeagent.simulation import SimulatedNode, simulated
from tests.reconcile.controller_rig import Agent, NodeRig


@pytest.fixture
def rig() -> Iterator[NodeRig]:
    with NodeRig() as made:
        yield made


@pytest.fixture
def node(rig: NodeRig) -> Iterator[SimulatedNode]:
    with simulated("h100-80gb:1", state=rig.state) as made:
        yield made


@pytest.fixture
async def agent(rig: NodeRig, node: SimulatedNode) -> AsyncIterator[Agent]:
    async with rig.agent() as made:
        yield made
