"""The folder of a simulated node with an agent; and a GPU and an API server within the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nodeagent.simulation import SimulatedNode, simulated
from tests.acceptance.agent_home import Home
from tests.acceptance.cluster_rig import NODE
from tests.simulated_cluster.api_server import ApiServer


@pytest.fixture
def home() -> Iterator[Home]:
    """Not pytest's folder: other users have to reach it, and socket paths are short."""
    folder = Path(tempfile.mkdtemp(prefix="na-", dir="/tmp"))
    folder.chmod(0o755)
    place = Home(folder)
    try:
        yield place
    finally:
        place.end_everything()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def gpus() -> Iterator[SimulatedNode]:
    """One H100."""
    with simulated("h100-80gb:1") as node:
        yield node


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """A server with the Node."""
    async with ApiServer() as server:
        server.add_node(NODE)
        yield server
