import asyncio
import json
import os
import re
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nodeagent.simulation import SimulatedNode
from tests.acceptance.agent_home import GIB, SOON, USER
from tests.acceptance.claims_rig import TEAM, Cluster, claim_settings
from tests.claims.samples import config_json, nvidia_config
from tests.machine_load import stretched, until
from tests.simulated_cluster.agent import NAME, AgentProcess, command, served, until_status
from tests.simulated_cluster.allocator import DRIVER
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.kubelet_claims import Claim, DraKubelet, PodFailed
from tests.simulated_cluster.store import Key

NVIDIA = "gpu.nvidia.com"


def slices_of(api: ApiServer) -> list[dict[str, Any]]:
    return api.store.all("resourceslices")


async def test_five_pods_and_then_two_larger_ones(cluster: Cluster) -> None:
    async with cluster.agent():
        pods = []
        for number in range(5):
            claim = await cluster.started(f"small-{number}", "1g.10gb")
            pods.append(claim)
            assert len(cluster.slices()) == cluster.cdi() == number + 1
        for claim in pods[1:]:
            await cluster.end(claim)
        assert len(cluster.slices()) == cluster.cdi() == 1
        large = [cluster.pod(f"large-{number}", "3g.40gb") for number in range(2)]
        assert [claim is not None for claim in large] == [True, False]
        assert large[0]
        await cluster.kubelet.prepare("large-0", large[0])
        assert sorted(size for _, size in cluster.slices()) == [1, 4]
        await cluster.end(pods[0])
        second = await cluster.started("large-1", "3g.40gb")
        assert [size for _, size in cluster.slices()] == [4, 4]
        for claim in (large[0], second):
            await cluster.end(claim)
        assert (cluster.slices(), cluster.cdi()) == ([], 0)


@pytest.mark.full
async def test_many_pods_at_once(cluster: Cluster) -> None:
    async with cluster.agent():
        claims = [cluster.pod(f"pod-{number}", "1g.10gb") for number in range(8)]
        assert [claim is None for claim in claims] == [False] * 7 + [True]
        running = [claim for claim in claims if claim]
        await asyncio.gather(*(cluster.kubelet.prepare(c.name, c) for c in running))
        assert cluster.slices() == [(n, 1) for n in range(7)]
        await asyncio.gather(*map(cluster.end, running))
        assert cluster.slices() == []


async def test_slices_that_are_shared_by_mps(cluster: Cluster) -> None:
    """The daemon is there before the pod, outlives an agent that is killed, holds clients to the
    claim's limits, and ends with the claim, once they are gone. So it is for a claim written for
    NVIDIA's driver, also when the next agent does not honour it any more.
    """
    cluster.folder.chmod(0o755)  # clients are of another user
    async with cluster.agent(NODEAGENT_DRA_NVIDIA_CONFIGS="true") as agent:
        limits = {"memory": "2Gi", "threads": 50}
        claim = cluster.pod("server", "1g.10gb", clients=limits, user=f"{USER}")
        nvidias = cluster.pod("nvidias", "1g.10gb", clients={}, user=f"{USER}")
        assert claim
        assert nvidias
        limits = {"defaultPinnedDeviceMemoryLimit": "3Gi", "defaultActiveThreadPercentage": 25}
        own = nvidia_config("MigDeviceConfig", strategy="MPS", mpsConfig=limits)
        cluster.configure("nvidias", config_json(own, driver="gpu.nvidia.com"))
        for one in (claim, nvidias):
            await cluster.kubelet.prepare(one.name, one)
        with await asyncio.to_thread(cluster.client, claim) as client:
            assert (client.terms["limit"], client.terms["percentage"]) == (2 * GIB, 50.0)
            os.kill(agent.pid, signal.SIGKILL)
            await asyncio.to_thread(client.allocate, GIB)
    async with cluster.agent():
        await cluster.kubelet.restart()
        await until(lambda: cluster.kubelet.plugins.get(DRIVER))
        for one in (claim, nvidias):
            await cluster.kubelet.start_pod(one.name, one)
        with await asyncio.to_thread(cluster.client, nvidias) as client:
            assert (client.terms["limit"], client.terms["percentage"]) == (3 * GIB, 25.0)
            with pytest.raises(PodFailed, match=f"{client.pid}"):
                await cluster.kubelet.release("nvidias")
            assert len(cluster.slices()) == 2
        for one in (nvidias, claim):
            await cluster.end(one)
        assert (cluster.slices(), cluster.cdi()) == ([], 0)
        assert list((cluster.folder / "run/mps").iterdir()) == []


