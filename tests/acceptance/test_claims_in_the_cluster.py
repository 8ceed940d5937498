import asyncio
import hashlib
import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from nodeagent.claims.offering.pool_offer import WITHDRAWN
from nodeagent.simulation import SimulatedNode
from tests.acceptance.agent_home import SOON, USER
from tests.acceptance.claims_rig import Cluster, claim_settings
from tests.acceptance.cluster_rig import plan_text
from tests.machine_load import stretched, until
from tests.simulated_cluster.agent import (
    NAME,
    PLAN,
    AgentProcess,
    command,
    in_sync,
    served,
    until_status,
)
from tests.simulated_cluster.allocator import DRIVER
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Freeze
from tests.simulated_cluster.kubelet_claims import Claim, DraKubelet, PodFailed
from tests.simulated_cluster.kubelet_plugins import V1_36, V1_37
from tests.simulated_cluster.store import Key

# --- beside plans ---------------------------------------------------------------------------------


THREE = plan_text("{3g.40gb: 1}")
SEVEN = plan_text("{7g.80gb: 1}")


def withdrawn(cluster: Cluster) -> set[str]:
    return {
        name
        for name, device in cluster.devices().items()
        if any(taint["key"] == WITHDRAWN for taint in device.get("taints", ()))
    }


def watches(cluster: Cluster) -> int:
    """How often ResourceSlices were watched, which an agent does once all are written."""
    return sum(r.watch and "resourceslices" in r.path for r in cluster.api.requests)


async def test_a_plan_and_pods_share_a_card(cluster: Cluster) -> None:
    cluster.api.annotate(NAME, **{PLAN: THREE})
    async with cluster.agent(published=0) as agent:
        await until_status(cluster.api, in_sync(THREE))
        await until(lambda: "mig-3g-40gb-4" in cluster.devices())
        assert "mig-4g-40gb-0" in cluster.devices()
        assert not {"gpu", "mig-7g-80gb-0"} & {*cluster.devices()}
        train, small = cluster.pod("train", "3g.40gb"), cluster.pod("small", "1g.10gb")
        late = cluster.pod("late", "1g.10gb")
        assert train
        assert small
        assert late
        await cluster.kubelet.prepare("train", train)
        assert cluster.slices() == [(4, 4)]
        await cluster.kubelet.prepare("small", small)
        assert [size for _, size in cluster.slices()] == [1, 4]
        cluster.api.annotate(NAME, **{PLAN: SEVEN})
        blocked = await until_status(cluster.api, lambda found: found["phase"] == "Blocked")
        assert "claim team/train" in json.dumps(blocked)
        await until(lambda: withdrawn(cluster) == {*cluster.devices()})
        with pytest.raises(PodFailed, match="not offered any more: the layout of"):
            await cluster.kubelet.prepare("late", late)
        published, before = cluster.devices(), watches(cluster)
        os.kill(agent.pid, signal.SIGKILL)
    async with cluster.agent(published=0):
        await until(lambda: watches(cluster) > before)
        assert cluster.devices() == published
        cluster.scheduler.delete("team", "late")
        for claim in (train, small):
            await cluster.kubelet.release(claim.name)
            cluster.scheduler.delete("team", claim.name)
        await until_status(cluster.api, in_sync(SEVEN))
        assert cluster.slices() == [(0, 8)]


