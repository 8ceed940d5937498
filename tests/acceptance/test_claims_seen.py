"""What users see of claims on a node, from the kubelet's first call to the end of the slice."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

import pytest

from nodeagent.simulation import SimulatedNode
from tests.acceptance.claims_rig import TEAM, Cluster
from tests.cluster.client.rig import until
from tests.machine_load import stretched
from tests.simulated_cluster.agent import until_status
from tests.simulated_cluster.kubelet_claims import Claim, PodFailed
from tests.simulated_cluster.scheduler import DRIVER
from tests.simulated_cluster.store import Key

SOON = 30.0  # seconds


async def listed(cluster: Cluster) -> list[dict[str, Any]]:
    """What `nodeagent claims` has."""
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
    """The series that a scrape gets now."""
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
    """Wait until a scrape has a series for each pattern."""
    async with asyncio.timeout(stretched(SOON)):  # half of the time between two rounds of upkeep
        while True:
            lines = await scraped(cluster)
            missing = [p for p in patterns if not any(re.match(p, line) for line in lines)]
            if not missing:
                return
            await asyncio.sleep(0.05)


def reserve(cluster: Cluster, claim: str, pod: str) -> None:
    """As the scheduler does before it binds the pod."""

    def reserved(found: dict[str, Any]) -> dict[str, Any]:
        consumer = {"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"}
        return {**found, "status": {**found["status"], "reservedFor": [consumer]}}

    cluster.api.store.change(Key("resourceclaims", TEAM, claim), reserved)


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
        reserve(cluster, "trainer", "trainer-0")
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
        claim = cluster.pod("trainer", "1g.10gb")
        assert claim
        await cluster.kubelet.prepare("trainer", claim)
        rival = allocated_alike(cluster, "rival", "trainer")
        preparing = asyncio.create_task(cluster.kubelet.prepare("rival", rival))
        await until_status(cluster.api, lambda s: s["headline"]["code"] == "ClaimRefused")
        await cluster.end(claim)
        await preparing
        assert len(cluster.slices()) == cluster.cdi() == 1
        await until_status(cluster.api, lambda s: s["headline"]["code"] != "ClaimRefused")


async def test_the_container_is_named_as_soon_as_the_kubelet_lists_it(listing: Cluster) -> None:
    """Soon after the prepare, without waiting for the next round of upkeep."""
    async with listing.agent():
        claim = listing.pod("trainer", "2g.20gb")
        assert claim
        await listing.kubelet.prepare("trainer", claim)
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
        claim = listing.pod("trainer", "1g.10gb")
        assert claim
        await listing.kubelet.prepare("trainer", claim)
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