async def test_the_driver_gets_nvidias_name(cluster: Cluster) -> None:
    """A claim is released by the name that it was prepared by, so that one stays until then. The
    other is not taken while NVIDIA's driver has ResourceSlices; then nothing is left of the former.
    """
    api, named = cluster.api, partial(cluster.agent, NODEAGENT_DRA_DRIVER=NVIDIA)
    async with cluster.agent():
        claim = await cluster.started("trainer", "1g.10gb")
    async with named():
        still = f"the DRA driver is {DRIVER} still, and not {NVIDIA}"
        await until_status(api, lambda found: still in json.dumps(found))
        await cluster.end(claim)
    pool = {"name": NAME, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": NVIDIA, "nodeName": NAME, "pool": pool, "devices": []}
    api.store.create("resourceslices", "", {"metadata": {"name": "theirs"}, "spec": spec})
    async with named(driver="", published=0):
        await until_status(api, lambda found: "no claims are served as" in json.dumps(found))
        assert cluster.kubelet.plugins.found == {}
        api.store.delete(Key("resourceslices", "", "theirs"))
        await until(lambda: cluster.kubelet.plugins.get(NVIDIA))
        await until(lambda: {one["spec"]["driver"] for one in slices_of(api)} == {NVIDIA})


async def test_a_kubelet_that_comes_later(folder: Path) -> None:
    async with served(folder) as api:
        settings = claim_settings(folder)
        async with AgentProcess(command("h100-80gb:1", folder), folder, settings=settings):
            await until_status(api, lambda found: "kubelet" in json.dumps(found))
            (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
            async with DraKubelet(folder / "kubelet") as kubelet:
                await until(partial(kubelet.plugins.get, DRIVER))
            del kubelet  # the last of gRPC


# --- what nobody asks for -------------------------------------------------------------------------


@pytest.mark.full
async def test_a_claim_that_was_deleted_while_the_agent_was_away(listing: Cluster) -> None:
    """No kubelet asks for its release, and its slice goes all the same."""
    async with listing.agent():
        await listing.started("trainer", "1g.10gb")
        assert len(listing.slices()) == listing.cdi() == 1
    listing.scheduler.delete(TEAM, "trainer")
    assert listing.kubelet.pod_resources
    listing.kubelet.pod_resources.finish("trainer", namespace=TEAM)  # its checkpoint is lost
    async with listing.agent():
        await until(lambda: (listing.slices(), listing.cdi()) == ([], 0))


async def test_pods_that_come_and_go_change_no_published_slice(cluster: Cluster) -> None:
    async with cluster.agent():
        for number in range(2):
            claim = await cluster.started(f"pod-{number}", "1g.10gb")
            await cluster.end(claim)
    written = [one for one in cluster.api.requests if one.write and "slices" in one.path]
    assert {one.method for one in written} == {"POST"}


@pytest.mark.full
async def test_damaged_files_of_claims_end_no_start(cluster: Cluster) -> None:
    """A record that is cut, and a named pipe where the places of the plan are kept: the next agent
    reports both, and leaves the claim what it has.
    """
    async with cluster.agent():
        claim = await cluster.started("trainer", "1g.10gb")
    had = cluster.slices()
    record = cluster.folder / "node.json.mps/claims" / f"{claim.uid}.json"
    os.truncate(record, record.stat().st_size // 2)
    places = cluster.folder / "state/planned-places.json"
    places.unlink(missing_ok=True)
    os.mkfifo(places)
    wanted = {str(record), f"{places}.unusable"}
    async with cluster.agent(), asyncio.timeout(stretched(SOON)):
        while wanted:
            status: dict[str, Any] = {"problems": []}
            with suppress(OSError):  # what was published before says nothing of this agent
                status = await cluster.status()
            claims = [one for claim in status.get("claims", ()) for one in claim["problems"]]
            for problem in (*status["problems"], *claims):
                if problem["code"] == "StateFile":
                    wanted -= {name for name in wanted if name in problem["message"]}
            await asyncio.sleep(0.1)
    assert cluster.slices() == had
    assert cluster.cdi() == 1


# --- what users see -------------------------------------------------------------------------------


async def listed(cluster: Cluster) -> list[dict[str, Any]]:
    where = ("--run-dir", str(cluster.folder / "run"))
    asking = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nodeagent", "claims", *where, "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asking.communicate()
    assert asking.returncode == 0
    found: list[dict[str, Any]] = json.loads(out)["claims"]
    return found


async def scraped(cluster: Cluster) -> list[str]:
    return (await cluster.answered("/metrics")).splitlines()


def _explained(answer: str, gpu: str) -> None:
    """The events say of the claim and its rival what was decided, and how the GPU changed."""
    events = json.loads(answer)
    of_claims = [(e["type"], e["claim"]) for e in events if "claim" in e]
    assert of_claims == [
        ("ClaimPrepared", f"{TEAM}/trainer"),
        ("ClaimRefused", f"{TEAM}/rival"),
        ("ClaimReleased", f"{TEAM}/trainer"),
    ]
    refused = next(e for e in events if e["type"] == "ClaimRefused")
    assert "is held" in refused["message"]
    assert refused["severity"] == "warning"
    made, gone = (e for e in events if e["type"] == "ChangedForClaim")
    assert made["gpu"] == gone["gpu"] == gpu
    assert (made["before"], made["after"]) == ("MIG off", gone["before"])
    assert gone["after"] == "no instances"
    steps = [e for e in events if e["type"] == "StepDone" and "1g.10gb" in e["message"]]
    assert len(steps) == 2
    assert all("trainer" in step["reason"] for step in steps)


async def until_scraped(cluster: Cluster, *patterns: str) -> None:
    async with asyncio.timeout(stretched(30)):  # half of the time between two rounds of upkeep
        while True:
            lines = await scraped(cluster)
            missing = [p for p in patterns if not any(re.match(p, line) for line in lines)]
            if not missing:
                return
            await asyncio.sleep(0.05)


def allocated_alike(cluster: Cluster, name: str, other: str) -> Claim:
    """A claim that a racing scheduler gave the other's device."""
    made = cluster.scheduler.claim(TEAM, name)
    [one] = [c for c in cluster.api.store.all("resourceclaims") if c["metadata"]["name"] == other]
    key = Key("resourceclaims", TEAM, name)
    cluster.api.store.change(key, lambda found: {**found, "status": one["status"]})
    return Claim(name, made["metadata"]["uid"], TEAM)


async def test_a_claim_is_seen_from_its_first_second(cluster: Cluster) -> None:
    """With its slice and pod in `claims` as soon as it is ready, in metrics with the first sample;
    one that is refused with the reason; nothing of either when both are over.
    """
    async with cluster.agent():
        assert await listed(cluster) == []
        claim = cluster.pod("trainer", "1g.10gb")
        assert claim
        cluster.reserve("trainer", "trainer-0")
        await cluster.kubelet.prepare("trainer", claim)
        [seen] = await listed(cluster)
        [device] = seen["devices"]
        assert (seen["namespace"], seen["name"], seen["uid"]) == (TEAM, "trainer", claim.uid)
        assert (seen["phase"], seen["problems"], "refusal" in seen) == ("Ready", [], False)
        assert [pod["name"] for pod in seen["pods"]] == ["trainer-0"]
        assert device["uuid"].startswith("MIG-")
        assert [(device["start"], device["size"])] == cluster.slices()
        part = f'GPU_I_PROFILE="1g.10gb",GPU_I_ID="{device["gi"]}"'
        whose = 'namespace="team",pod="trainer-0"'
        await until_scraped(
            cluster,
            rf"DCGM_FI_DEV_FB_USED{{.*{part}.*{whose}}} ",
            rf"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{.*{part}.*{whose}}} ",
            rf'nodeagent_claim_slices{{.*{part},namespace="team",claim="trainer",pod=.*}} 1$',
            r"nodeagent_claim_prepare_duration_seconds_count 1$",
        )

        rival = allocated_alike(cluster, "rival", "trainer")
        preparing = asyncio.create_task(cluster.kubelet.prepare("rival", rival))
        await until_status(cluster.api, lambda s: s["headline"]["code"] == "ClaimRefused")
        waiting = next(one for one in await listed(cluster) if one["name"] == "rival")
        assert (waiting["phase"], waiting["devices"]) == ("Waiting", [])
        assert waiting["refusal"]["code"] == "ClaimRefused"
        assert waiting["since"]

        await cluster.end(rival)
        with pytest.raises(PodFailed, match="is held"):
            await preparing
        failed = 'nodeagent_claim_failures_total{operation="prepare",reason="ClaimRefused"} 1'
        assert failed in await scraped(cluster)
        await until_status(cluster.api, lambda s: s["headline"]["code"] != "ClaimRefused")
        await cluster.end(claim)
        assert await listed(cluster) == []
        await until_scraped(cluster, r"nodeagent_claim_release_duration_seconds_count 2$")
        _explained(await cluster.answered("/v1/events?within=3600"), device["gpu"])
        of_now = ("DCGM_", "nodeagent_claim_slices")  # what was held before is counted on
        assert not [s for s in await scraped(cluster) if s.startswith(of_now) and "trainer" in s]


async def test_a_device_of_a_pod_that_is_ending(cluster: Cluster) -> None:
    """The next pod's call waits for it, instead of the kubelet's next one a minute later."""
    async with cluster.agent():
        claim = await cluster.started("trainer", "1g.10gb")
        rival = allocated_alike(cluster, "rival", "trainer")
        preparing = asyncio.create_task(cluster.kubelet.prepare("rival", rival))
        await until_status(cluster.api, lambda s: s["headline"]["code"] == "ClaimRefused")
        await cluster.end(claim)
        await preparing
        assert len(cluster.slices()) == cluster.cdi() == 1
        await until_status(cluster.api, lambda s: s["headline"]["code"] != "ClaimRefused")


async def test_the_container_is_named_as_soon_as_the_kubelet_lists_it(listing: Cluster) -> None:
    async with listing.agent():
        claim = await listing.started("trainer", "2g.20gb")
        whose = 'container="main",namespace="team",pod="trainer"'
        await until_scraped(listing, rf"DCGM_FI_DEV_FB_USED{{.*{whose}}} ")
        [seen] = await listed(listing)
        assert seen["pods"] == [{"namespace": TEAM, "name": "trainer", "container": "main"}]
        await listing.end(claim)


def condition(cluster: Cluster) -> tuple[str, str]:
    """The status and reason that the trainer's claim shows of its device."""
    status = cluster.api.store.get(Key("resourceclaims", TEAM, "trainer"))["status"]
    found = [one for device in status.get("devices", ()) for one in device["conditions"]]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


@pytest.mark.full
async def test_a_slice_that_is_gone_is_neither_healthy_nor_prepared(listing: Cluster) -> None:
    """While it cannot be made again, which the agent tries by itself."""
    async with listing.agent():
        await listing.started("trainer", "1g.10gb")
        await until(lambda: condition(listing) == ("True", "Prepared"))
    with SimulatedNode(state=listing.folder / "node.json") as node:
        node.inject("nvmlDeviceCreateGpuInstance*", error="NVML_ERROR_UNKNOWN", times=None)
        with node.changes():
            node.card(0).state.instances.clear()
    async with listing.agent():
        await until(lambda: condition(listing) == ("False", "Preparing"))
        [device] = listing.kubelet.checkpoint[TEAM, "trainer"].devices[DRIVER]
        health, _ = listing.kubelet.health(DRIVER, device.pool_name, device.device_name)
        assert health in {"UNHEALTHY", "UNKNOWN"}
        assert listing.slices() == []
