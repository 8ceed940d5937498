"""The servers that contract tests run against: ours, and a real one where there is one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Protocol

import pytest
from kubernetes.aio import client

from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.clients import Api, core_api
from tests.simulated_cluster.fixtures import grpc_ends
from tests.simulated_cluster.real_api_server import STRANGERS_TOKEN, TOKEN, RealApiServer, why_not

__all__ = ["grpc_ends"]


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """Our server, with a Node `gpu-0`."""
    async with ApiServer(bookmark_seconds=0.2) as api:
        api.add_node("gpu-0")
        yield api


@pytest.fixture
async def core(api: ApiServer) -> AsyncIterator[Api]:
    """The real client in front of it."""
    async with core_api(api.url) as core:
        yield core


class Cluster(Protocol):
    """What a contract test may know of the server."""

    url: str
    token: str
    ca_file: str | None

    async def restart(self) -> None: ...


@dataclass
class _Ours:
    server: ApiServer
    token: str = TOKEN
    ca_file: str | None = None

    @property
    def url(self) -> str:
        return self.server.url

    @url.setter
    def url(self, _: str) -> None: ...

    async def restart(self) -> None:
        await self.server.restart()


class _Real:
    def __init__(self, server: RealApiServer) -> None:
        self._server = server
        self.url, self.token = server.url, server.token
        self.ca_file: str | None = server.ca_file

    async def restart(self) -> None:
        await asyncio.to_thread(self._server.restart)


@pytest.fixture(scope="session", autouse=True)  # runs before any test looks at what runs already
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer | None]:
    """A real API server for all tests that want one, None where there is none."""
    if why_not():
        yield None
        return
    with RealApiServer(tmp_path_factory.mktemp("cluster")).running() as server:
        yield server


@pytest.fixture(params=["ours", "real"])
async def cluster(
    request: pytest.FixtureRequest, real_server: RealApiServer | None
) -> AsyncIterator[Cluster]:
    """Each kind of server in turn."""
    if request.param == "real":
        if real_server is None:
            pytest.skip(why_not())
        yield _Real(real_server)
        return
    async with ApiServer(bookmark_seconds=60) as server:
        server.tokens.update({TOKEN: "tester", STRANGERS_TOKEN: "stranger"})
        server.access.powerless.add("stranger")
        yield _Ours(server)


@pytest.fixture
async def cluster_api(cluster: Cluster) -> AsyncIterator[Api]:
    """The real client in front of it."""
    async with core_api(cluster.url, token=cluster.token, ca_file=cluster.ca_file) as core:
        yield core


@pytest.fixture
async def node(cluster_api: Api) -> AsyncIterator[str]:
    """A Node that goes again."""
    name = "contract-node"
    await cluster_api.create_node({"metadata": {"name": name}})
    yield name
    with contextlib.suppress(client.exceptions.NotFoundException):
        await cluster_api.delete_node(name)