async def test_a_slice_whose_record_is_lost_stays_its_pods(listing: Cluster) -> None:
    """The kubelet lists the claim of a pod that runs nothing on its slice at the moment. An agent
    that has no record of it any more does not take the slice away for another plan, nor while a
    kubelet that was restarted has the claim prepared again.
    """
    api, kubelet = listing.api, listing.kubelet
    api.annotate(NAME, **{PLAN: THREE})
    async with listing.agent(published=0):
        await until_status(api, in_sync(THREE))
        await until(lambda: "mig-3g-40gb-4" in listing.devices())
        train = await listing.started("train", "3g.40gb")
    for record in (listing.folder / "node.json.mps" / "claims").glob("*.json"):
        record.unlink()
    api.annotate(NAME, **{PLAN: SEVEN})
    async with listing.agent(published=0):
        blocked = await until_status(api, lambda found: found["phase"] == "Blocked")
        assert "pod team/train" in json.dumps(blocked)
        assert listing.slices() == [(4, 4)]
        begun = api.faults.struck
        api.faults.next(1, Freeze(), path="*/resourceclaims/train")
        await kubelet.restart()
        await until(lambda: listing.kubelet.plugins.get(DRIVER))
        preparing = asyncio.create_task(kubelet.prepare("second", train))
        await until(lambda: api.faults.struck > begun)
        again = f"{SEVEN}# again"
        api.annotate(NAME, **{PLAN: again})
        digest = f"sha256:{hashlib.sha256(again.encode()).hexdigest()}"
        found = await until_status(api, lambda found: found["digest"] == digest)
        assert found["phase"] == "Blocked"
        assert listing.slices() == [(4, 4)]
        api.faults.clear()
        with pytest.raises(PodFailed, match="not offered any more"):
            await preparing
        api.annotate(NAME, **{PLAN: SEVEN})
        await kubelet.release("second")
        await kubelet.release("train")
        await until_status(api, in_sync(SEVEN))
        assert listing.slices() == [(0, 8)]
    del kubelet  # the last of gRPC


@pytest.mark.full
async def test_a_plan_comes_back_in_its_places(cluster: Cluster) -> None:
    named, free = plan_text("[{profile: 1g.10gb, start: 2}]"), plan_text("{1g.10gb: 1}")
    noted = cluster.folder / "state" / "planned-places.json"
    async with cluster.agent(published=0):
        for plan in (named, free):
            cluster.api.annotate(NAME, **{PLAN: plan})
            await until_status(cluster.api, in_sync(plan))
        await until(lambda: "mig-1g-10gb-2" in cluster.devices() and noted.exists())
        assert cluster.slices() == [(2, 1)]
    with SimulatedNode(state=cluster.folder / "node.json") as node:
        node.reboot()
    assert cluster.slices() == []
    async with cluster.agent(published=0):
        await until(cluster.slices)
        assert cluster.slices() == [(2, 1)]


async def test_mode_static_on_an_older_cluster(cluster: Cluster) -> None:
    """Kubernetes 1.34 knows neither counters nor taints: the plan's devices are offered all the
    same, and nothing is made. That claims share no GPU is said, and holds nothing up.
    """
    cluster.api.slices.partitionable = cluster.api.slices.taints = False
    cluster.api.annotate(NAME, **{PLAN: THREE})
    async with cluster.agent("static", published=0, NODEAGENT_DRA_SHARE="memory"):
        await until(lambda: {*cluster.devices()} == {"mig-3g-40gb-4"})
        found = await until_status(cluster.api, in_sync(THREE))
        assert "NoEffect" in [problem["code"] for problem in found["problems"]]
        assert cluster.pod("small", "1g.10gb") is None
        claim = await cluster.started("train", "3g.40gb")
        assert (cluster.slices(), cluster.cdi()) == ([(4, 4)], 1)
        await cluster.end(claim)
        assert (cluster.slices(), cluster.cdi()) == ([(4, 4)], 0)


async def test_nos_drives_a_node_of_an_older_cluster(folder: Path) -> None:
    """Where the API server knows no ResourceSlices and the kubelet asks for no driver, what nos'
    partitioner asks for is done all the same, and the status says what claims need.
    """
    for name in ("plugins", "plugins_registry"):
        (folder / "kubelet" / name).mkdir(parents=True)
    asked = {"spec-gpu-0-1g.10gb": "2", "spec-partitioning-plan": "1714000000"}
    annotations = {f"nos.nebuly.com/{key}": value for key, value in asked.items()}
    labels = {"nos.nebuly.com/gpu-partitioning": "mig"}
    async with served(folder, annotations=annotations, labels=labels) as api:
        api.faults.next(10**6, Answer(404), path="/apis/resource.k8s.io/*")
        arguments = [*command("h100-80gb:1", folder), "--source", "nos"]
        async with AgentProcess(arguments, folder, settings=claim_settings(folder)):
            plan = "nos.nebuly.com/status-partitioning-plan"
            await until(partial(has_annotation, api, plan, "1714000000"))
            [answer] = [r.body for r in api.requests if plan in str(r.body)]
            counts = {"nos.nebuly.com/status-gpu-0-1g.10gb-free": "2"}
            assert counts.items() <= answer["metadata"]["annotations"].items()
            found = await until_status(
                api, lambda found: found["phase"] == "InSync" and found["problems"]
            )
            [problem] = found["problems"]
            assert problem["message"] == (
                "nothing is offered to claims: the API server does not serve resource.k8s.io/v1"
            )
            assert problem["remedy"].startswith("set `dra.mode: off`, or have the API")


