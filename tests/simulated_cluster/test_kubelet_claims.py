"""The tests' kubelet has claims prepared and released as the real one does, and follows health."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest

from nodeagent.cluster.kubelet.generated.dra_pb2 import NodePrepareResourceResponse
from nodeagent.cluster.kubelet.generated.podresources_pb2 import ListPodResourcesResponse
from tests.cluster.client.rig import until
from tests.simulated_cluster.bare_plugin import DRIVER, ONE, TWO, Plugin
from tests.simulated_cluster.kubelet import Kubelet
from tests.simulated_cluster.kubelet_claims import Claim, DraKubelet, PodFailed
from tests.simulated_cluster.kubelet_plugins import (
    V1_34,
    V1_36,
    V1_37,
    VERSIONS,
    KubeletVersion,
    channel_to,
)

pytestmark = pytest.mark.usefixtures("grpc_ends")
each_version = pytest.mark.parametrize("version", VERSIONS, ids=str)


async def test_answers_that_the_kubelet_refuses(tmp_path: Path) -> None:
    """A claim that was not asked for, one that is missing, and one with an error."""
    plugin = Plugin(tmp_path)
    async with DraKubelet(tmp_path) as kubelet, plugin.running():
        await until(lambda: kubelet.plugins.get(DRIVER))
        with pytest.raises(PodFailed, match="returned result for unknown claim UID b"):
            await kubelet.prepare("pod", ONE)
        plugin.prepared[TWO.uid] = NodePrepareResourceResponse(error="no")
        with pytest.raises(PodFailed, match="failed for ResourceClaim claim-b: no"):
            await kubelet.prepare("pod", ONE, TWO)
        del plugin.prepared[TWO.uid]
        with pytest.raises(PodFailed, match="NodePrepareResources skipped 1 ResourceClaims"):
            await kubelet.prepare("pod", ONE, TWO)
        del plugin.released[TWO.uid]
        with pytest.raises(PodFailed, match="NodeUnprepareResources skipped 1 ResourceClaims"):
            await kubelet.release("pod")


async def test_a_claim_that_pods_share(tmp_path: Path) -> None:
    """It is prepared once, and released after the last of them; another uid has to wait."""
    plugin = Plugin(tmp_path)
    del plugin.prepared[TWO.uid], plugin.released[TWO.uid]
    async with DraKubelet(tmp_path) as kubelet, plugin.running():
        await until(lambda: kubelet.plugins.get(DRIVER))
        for pod in ("one", "two"):
            await kubelet.prepare(pod, ONE)
        with pytest.raises(PodFailed, match="different UID a still exists"):
            await kubelet.prepare("three", Claim(ONE.name, "b", drivers=(DRIVER,)))
        await kubelet.release("one")
        assert kubelet.checkpoint
        await kubelet.release("two")
        await kubelet.release("two")
        assert [method for method, _ in kubelet.calls] == [
            "NodePrepareResources",
            "NodeUnprepareResources",
        ]


async def listed(kubelet: Kubelet) -> list[tuple[str, str, str, str, str]]:
    """Devices of claims in the answer to List."""
    async with channel_to(str(kubelet.socket)) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/v1.PodResourcesLister/List"
        )
        answer = ListPodResourcesResponse.FromString(await call(b"", timeout=60))
    return [
        (pod.name, claim.claim_name, one.driver_name, one.pool_name, one.device_name)
        for pod in answer.pod_resources
        for container in pod.containers
        for claim in container.dynamic_resources
        for one in claim.claim_resources
    ]


async def test_devices_are_listed_until_the_release_succeeds(tmp_path: Path) -> None:
    """The pod-resources service names the claim, the driver, the pool and the device."""
    plugin = Plugin(tmp_path)
    del plugin.prepared[TWO.uid], plugin.released[TWO.uid]
    async with (
        Kubelet(tmp_path / "pod-resources") as listing,
        DraKubelet(tmp_path, pod_resources=listing) as kubelet,
        plugin.running(),
    ):
        await until(lambda: kubelet.plugins.get(DRIVER))
        await kubelet.prepare("pod", ONE)
        assert await listed(listing) == [("pod", "claim-a", DRIVER, "p", "d")]
        plugin.released[ONE.uid].error = "in use"
        with pytest.raises(PodFailed, match="in use"):
            await kubelet.release("pod")
        assert len(await listed(listing)) == 1
        plugin.released[ONE.uid].error = ""
        await kubelet.release("pod")
        assert await listed(listing) == []


@each_version
async def test_bugs_of_older_kubelets(tmp_path: Path, version: KubeletVersion) -> None:
    """A pod that never got the claim has it released, and devices are listed twice."""
    plugin = Plugin(tmp_path)
    del plugin.prepared[TWO.uid], plugin.released[TWO.uid]
    async with DraKubelet(tmp_path, version) as kubelet, plugin.running():
        await until(lambda: kubelet.plugins.get(DRIVER))
        await kubelet.prepare("pod", ONE)
        await kubelet.restart()
        await until(lambda: kubelet.plugins.get(DRIVER))
        await kubelet.prepare("pod", ONE)
        assert len(kubelet.cdi_ids(ONE)) == (1 if version is V1_37 else 2)
        await kubelet.release("stranger", ONE)
        assert bool(kubelet.checkpoint) == (version is V1_37)


@pytest.mark.parametrize("version", [V1_36, V1_37], ids=str)
async def test_a_pod_that_comes_while_its_claim_goes(
    tmp_path: Path, version: KubeletVersion
) -> None:
    """An older kubelet starts it although its devices go."""
    plugin = Plugin(tmp_path)
    del plugin.prepared[TWO.uid], plugin.released[TWO.uid]
    async with DraKubelet(tmp_path, version) as kubelet, plugin.running():
        await until(lambda: kubelet.plugins.get(DRIVER))
        await kubelet.prepare("one", ONE)
        plugin.release_now.clear()
        going = asyncio.create_task(kubelet.release("one"))
        await until(lambda: len(kubelet.calls) == 2)
        coming = await asyncio.gather(kubelet.prepare("two", ONE), return_exceptions=True)
        assert isinstance(coming[0], PodFailed) == (version is V1_37)
        plugin.release_now.set()
        await going


# --- health ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "advertised", "asked"),
    [
        (V1_34, True, False),
        (V1_36, True, True),
        (V1_36, False, True),
        (V1_37, True, True),
        (V1_37, False, False),
    ],
    ids=["1.34", "1.36", "1.36 unasked", "1.37", "1.37 unasked"],
)
async def test_who_is_asked_for_health(
    tmp_path: Path, version: KubeletVersion, advertised: bool, asked: bool
) -> None:
    """And what was said is forgotten when the stream ends."""
    versions = ("v1.DRAPlugin", *(("v1alpha1.DRAResourceHealth",) if advertised else ()))
    plugin = Plugin(tmp_path, versions=versions)
    async with DraKubelet(tmp_path, version) as kubelet:
        async with plugin.running():
            await until(lambda: plugin.notified)
            if asked:
                await until(lambda: kubelet.health(DRIVER, "p", "d")[0] == "HEALTHY")
            else:
                await kubelet.plugins.get(DRIVER).channel.channel_ready()  # type: ignore[union-attr]
        await until(lambda: kubelet.health(DRIVER, "p", "d")[0] == "UNKNOWN")
    assert bool(plugin.watched) == asked
