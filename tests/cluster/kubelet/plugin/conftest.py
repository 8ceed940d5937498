"""Claims whose work the test controls, and the end of gRPC's thread after each test."""

import pytest

from tests.cluster.kubelet.plugin.rig import Claims
from tests.simulated_cluster.fixtures import grpc_ends

__all__ = ["grpc_ends"]


@pytest.fixture
def claims() -> Claims:
    """Each claim is prepared with one device, at once."""
    return Claims()
