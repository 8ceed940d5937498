"""The test kubelet behaves as the real one where that matters: seen without the agent's client."""

from __future__ import annotations

import stat
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from nodeagent.cluster.kubelet.generated.podresources_pb2 import (
    AllocatableResourcesResponse,
    ListPodResourcesResponse,
)
from tests.simulated_cluster.kubelet import RATE_LIMITED, Kubelet
from tests.simulated_cluster.listing import listed

MIG = "nvidia.com/mig-1g.10gb"


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    """A kubelet with two allocated devices out of three."""
    async with Kubelet(tmp_path / "pod-resources") as kubelet:
        kubelet.offer(MIG, ["MIG-a", "MIG-b", "MIG-c"])
        kubelet.allocate("trainer", ["MIG-a", "MIG-b"], resource=MIG)
        yield kubelet


async def asked(kubelet: Kubelet, method: str) -> bytes:
    """The answer to an empty request, as bytes."""
    async with grpc.aio.insecure_channel(f"unix:{kubelet.socket}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/v1.PodResourcesLister/{method}"
        )
        return await call(b"", timeout=30)


async def test_one_entry_for_each_device(kubelet: Kubelet) -> None:
    """Devices of one resource come in an entry each, in both answers."""
    listed = ListPodResourcesResponse.FromString(await asked(kubelet, "List"))
    (pod,) = listed.pod_resources
    assert (pod.name, pod.namespace) == ("trainer", "default")
    devices = [list(entry.device_ids) for entry in pod.containers[0].devices]
    assert devices == [["MIG-a"], ["MIG-b"]]
    answer = AllocatableResourcesResponse.FromString(
        await asked(kubelet, "GetAllocatableResources")
    )
    assert [list(entry.device_ids) for entry in answer.devices] == [["MIG-a"], ["MIG-b"], ["MIG-c"]]


async def test_the_folder_and_the_socket(kubelet: Kubelet) -> None:
    """The folder is its owner's, and a restart makes the socket anew, so mounts of it go stale."""
    assert stat.S_IMODE(kubelet.socket.parent.stat().st_mode) == 0o750
    # A second name keeps the first socket's inode from being used again.
    (kubelet.socket.parent / "mounted").hardlink_to(kubelet.socket)
    before = kubelet.socket.stat().st_ino
    await kubelet.restart()
    assert kubelet.socket.stat().st_ino != before


async def test_a_restart_keeps_the_checkpoint_alone(kubelet: Kubelet) -> None:
    """Allocations are listed after a restart, while nothing is allocatable any more."""
    before = await asked(kubelet, "List")
    await kubelet.restart()
    assert await asked(kubelet, "List") == before
    assert await asked(kubelet, "GetAllocatableResources") == b""


async def test_refusals_and_the_journal(kubelet: Kubelet) -> None:
    """An ordered refusal is answered until it is taken back, and each call is noted."""
    kubelet.refuse["List"] = RATE_LIMITED
    with pytest.raises(grpc.aio.AioRpcError, match="rejected by rate limit"):
        await asked(kubelet, "List")
    del kubelet.refuse["List"]
    await asked(kubelet, "List")
    assert kubelet.calls == ["List", "List"]


async def test_pods_come_and_go(kubelet: Kubelet) -> None:
    """A pod that is gone is not listed, and its devices can be another's."""
    kubelet.finish("trainer")
    assert await asked(kubelet, "List") == b""
    kubelet.allocate("successor", ["MIG-a"], resource=MIG)
    listed = ListPodResourcesResponse.FromString(await asked(kubelet, "List"))
    assert [pod.name for pod in listed.pod_resources] == ["successor"]


async def test_its_list_is_that_of_a_real_one(tmp_path: Path) -> None:
    """Every pod is in it, also one without a device; a limit's claim is one like any other."""
    async with Kubelet(tmp_path) as kubelet:
        kubelet.run("plain")
        where = {"driver": "gpu.nodeagent.io", "pool": f"n/gpu-{uuid.uuid4()}"}
        kubelet.claim("by-claim", "mig-1g-10gb-6", name="claim", **where)
        kubelet.claim(
            "by-limit", "mig-1g-10gb-5", name="by-limit-extended-resources-ab1c2", **where
        )
        found, recorded = await listed(kubelet.socket)
    assert found == recorded