def has_annotation(api: ApiServer, key: str, value: str) -> bool:
    return bool(api.node(NAME)["metadata"]["annotations"].get(key) == value)


async def test_a_device_plugin_on_the_same_node(listing: Cluster) -> None:
    """While it hands out GPUs nothing is offered, and the status says why; nor while pods have some
    from it: it offers none after a restart of the kubelet, until it has registered again.
    """
    pods, api = listing.kubelet.pod_resources, listing.api
    assert pods is not None
    pods.allocate("trainer", ["GPU-1"], resource="nvidia.com/gpu")
    api.patch_node(NAME, {"status": {"allocatable": {"nvidia.com/gpu": "1"}}})
    async with listing.agent(published=0):
        await until_status(api, lambda found: "nvidia.com/gpu: 1" in json.dumps(found))
        await until(lambda: watches(listing))
        assert not listing.devices()
        api.patch_node(NAME, {"status": {"allocatable": {"nvidia.com/gpu": "0"}}})
        held = "pod default/trainer has nvidia.com/gpu from a device plugin"
        await until_status(api, lambda found: held in json.dumps(found))
        assert not listing.devices()
        pods.finish("trainer")
        api.patch_node(NAME, {"status": {"allocatable": {"nvidia.com/mig-1g.10gb": "0"}}})
        await until(lambda: "gpu" in listing.devices())
        await until_status(api, lambda found: "device plugin" not in json.dumps(found))


# --- in the cluster -------------------------------------------------------------------------------


def health(cluster: Cluster, claim: Claim) -> tuple[str, str]:
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
    """A pod on a GPU unhealthy as a whole ends, and its slice goes: the reset waits for that."""
    os.mkfifo(cluster.folder / "kmsg")
    kernel = os.open(cluster.folder / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    async with cluster.agent(NODEAGENT_HEALTH_KERNEL_LOG=str(cluster.folder / "kmsg")):
        claim = await cluster.started("trainer", "1g.10gb")
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
    about = ((e["involvedObject"], e["reason"]) for e in cluster.api.events)
    return {(of["kind"], of["name"], reason) for of, reason in about if of["kind"] != "Node"}


async def test_claims_and_pods_show_what_happens(cluster: Cluster) -> None:
    async with cluster.agent():
        claim = cluster.pod("trainer", "1g.10gb")
        assert claim
        pod = cluster.api.add_pod("trainer", namespace=claim.namespace, node=NAME)
        cluster.reserve("trainer", "trainer", pod["metadata"]["uid"])
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


async def test_a_pod_that_is_no_client_of_its_claims_mps(cluster: Cluster) -> None:
    """Its container says no user, so it runs as root as a rule: claim and pod say so."""
    cluster.folder.chmod(0o755)  # MPS is of another user
    container = {"name": "main", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimName": "shared"}]
    spec = {"containers": [container], "resourceClaims": claims}
    async with cluster.agent():
        claim = cluster.pod("shared", "1g.10gb", clients={}, user=f"{USER}")
        assert claim
        cluster.api.add_pod("shared", namespace=claim.namespace, node=NAME, spec=spec)
        cluster.reserve("shared", "shared")
        await cluster.kubelet.prepare("shared", claim)
        expected = {(kind, "shared", "ClaimMismatch") for kind in ("ResourceClaim", "Pod")}
        await until(lambda: expected <= events(cluster))
        (shown,) = (await cluster.status())["claims"]
        assert shown["phase"] == "Ready"
        assert [one["code"] for one in shown["problems"]] == ["MpsClient"]
        assert "container main of pod team/shared runs as its image" in json.dumps(shown)
        await cluster.end(claim)


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
