"""Pods ask for slices: models of API server, scheduler and kubelet, and the agent as a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.mps.clients import SimulatedClient
from tests.acceptance.agent_home import GIB, SOON, USER
from tests.claims.samples import config_json, device_config, nvidia_config
from tests.cluster.client.rig import until
from tests.machine_load import stretched
from tests.simulated_cluster.agent import NAME, AgentProcess, command, kubeconfig, until_status
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.fixtures import grpc_ends
from tests.simulated_cluster.kubelet import Kubelet
from tests.simulated_cluster.kubelet_claims import Claim, DraKubelet, PodFailed
from tests.simulated_cluster.scheduler import DRIVER, Scheduler, of_profile
from tests.simulated_cluster.store import Key

__all__ = ["grpc_ends"]

pytestmark = pytest.mark.usefixtures("grpc_ends")

TEAM = "team"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="na-") as folder:
        yield Path(folder)


class Cluster:
    """One node's: who serves, schedules and runs pods, and the card under it all."""

    def __init__(self, folder: Path, api: ApiServer, kubelet: DraKubelet) -> None:
        self.folder, self.api, self.kubelet = folder, api, kubelet
        self.scheduler = Scheduler(api)

    @asynccontextmanager
    async def agent(self, **settings: str) -> AsyncIterator[AgentProcess]:
        """The agent, with these variables too, once the kubelet knows it and its devices are
        published.
        """
        arguments = [
            *command("h100-80gb:1", self.folder),
            *("--state", str(self.folder / "node.json")),
        ]
        settings = {
            "NODEAGENT_DRA_MODE": "dynamic",
            "NODEAGENT_KUBELET_DIR": str(self.folder / "kubelet"),
            "NODEAGENT_CDI_DIR": str(self.folder / "cdi"),
            **settings,
        }
        async with AgentProcess(arguments, self.folder, settings=settings) as agent:
            await until(lambda: self.kubelet.plugins.get(DRIVER))
            await until(lambda: self.api.store.all("resourceslices"))
            await until(lambda: len(self.api.store.all("resourceslices")) == 2)
            yield agent

    def pod(self, name: str, profile: str, **mps: Any) -> Claim | None:
        """A pod's claim with the device that the scheduler finds; None while it has to wait. Its
        class has this MPS.
        """
        made = self.scheduler.claim(TEAM, name)
        if not self.scheduler.allocate(TEAM, name, of_profile(profile)):
            self.scheduler.delete(TEAM, name)
            return None
        if mps:
            self.configure(name, config_json(device_config(mps=mps), "FromClass"))
        return Claim(name, made["metadata"]["uid"], TEAM)

    def configure(self, name: str, config: dict[str, Any]) -> None:
        """The allocated claim has this configuration, too."""
        self.api.store.change(Key("resourceclaims", TEAM, name), partial(_configured, config))

    async def end(self, claim: Claim) -> None:
        """The pod is over: the kubelet has its claim released, and it is deallocated. It asks again
        while the MPS server has not noticed that a client ended.
        """
        async with asyncio.timeout(stretched(SOON)):
            while True:
                try:
                    await self.kubelet.release(claim.name)
                    break
                except PodFailed as failed:
                    if "in use by" not in str(failed):
                        raise
                    await asyncio.sleep(0.1)
        self.scheduler.delete(TEAM, claim.name)

    def slices(self) -> list[tuple[int, int]]:
        """What the hardware has: start and size of each GPU instance."""
        instances = json.loads((self.folder / "node.json").read_text())["gpus"][0]["instances"]
        return sorted((one["start"], one["size"]) for one in instances)

    def cdi(self) -> int:
        """How many claims' files there are."""
        return len(list((self.folder / "cdi").glob("nodeagent.io-claim_*.json")))

    def client(self, claim: Claim) -> SimulatedClient:
        """A CUDA program in a container that has the claim's device, as its CDI file gives it."""
        file = self.folder / "cdi" / f"nodeagent.io-claim_{claim.uid}.json"
        [device] = json.loads(file.read_text())["devices"]
        environment = dict(text.split("=", 1) for text in device["containerEdits"]["env"])
        client = SimulatedClient(
            Path(environment["CUDA_MPS_PIPE_DIRECTORY"]),
            uid=USER,
            environment=environment,
            state=self.folder / "node.json",
            device=environment["CUDA_VISIBLE_DEVICES"],
        )
        client.wait_until_accepted(SOON)
        return client

    def occupy(self, pod: str, instance: int) -> None:
        """The pod's process begins to use its slice."""
        with SimulatedNode(state=self.folder / "node.json") as node:
            node.occupy(f"0/{instance}/0", pid=4711, command=pod)


