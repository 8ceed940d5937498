"""What a cluster does with pods that ask for a GPU, for trying out: on one Node, one device a pod.

A pod with a limit such as `nvidia.com/mig-1g.10gb: 1` gets a claim, the claim a device, and the
kubelet has it prepared; when the pod is deleted it is released. What does not fit waits. With a
limit such as `nvidia.com/mig-1g.10gb.shared: 1` the device is shared by MPS; `nvidia.com/mps: 1` is
a part of a GPU that others may have parts of.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from nodeagent.claims.capacity import MEMORY
from tests.simulated_cluster.allocator import Device
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.kubelet_claims import Claim, DraKubelet, PodFailed
from tests.simulated_cluster.scheduler import Scheduler

NAMESPACE = "default"
RETRY = 1.0  # seconds; the real kubelet waits 60 to 90

PART = "mps"  # 20Gi of a GPU out of MIG mode
_CAPACITY = {MEMORY: 20 << 30}
SHARED = ".shared"  # how the resource of a device class ends that configures MPS

PREFIX = "nvidia.com/"
_CONFIGURATION = {
    "apiVersion": "gpu.nodeagent.io/v1",
    "kind": "DeviceConfig",
    "mps": {"clients": {"threads": 50}},
}


class Workloads:
    """Runs the pods of NAMESPACE on the Node while `run` runs; `report` gets what happens."""

    def __init__(
        self, api: ApiServer, kubelet: DraKubelet, node: str, report: Callable[[str], None]
    ) -> None:
        self._api = api
        self._kubelet = kubelet
        self._node = node
        self._report = report
        self._scheduler = Scheduler(api)
        self._leaving: dict[str, asyncio.Event] = {}  # by name, of the pods that have a device
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._waiting: set[str] = set()

    async def run(self) -> NoReturn:
        """Follow pods and devices until cancelled."""
        changes: asyncio.Queue[Any] = asyncio.Queue()
        self._api.store.watching.add(changes)
        async with asyncio.TaskGroup() as group:
            while True:
                change = await changes.get()
                if change.plural in {"pods", "resourceslices"}:
                    pods = self._api.store.all("pods", NAMESPACE)
                    self._waiting &= {pod["metadata"]["name"] for pod in pods}
                    for pod in pods:
                        self._follow(pod, group)

    def reboot(self) -> None:
        """No container runs any more: each pod is started again once its claim is prepared."""
        for name, running in self._running.items():
            if running.cancel():
                self._api.patch_pod(name, {"status": {"phase": "Pending"}})

    def _follow(self, pod: dict[str, Any], group: asyncio.TaskGroup) -> None:
        name, leaving = pod["metadata"]["name"], "deletionTimestamp" in pod["metadata"]
        if name in self._leaving:
            if leaving:
                self._leaving[name].set()
            return
        asked = asked_by(pod)
        if not asked or leaving or pod["status"]["phase"] != "Pending":
            return
        uid = self._scheduler.claim(NAMESPACE, name)["metadata"]["uid"]
        wanted = _wanted(asked.removesuffix(SHARED))
        parameters = _CONFIGURATION if asked.endswith(SHARED) else None
        capacity = _CAPACITY if asked == PART else {}
        device = self._scheduler.allocate(NAMESPACE, name, wanted, parameters, capacity)
        if device:
            self._waiting.discard(name)
            self._leaving[name] = asyncio.Event()
            self._api.pods.lingering.add((NAMESPACE, name))
            self._report(f"pod {name} is scheduled: its claim is allocated {device}")
            group.create_task(self._live(name, Claim(name, uid, NAMESPACE)))
            return
        self._scheduler.delete(NAMESPACE, name)
        if name not in self._waiting:
            self._waiting.add(name)
            self._report(f"pod {name} waits: no device that it could have is free")

    async def _live(self, name: str, claim: Claim) -> None:
        """The pod as its kubelet sees it, from its start to its end."""
        leaving = self._leaving[name]
        while await self._retried(lambda: self._kubelet.prepare(name, claim), name, until=leaving):
            made = {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": name}}
            runs = {"spec": {"nodeName": self._node}, "status": made}
            self._api.patch_pod(name, runs)
            self._report(f"pod {name} runs, with {', '.join(self._kubelet.cdi_ids(claim))}")
            running = self._running[name] = asyncio.create_task(leaving.wait())
            try:
                await asyncio.wait({running})
            finally:
                running.cancel()
        await self._retried(lambda: self._kubelet.release(name, claim), name)
        self._scheduler.delete(NAMESPACE, name)
        self._report(f"pod {name} is gone, and its device is released")
        del self._leaving[name]
        self._running.pop(name, None)
        self._api.pods.gone(name, NAMESPACE)

    async def _retried(
        self, call: Callable[[], Awaitable[None]], name: str, until: asyncio.Event | None = None
    ) -> bool:
        """Call until it succeeds; False when `until` is set before."""
        said = ""
        while until is None or not until.is_set():
            try:
                await call()
            except PodFailed as error:
                if str(error) != said:
                    said = str(error)
                    self._report(f"pod {name} has to wait: {said}")
                await asyncio.sleep(RETRY)
            else:
                return True
        return False


def asked_by(pod: dict[str, Any]) -> str:
    """The pod's first GPU resource; "" where it asks for none."""
    resources = (
        name.removeprefix(PREFIX)
        for container in pod["spec"]["containers"]
        for name in container.get("resources", {}).get("limits", {})
        if name.startswith(PREFIX)
    )
    return next(resources, "")


def _wanted(asked: str) -> Callable[[Device], bool]:
    def wanted(device: Device) -> bool:
        attributes: dict[str, dict[str, str]] = device["attributes"]
        profile = attributes.get("gpu.nvidia.com/profile", {}).get("string", "")
        kind = attributes.get("gpu.nvidia.com/type", {}).get("string", "")
        if asked == PART:
            return attributes.get("sharing", {}).get("string") == "mps"
        return asked == (f"mig-{profile.replace('+', '.')}" if profile else kind)

    return wanted
