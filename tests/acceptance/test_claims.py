"""Pods ask for slices, and nothing of what they have is lost or left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agent_home import GIB, SOON, USER
from tests.acceptance.claims_rig import TEAM, Cluster, claim_settings
from tests.claims.samples import config_json, nvidia_config
from tests.cluster.client.rig import until
from tests.machine_load import stretched
from tests.simulated_cluster.agent import NAME, AgentProcess, command, kubeconfig, until_status
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.kubelet_claims import DraKubelet, PodFailed
from tests.simulated_cluster.scheduler import DRIVER


async def test_five_pods_and_then_two_larger_ones(cluster: Cluster) -> None:
    """Slices are made one by one and taken down again; what fits runs, what does not waits."""
    async with cluster.agent():
        pods = []
        for number in range(5):
            claim = cluster.pod(f"small-{number}", "1g.10gb")
            assert claim
            await cluster.kubelet.prepare(claim.name, claim)
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
        second = cluster.pod("large-1", "3g.40gb")
        assert second
        await cluster.kubelet.prepare("large-1", second)
        assert [size for _, size in cluster.slices()] == [4, 4]
        for claim in (large[0], second):
            await cluster.end(claim)
        assert (cluster.slices(), cluster.cdi()) == ([], 0)


@pytest.mark.full
async def test_many_pods_at_once(cluster: Cluster) -> None:
    """The kubelet asks for all of them side by side."""
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


async def test_a_kubelet_that_comes_later(folder: Path) -> None:
    """While its folders are not there the agent says so; then it registers."""
    async with ApiServer() as api:
        api.add_node(NAME)
        (folder / "kubeconfig").write_text(kubeconfig(api.url))
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
        claim = listing.pod("trainer", "1g.10gb")
        assert claim
        await listing.kubelet.prepare("trainer", claim)
        assert len(listing.slices()) == listing.cdi() == 1
    listing.scheduler.delete(TEAM, "trainer")
    async with listing.agent():
        await until(lambda: (listing.slices(), listing.cdi()) == ([], 0))


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


@pytest.mark.full
async def test_damaged_files_of_claims_end_no_start(cluster: Cluster) -> None:
    """A record that is cut, and a named pipe where the places of the plan are kept: the next agent
    reports both, and leaves the claim what it has.
    """
    async with cluster.agent():
        claim = cluster.pod("trainer", "1g.10gb")
        assert claim
        await cluster.kubelet.prepare("trainer", claim)
    had = cluster.slices()
    record = cluster.folder / "node.json.mps/claims" / f"{claim.uid}.json"
    os.truncate(record, record.stat().st_size // 2)
    places = cluster.folder / "state/planned-places.json"
    places.unlink(missing_ok=True)
    os.mkfifo(places)
    wanted = {str(record), f"{places}.unusable-1"}
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
