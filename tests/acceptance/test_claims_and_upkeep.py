"""What the agent does about claims by itself: it puts right what nobody asks it for."""

from __future__ import annotations

import pytest

from tests.acceptance.test_claims import TEAM, Cluster, cluster, folder
from tests.cluster.client.rig import until
from tests.simulated_cluster.fixtures import grpc_ends
from tests.simulated_cluster.kubelet import Kubelet

__all__ = ["cluster", "folder", "grpc_ends"]

pytestmark = pytest.mark.usefixtures("grpc_ends")


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
