"""A simulated node with one H100, and the agent's parts on it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from nodeagent.simulation import SimulatedNode, simulated
from tests.reconcile.controller_rig import Agent, NodeRig


@pytest.fixture
def rig() -> Iterator[NodeRig]:
    """Everything of it ends with the test."""
    with NodeRig() as made:
        yield made


@pytest.fixture
def node(rig: NodeRig) -> Iterator[SimulatedNode]:
    """One H100."""
    with simulated("h100-80gb:1", state=rig.state) as made:
        yield made


@pytest.fixture
async def agent(rig: NodeRig, node: SimulatedNode) -> AsyncIterator[Agent]:
    """An agent that lives as long as the test."""
    async with rig.agent() as made:
        yield made
