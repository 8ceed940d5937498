import asyncio

import pytest

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.guard import NodeGuard
from nodeagent.plan.problems import Code, Problem
from tests.cluster.client.rig import running
from tests.machine_load import until
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer

pytestmark = pytest.mark.virtual_time


async def test_policies_that_come_later(server: ApiServer, access: ClusterAccess) -> None:
    """They end the problem within a minute or so. No answer changes nothing, nor do webhooks that
    know no dry runs.
    """
    server.access.unguarded = True
    guard = NodeGuard(access, "n")
    async with running(guard.run()):
        await until(lambda: guard.problem.newest == Problem.of(Code.UNGUARDED))
        for code in (503, 400):
            server.faults.next(1, Answer(code))
        await asyncio.sleep(150.0)
        assert guard.problem.newest == Problem.of(Code.UNGUARDED)
        server.access.unguarded = False
        await until(lambda: guard.problem.newest is None, within=90.0)
        asked = len(server.requests)
        await asyncio.sleep(3.5 * 3600.0)
        assert len(server.requests) - asked == 3
    assert "guard.nodeagent.io/probe" not in str(server.node("n"))
