"""What the agent does about claims by itself: it puts right what nobody asks it for."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress

import pytest

from tests.acceptance.agent_home import SOON
from tests.acceptance.test_claims import TEAM, Cluster, cluster, folder
from tests.acceptance.test_claims_seen import answered
from tests.cluster.client.rig import until
from tests.machine_load import stretched
from tests.simulated_cluster.fixtures import grpc_ends
from tests.simulated_cluster.kubelet import Kubelet

__all__ = ["cluster", "folder", "grpc_ends"]

pytestmark = pytest.mark.usefixtures("grpc_ends")


@pytest.mark.full
async def test_a_claim_that_was_deleted_while_the_agent_was_away(cluster: Cluster) -> None:
    """No kubelet asks for its release, and its slice goes all the same."""
    async with Kubelet(cluster.folder / "pods") as listing:
        settings = {
            "NODEAGENT_KUBELET_USE": "always",
            "NODEAGENT_KUBELET_SOCKET": str(listing.socket),
        }
        async with cluster.agent(**settings):
            claim = cluster.pod("trainer", "1g.10gb")
            assert claim
            await cluster.kubelet.prepare("trainer", claim)
            assert len(cluster.slices()) == cluster.cdi() == 1
        cluster.scheduler.delete(TEAM, "trainer")
        async with cluster.agent(**settings):
            await until(lambda: (cluster.slices(), cluster.cdi()) == ([], 0))
    del listing  # the last of gRPC


async def test_pods_that_come_and_go_change_no_published_slice(cluster: Cluster) -> None:
    """What one released is free at once, and its neighbours are not taken for occupied."""
    async with cluster.agent():
        for number in range(4):
            claim = cluster.pod(f"pod-{number}", "1g.10gb")
            assert claim
            await cluster.kubelet.prepare(claim.name, claim)
            await cluster.end(claim)
    written = [one for one in cluster.api.requests if one.write and "slices" in one.path]
    assert {one.method for one in written} == {"POST"}


@pytest.mark.full
async def test_damaged_files_of_claims_end_no_start(cluster: Cluster) -> None:
    """A record that is cut, and a named pipe where the places of the plan are kept: the next agent
    reports both, and leaves the claim what it has.
    """
    async with cluster.agent():
        claim = cluster.pod("trainer", "1g.10gb")
        assert claim
        await cluster.kubelet.prepare("trainer", claim)
    had = cluster.slices()
    record = cluster.folder / "node.json.mps/claims" / f"{claim.uid}.json"
    os.truncate(record, record.stat().st_size // 2)
    places = cluster.folder / "state/planned-places.json"
    places.unlink(missing_ok=True)
    os.mkfifo(places)
    wanted = {str(record), f"{places}.unusable-1"}
    async with cluster.agent(), asyncio.timeout(stretched(SOON)):
        while wanted:
            answer = ""
            with suppress(OSError):  # what was published before says nothing of this agent
                answer = await answered(cluster, "/v1/status")
            status = json.loads(answer.partition("\r\n\r\n")[2] or '{"problems": []}')
            claims = [one for claim in status.get("claims", ()) for one in claim["problems"]]
            for problem in (*status["problems"], *claims):
                if problem["code"] == "StateFile":
                    wanted -= {name for name in wanted if name in problem["message"]}
            await asyncio.sleep(0.1)
    assert cluster.slices() == had
    assert cluster.cdi() == 1
