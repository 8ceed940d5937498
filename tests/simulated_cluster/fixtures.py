"""Fixtures of tests that want an API server with the Node `n` and a way to it, or that use gRPC."""

import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nodeagent.cluster.client.access import ClusterAccess
from tests.cluster.client.rig import kubeconfig
from tests.simulated_cluster.api_server import ApiServer


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as api:
        api.add_node("n")
        yield api


@pytest.fixture
async def access(server: ApiServer, tmp_path: Path) -> AsyncIterator[ClusterAccess]:
    """Without a token; a test in which no answer comes lowers `answer_within`."""
    async with ClusterAccess(kubeconfig(tmp_path, server.url)) as made:
        yield made


@pytest.fixture
def grpc_ends() -> Iterator[None]:
    """gRPC's polling thread ends with its last object, and failed calls are cycles."""
    yield
    gc.collect()
