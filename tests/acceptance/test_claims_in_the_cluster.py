"""What a cluster shows of claims: how well their devices are."""

from __future__ import annotations

import json
import os
import time

import pytest

from nodeagent.simulation import SimulatedNode
from tests.acceptance.test_claims import Cluster, cluster, folder
from tests.cluster.client.rig import until
from tests.simulated_cluster.fixtures import grpc_ends
from tests.simulated_cluster.kubelet_claims import Claim
from tests.simulated_cluster.scheduler import DRIVER

__all__ = ["cluster", "folder", "grpc_ends"]

pytestmark = pytest.mark.usefixtures("grpc_ends")


def health(cluster: Cluster, claim: Claim) -> tuple[str, str]:
    """What the claim's pod shows of its device."""
    (device,) = cluster.kubelet.checkpoint[claim.namespace, claim.name].devices[DRIVER]
    return cluster.kubelet.health(DRIVER, device.pool_name, device.device_name)


async def test_pods_show_the_health_of_their_devices(cluster: Cluster) -> None:
    """A sick slice is unhealthy with the cause and what helps, its sibling is not; a lost GPU is
    for both.
    """
    os.mkfifo(cluster.folder / "kmsg")
    kernel = os.open(cluster.folder / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    async with cluster.agent(NODEAGENT_HEALTH_KERNEL_LOG=str(cluster.folder / "kmsg")):
        claims = [cluster.pod(f"pod-{number}", "1g.10gb") for number in range(2)]
        sick, well = (claim for claim in claims if claim)
        for claim in (sick, well):
            await cluster.kubelet.prepare(claim.name, claim)
        await until(lambda: health(cluster, sick) == health(cluster, well) == ("HEALTHY", ""))
        state = json.loads((cluster.folder / "node.json").read_text())
        first = next(i for i in state["gpus"][0]["instances"] if i["start"] == 6)
        micros = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        where = f"PCI:0000:1a:00 GPU-I:{first['id']:02}"
        os.write(kernel, f"3,17,{micros},-;NVRM: Xid ({where}): 95, pid=7, name=x\n".encode())
        await until(lambda: health(cluster, sick)[0] == "UNHEALTHY")
        assert health(cluster, sick)[1] == (
            "GPU 0 reported an error that needs a GPU reset (XID 95) in slice 6. "
            "Drain the GPU, then reset it."
        )
        assert health(cluster, well) == ("HEALTHY", "")
        with SimulatedNode(state=cluster.folder / "node.json") as node:
            node.lose(0)
        await until(lambda: health(cluster, well)[0] == "UNHEALTHY")
        assert "GPU 0" in health(cluster, well)[1]
    os.close(kernel)
