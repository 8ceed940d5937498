"""What the real kubelet answers is what the tests' own does."""

from __future__ import annotations

import pytest

from tests.real_cluster.rig import Node
from tests.simulated_cluster.fixtures import grpc_ends
from tests.simulated_cluster.listing import listed

__all__ = ["grpc_ends"]


@pytest.mark.usefixtures("grpc_ends")
async def test_what_it_lists(node: Node) -> None:
    """Every pod with all its containers, and of each the devices that it has, however it asked."""
    node.claim("claim", "mig-1g-10gb.nodeagent.io")
    node.pod("by-claim", claim="claim")
    node.until_running()
    node.pod("by-limit")
    node.pod("plain", "")
    node.until_running()
    found, recorded = await listed(
        node.place.kubelet_dir / "pod-resources" / "kubelet.sock", record=True
    )
    assert found == recorded
