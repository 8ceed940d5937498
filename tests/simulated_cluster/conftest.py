"""The servers that contract tests run against: ours, and a real one where there is one."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeagent.cluster.client.access import ClusterAccess
from tests.cluster.client.rig import kubeconfig
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.real_api_server import STRANGERS_TOKEN, TOKEN, RealApiServer, why_not


@dataclass(frozen=True)
class Cluster:
    """What a contract test may know of the server."""

    server: ApiServer | RealApiServer

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def is_real(self) -> bool:
        return isinstance(self.server, RealApiServer)

    async def restart(self) -> None:
        if isinstance(self.server, RealApiServer):
            await asyncio.to_thread(self.server.restart)
        else:
            await self.server.restart()


@pytest.fixture(params=["ours", "real"])
async def cluster(
    request: pytest.FixtureRequest, real_server: RealApiServer | None
) -> AsyncIterator[Cluster]:
    if request.param == "real":
        if real_server is None:
            pytest.skip(why_not())
        yield Cluster(real_server)
        return
    async with ApiServer() as server:
        server.tokens.update({TOKEN: "tester", STRANGERS_TOKEN: "stranger"})
        server.access.powerless.add("stranger")
        yield Cluster(server)


@pytest.fixture
async def access(cluster: Cluster, tmp_path: Path) -> AsyncIterator[ClusterAccess]:
    """The agent's own client, as one who may do everything."""
    async with ClusterAccess(kubeconfig(tmp_path, cluster.url, token=TOKEN)) as access:
        yield access
