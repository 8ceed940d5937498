"""A simulated node's folder with an agent; a GPU and an API server; a node with claims."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nodeagent.simulation import SimulatedNode, simulated
from tests.acceptance.agent_home import Home
from tests.acceptance.claims_rig import Cluster, one_node
from tests.acceptance.cluster_rig import FIRST, NODE, Member
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.fixtures import grpc_ends

__all__ = ["grpc_ends"]


@pytest.fixture
def home(short: Path) -> Iterator[Home]:
    place = Home(short)
    yield place
    place.end_everything()


@pytest.fixture
def gpus() -> Iterator[SimulatedNode]:
    with simulated("h100-80gb:1") as node:
        yield node


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.add_node(NODE)
        yield server


@pytest.fixture
async def member(gpus: SimulatedNode, api: ApiServer, tmp_path: Path) -> AsyncIterator[Member]:
    """An agent that is in sync with the first plan, and quiet."""
    async with Member(tmp_path, api).running() as made:
        await made.settled(FIRST)
        yield made


@pytest.fixture
def folder(grpc_ends: None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="na-") as folder:
        yield Path(folder)


@pytest.fixture
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    async with one_node(folder) as made:
        yield made


@pytest.fixture
async def listing(folder: Path) -> AsyncIterator[Cluster]:
    async with one_node(folder, lists_pods=True) as made:
        yield made
