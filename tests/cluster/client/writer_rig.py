"""A writer that follows its Node and keeps its reports, and what the server got of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.keeper import WriteIntervals
from nodeagent.cluster.node import KeptNode
from tests.cluster.client.rig import QUICK, QUICK_WRITES, STATUS, running, until
from tests.machine_load import stretched
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.journal import Request

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Written:
    """A writer that follows its Node, and what it reported."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        intervals: WriteIntervals = QUICK_WRITES,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.views: list[NodeView | None] = []
        self.faults: list[ClusterFault | None] = []
        self.contests: list[tuple[str, ...]] = []
        self.now = NOON
        self.node = KeptNode(
            access,
            "n",
            on_view=self.views.append,
            on_writing=self.faults.append,
            on_contest=self.contests.append,
            watches=QUICK,
            writes=intervals,
            clock=clock or asyncio.get_running_loop().time,
            jitter=lambda: 0.5,
            wall=lambda: self.now,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[KeptNode]:
        async with running(self.node.run()):
            await until(lambda: self.views)
            yield self.node


def writes(server: ApiServer) -> list[Request]:
    """The requests that would change something."""
    return [request for request in server.requests if request.write]


def status(server: ApiServer) -> str | None:
    """The status annotation as the server has it."""
    found = server.node("n")["metadata"].get("annotations", {}).get(STATUS)
    assert isinstance(found, str | None)
    return found


def wanted(text: str) -> Wanted:
    """Want this status and nothing else."""
    return Wanted({STATUS: text})


async def settled(server: ApiServer, writer: KeptNode, text: str) -> None:
    """The status becomes this, and nothing is left to be written."""
    await until(lambda: status(server) == text)
    async with asyncio.timeout(stretched(30)):
        await writer.settled()


async def written(server: ApiServer, count: int) -> None:
    """So many requests were made to write."""
    await until(lambda: len(writes(server)) == count)
