"""What a cluster shows of claims: how well their devices are, Events, and their status."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

import pytest

from nodeagent.simulation import SimulatedNode
from tests.acceptance.agent_home import SOON
from tests.acceptance.claims_rig import Cluster, claim_settings
from tests.cluster.client.rig import until
from tests.machine_load import stretched
from tests.simulated_cluster.agent import NAME, AgentProcess, command, until_status
from tests.simulated_cluster.kubelet_claims import Claim, DraKubelet, PodFailed
from tests.simulated_cluster.kubelet_plugins import V1_36, V1_37
from tests.simulated_cluster.scheduler import DRIVER
from tests.simulated_cluster.store import Key


def health(cluster: Cluster, claim: Claim) -> tuple[str, str]:
    """What the claim's pod shows of its device."""
    (device,) = cluster.kubelet.checkpoint[claim.namespace, claim.name].devices[DRIVER]
    return cluster.kubelet.health(DRIVER, device.pool_name, device.device_name)


async def test_pods_show_the_health_of_their_devices(cluster: Cluster) -> None:
    """A slice with an error is unhealthy with the cause and what helps, its sibling is not; a lost
    GPU is for both, and the node says that it offers less.
    """
    os.mkfifo(cluster.folder / "kmsg")
    kernel = os.open(cluster.folder / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    async with cluster.agent(NODEAGENT_HEALTH_KERNEL_LOG=str(cluster.folder / "kmsg")):
        claims = [cluster.pod(f"pod-{number}", "1g.10gb") for number in range(2)]
        unhealthy, well = (claim for claim in claims if claim)
        for claim in (unhealthy, well):
            await cluster.kubelet.prepare(claim.name, claim)
        await until(lambda: health(cluster, unhealthy) == health(cluster, well) == ("HEALTHY", ""))
        state = json.loads((cluster.folder / "node.json").read_text())
        first = next(i for i in state["gpus"][0]["instances"] if i["start"] == 6)
        micros = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        where = f"PCI:0000:1a:00 GPU-I:{first['id']:02}"
        os.write(kernel, f"3,17,{micros},-;NVRM: Xid ({where}): 95, pid=7, name=x\n".encode())
        error = "GPU 0 reported an error that needs a GPU reset (XID 95) in slice 6. Reset GPU 0: "
        await until(
            lambda: health(cluster, unhealthy)[1].startswith(error)
        )  # the slice was looked at
        assert health(cluster, unhealthy)[0] == "UNHEALTHY"
        assert "`nvidia-smi --gpu-reset -i 0`" in health(cluster, unhealthy)[1]
        await until(lambda: health(cluster, well) == ("HEALTHY", ""))
        with SimulatedNode(state=cluster.folder / "node.json") as node:
            node.lose(0)
        await until(lambda: health(cluster, well)[0] == "UNHEALTHY")
        assert "GPU 0" in health(cluster, well)[1]
        async with asyncio.timeout(stretched(SOON)):
            while await less_offered(cluster) != ["GpuLost"]:
                await asyncio.sleep(0.05)
    os.close(kernel)


async def test_an_unhealthy_gpu_can_be_drained(cluster: Cluster) -> None:
    """A pod on a GPU that is unhealthy as a whole ends, and its slice goes: the reset, which is the
    remedy, waits for that.
    """
    os.mkfifo(cluster.folder / "kmsg")
    kernel = os.open(cluster.folder / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    async with cluster.agent(NODEAGENT_HEALTH_KERNEL_LOG=str(cluster.folder / "kmsg")):
        claim = cluster.pod("trainer", "1g.10gb")
        assert claim
        await cluster.kubelet.prepare("trainer", claim)
        micros = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        xid = "Xid (PCI:0000:1a:00): 62, pid=7, name=x"
        os.write(kernel, f"3,17,{micros},-;NVRM: {xid}\n".encode())
        await until(lambda: health(cluster, claim)[0] == "UNHEALTHY")
        await cluster.end(claim)
        assert (cluster.slices(), cluster.cdi()) == ([], 0)
    os.close(kernel)


async def less_offered(cluster: Cluster) -> list[str]:
    """Why the GPUs offer less to claims than they could, as the agent answers: codes."""
    return [one["code"] for one in (await cluster.status()).get("lessOffered", ())]


def events(cluster: Cluster) -> set[tuple[str, str, str]]:
    """Of claims and pods: the kind, the name and the reason."""
    about = ((e["involvedObject"], e["reason"]) for e in cluster.api.events)
    return {(of["kind"], of["name"], reason) for of, reason in about if of["kind"] != "Node"}


def reserve(cluster: Cluster, claim: Claim) -> None:
    """The scheduler notes the claim's pod in it."""
    pod = cluster.api.add_pod(claim.name, namespace=claim.namespace, node=NAME)
    consumer = {"resource": "pods", "name": claim.name, "uid": pod["metadata"]["uid"]}

    def reserved(found: dict[str, Any]) -> dict[str, Any]:
        return {**found, "status": {**found["status"], "reservedFor": [consumer]}}

    cluster.api.store.change(Key("resourceclaims", claim.namespace, claim.name), reserved)


async def test_claims_and_pods_show_what_happens(cluster: Cluster) -> None:
    """Prepared, not released while it is used, released; its devices are in the claim's status."""
    async with cluster.agent():
        claim = cluster.pod("trainer", "1g.10gb")
        assert claim
        reserve(cluster, claim)
        await cluster.kubelet.prepare("trainer", claim)
        both = ("ResourceClaim", "Pod")
        await until(
            lambda: {(kind, "trainer", "ClaimPrepared") for kind in both} == events(cluster)
        )
        key = Key("resourceclaims", claim.namespace, claim.name)
        await until(lambda: cluster.api.store.get(key)["status"].get("devices"))
        (device,) = cluster.api.store.get(key)["status"]["devices"]
        assert device["driver"] == DRIVER
        assert device["data"]["profile"] == "1g.10gb"
        assert device["data"]["uuid"].startswith("MIG-")
        assert device["data"]["placement"] == {"start": 6, "size": 1}
        assert [(c["type"], c["status"]) for c in device["conditions"]] == [("Ready", "True")]
        state = json.loads((cluster.folder / "node.json").read_text())
        cluster.occupy("train", state["gpus"][0]["instances"][0]["id"])
        with pytest.raises(PodFailed, match="4711"):
            await cluster.kubelet.release("trainer")
        await until(lambda: ("Pod", "trainer", "ClaimNotReleased") in events(cluster))
        with SimulatedNode(state=cluster.folder / "node.json") as node:
            node.release(pid=4711)
        await cluster.kubelet.release("trainer")
        await until(lambda: ("Pod", "trainer", "ClaimReleased") in events(cluster))


async def test_a_kubelet_that_refuses_the_driver(cluster: Cluster) -> None:
    """The status has its words; newer ones insist on their own path of their root directory."""
    root = cluster.folder / "root"
    (root / "plugins_registry").mkdir(parents=True)
    (root / "plugins").mkdir()
    (cluster.folder / "link").symlink_to(root)
    arguments = command("h100-80gb:1", cluster.folder)
    settings = claim_settings(cluster.folder)
    settings["NODEAGENT_KUBELET_DIR"] = str(cluster.folder / "link")
    words = "the kubelet refuses the DRA driver: RegisterPlugin error"
    async with AgentProcess(arguments, cluster.folder, settings=settings):
        async with DraKubelet(root, V1_37):
            await until_status(cluster.api, lambda found: words in json.dumps(found["problems"]))
        async with DraKubelet(root, V1_36):
            await until_status(cluster.api, lambda found: found["problems"] == [])