def _configured(config: dict[str, Any], claim: dict[str, Any]) -> dict[str, Any]:
    devices = claim["status"]["allocation"]["devices"]
    devices = {**devices, "config": [*devices.get("config", ()), config]}
    return {**claim, "status": {"allocation": {"devices": devices}}}


@pytest.fixture
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    """An H100 with nothing on it."""
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    async with ApiServer() as api, DraKubelet(folder / "kubelet") as kubelet:
        api.add_node(NAME)
        (folder / "kubeconfig").write_text(kubeconfig(api.url))
        made = Cluster(folder, api, kubelet)
        yield made
    del made.kubelet, kubelet  # the last of gRPC


@pytest.fixture
async def listing(folder: Path) -> AsyncIterator[Cluster]:
    """The same with a kubelet that lists what pods have; agents ask it with `asks(folder)`."""
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    async with (
        ApiServer() as api,
        Kubelet(folder / "pods") as pods,
        DraKubelet(folder / "kubelet", pod_resources=pods) as kubelet,
    ):
        api.add_node(NAME)
        (folder / "kubeconfig").write_text(kubeconfig(api.url))
        made = Cluster(folder, api, kubelet)
        yield made
    del made.kubelet, kubelet, pods  # the last of gRPC


def asks(folder: Path) -> dict[str, str]:
    """Settings of an agent that asks the kubelet what pods have."""
    return {
        "NODEAGENT_KUBELET_USE": "always",
        "NODEAGENT_KUBELET_SOCKET": str(folder / "pods" / "kubelet.sock"),
    }


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


@pytest.mark.full
async def test_an_agent_that_is_killed_loses_nothing(cluster: Cluster) -> None:
    """Pods go on; the next agent knows their slices, and what is used is not released."""
    async with cluster.agent() as agent:
        claim = cluster.pod("trainer", "2g.20gb")
        assert claim
        await cluster.kubelet.prepare("trainer", claim)
        os.kill(agent.pid, signal.SIGKILL)
    before = cluster.slices()
    assert len(before) == 1
    async with cluster.agent():
        await cluster.kubelet.restart()
        # It may have met the socket of the agent before, and drop it as it sees the new one.
        await cluster.kubelet.start_pod("trainer", claim)
        assert cluster.slices() == before
        await cluster.end(claim)
        assert cluster.slices() == []


async def test_a_slice_in_use_stays(cluster: Cluster) -> None:
    """The release fails with the process in it, until that has ended."""
    async with cluster.agent():
        claim = cluster.pod("trainer", "1g.10gb")
        assert claim
        await cluster.kubelet.prepare("trainer", claim)
        state = json.loads((cluster.folder / "node.json").read_text())
        cluster.occupy("train", state["gpus"][0]["instances"][0]["id"])
        with pytest.raises(PodFailed, match="4711"):
            await cluster.kubelet.release("trainer")
        assert len(cluster.slices()) == 1
        with SimulatedNode(state=cluster.folder / "node.json") as node:
            node.release(pid=4711)
        await cluster.end(claim)
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
        settings = {
            "NODEAGENT_DRA_MODE": "dynamic",
            "NODEAGENT_KUBELET_DIR": str(folder / "kubelet"),
            "NODEAGENT_CDI_DIR": str(folder / "cdi"),
        }
        async with AgentProcess(command("h100-80gb:1", folder), folder, settings=settings):
            await until_status(api, lambda found: "kubelet" in json.dumps(found))
            (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
            async with DraKubelet(folder / "kubelet") as kubelet:
                await until(partial(kubelet.plugins.get, DRIVER))
            del kubelet  # the last of gRPC
