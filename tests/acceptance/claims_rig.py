"""A node whose pods claim devices: models of the cluster in the test, the agent a process."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.mps.clients import SimulatedClient
from tests.acceptance.agent_home import SOON, USER
from tests.agent_environment import asked
from tests.claims.samples import config_json, device_config
from tests.machine_load import stretched, until
from tests.simulated_cluster.agent import AgentProcess, command, served
from tests.simulated_cluster.allocator import DRIVER, of_profile
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.kubelet import Kubelet
from tests.simulated_cluster.kubelet_claims import Claim, DraKubelet, PodFailed
from tests.simulated_cluster.scheduler import Scheduler
from tests.simulated_cluster.store import Key

TEAM = "team"


class Cluster:
    """One node's: who serves, schedules and runs pods, and the card under it all."""

    def __init__(self, folder: Path, api: ApiServer, kubelet: DraKubelet) -> None:
        self.folder, self.api, self.kubelet = folder, api, kubelet
        self.scheduler = Scheduler(api)

    @asynccontextmanager
    async def agent(
        self, mode: str = "dynamic", *, published: int = 2, driver: str = DRIVER, **settings: str
    ) -> AsyncIterator[AgentProcess]:
        """The agent, with these variables too, once the kubelet knows it by that name and so many
        ResourceSlices are published.
        """
        arguments = [
            *command("h100-80gb:1", self.folder),
            *("--state", str(self.folder / "node.json")),
        ]
        variables = {**claim_settings(self.folder, mode), **settings}
        if pods := self.kubelet.pod_resources:
            variables["NODEAGENT_KUBELET_USE"] = "always"
            variables["NODEAGENT_KUBELET_SOCKET"] = str(pods.socket)
        async with AgentProcess(arguments, self.folder, settings=variables) as agent:
            await until(lambda: not driver or self.kubelet.plugins.get(driver))
            if published:
                await until(lambda: len(self.api.store.all("resourceslices")) == published)
            yield agent

    def pod(self, name: str, profile: str, **mps: Any) -> Claim | None:
        """A pod's claim with a device that the scheduler finds, or None; its class has this MPS."""
        made = self.scheduler.claim(TEAM, name)
        if not self.scheduler.allocate(TEAM, name, of_profile(profile)):
            self.scheduler.delete(TEAM, name)
            return None
        if mps:
            self.configure(name, config_json(device_config(mps=mps), "FromClass"))
        return Claim(name, made["metadata"]["uid"], TEAM)

    async def started(self, name: str, profile: str, **mps: Any) -> Claim:
        """The claim of a pod that finds a device, and has it prepared."""
        claim = self.pod(name, profile, **mps)
        assert claim
        await self.kubelet.prepare(name, claim)
        return claim

    def reserve(self, claim: str, pod: str, uid: str = "") -> None:
        consumer = {"resource": "pods", "name": pod, "uid": uid or f"uid-of-{pod}"}

        def reserved(found: dict[str, Any]) -> dict[str, Any]:
            return {**found, "status": {**found["status"], "reservedFor": [consumer]}}

        self.api.store.change(Key("resourceclaims", TEAM, claim), reserved)

    def configure(self, name: str, config: dict[str, Any]) -> None:
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
        return len(list((self.folder / "cdi").glob("nodeagent.io-claim_*.json")))

    def client(self, claim: Claim) -> SimulatedClient:
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
        with SimulatedNode(state=self.folder / "node.json") as node:
            node.occupy(f"0/{instance}/0", pid=4711, command=pod)

    # --- what is published and answered -----------------------------------------------------------

    def devices(self) -> dict[str, Any]:
        slices = self.api.store.all("resourceslices")
        return {d["name"]: d for one in slices for d in one["spec"].get("devices", ())}

    async def answered(self, path: str) -> str:
        """What the agent answers now; raises OSError while there is none."""
        return (await asyncio.to_thread(asked, self.folder, path))[1]

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.answered("/v1/status"))
        return found


def _configured(config: dict[str, Any], claim: dict[str, Any]) -> dict[str, Any]:
    devices = claim["status"]["allocation"]["devices"]
    devices = {**devices, "config": [*devices.get("config", ()), config]}
    return {**claim, "status": {"allocation": {"devices": devices}}}


def claim_settings(folder: Path, mode: str = "dynamic") -> dict[str, str]:
    return {
        "NODEAGENT_DRA_MODE": mode,
        "NODEAGENT_KUBELET_DIR": str(folder / "kubelet"),
        "NODEAGENT_CDI_DIR": str(folder / "cdi"),
    }


@asynccontextmanager
async def one_node(folder: Path, *, lists_pods: bool = False) -> AsyncIterator[Cluster]:
    """An H100 with nothing on it. With `lists_pods` the kubelet lists what pods have, and agents
    are set to ask for that.
    """
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(served(folder))
        pods = await stack.enter_async_context(Kubelet(folder / "pods")) if lists_pods else None
        kubelet = DraKubelet(folder / "kubelet", pod_resources=pods)
        await stack.enter_async_context(kubelet)
        made = Cluster(folder, api, kubelet)
        yield made
    del made.kubelet, kubelet, pods, stack  # the last of gRPC
