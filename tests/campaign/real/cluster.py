"""A cluster of one node beside the machine: API server, scheduler, pods, a kubelet with claims."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tests.campaign.pages import Published
from tests.simulated_cluster.agent import NAME, PLAN, kubeconfig, status
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Fault, Freeze, Html, Reset
from tests.simulated_cluster.kubelet import Kubelet
from tests.simulated_cluster.kubelet_claims import DraKubelet
from tests.simulated_cluster.kubelet_plugins import SCAN
from tests.simulated_cluster.workloads import NAMESPACE, PART, PREFIX, SHARED, Workloads, asked_by

T = TypeVar("T")

TOKEN = "token-of-the-campaign"
_ASKED = (  # the ends of resources' names, for even pods and for odd ones
    *("mig-1g.10gb", "gpu", "mig-2g.20gb", "mig-3g.40gb"),
    *(PART, f"gpu{SHARED}", f"mig-2g.20gb{SHARED}", "mig-3g.40gb"),
)
FAULTS: dict[str, Fault] = {
    "409": Answer(409),
    "410": Answer(410),
    "429": Answer(429, retry_after=1),
    "500": Answer(500),
    "garbage": Html(200),
    "reset": Reset(),
    "freeze": Freeze(),
}
_GOING_AWAY = "gpu.nodeagent.io/withdrawn"  # for ten minutes
_GOING = ("pods", "resourceclaims")
_SOON = 60.0  # seconds that anything here may take
_LAYOUT = "nodeagent.io/layout"
LISTING, KUBELET = "pod-resources", "kubelet"  # folders of the kubelet's sockets


class Cluster:
    """One node's, from `start` to `stop`; `run` has a coroutine done in its event loop."""

    scan = SCAN  # seconds between two looks of the kubelet for plugins

    def __init__(self, folder: Path, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._folder = folder
        self._run = run
        self._pods = 0
        self._stack = AsyncExitStack()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        result: T = self._run(work)
        return result

    async def start(self) -> None:
        folder, enter = self._folder, self._stack.enter_async_context
        self._api = await enter(ApiServer())
        self._api.tokens[TOKEN] = "agent"
        self._api.add_node(NAME)
        self._listing = await enter(Kubelet(folder / LISTING))
        (folder / KUBELET / "plugins_registry").mkdir(parents=True)
        self._kubelet = await enter(
            DraKubelet(folder / KUBELET, pod_resources=self._listing, scan=self.scan)
        )
        (folder / "token").write_text(TOKEN)
        config = kubeconfig(self._api.url, token_file=folder / "token")
        (folder / "kubeconfig").write_text(config)
        self._workloads = Workloads(self._api, self._kubelet, NAME, lambda _: None)
        self._work = asyncio.create_task(self._workloads.run())

    async def stop(self) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        self._api.faults.clear()
        self._listing.go_on()
        await self._stack.aclose()
        del self._kubelet, self._listing  # the last of gRPC

    @property
    def arguments(self) -> tuple[str, ...]:
        config = str(self._folder / "kubeconfig")
        return ("--kubeconfig", config, "--node-name", NAME, "--source", "annotation")

    @property
    def settings(self) -> dict[str, str]:
        return {
            "NODEAGENT_KUBERNETES_USE": "",
            "NODEAGENT_KUBELET_USE": "always",
            "NODEAGENT_KUBELET_SOCKET": f"{self._folder}/{LISTING}/kubelet.sock",
            "NODEAGENT_KUBELET_DEADLINE": "1s",
            "NODEAGENT_DRA_MODE": "dynamic",
            "NODEAGENT_DRA_SHARE": "memory",
            "NODEAGENT_KUBELET_DIR": f"{self._folder}/{KUBELET}",
        }

    # --- what happens -----------------------------------------------------------------------------

    def write_plan(self, text: str | None) -> None:
        """Into the Node's annotation; None: take it away."""
        self._do(lambda: self._api.annotate(NAME, **{PLAN: text}))

    def spoil(self, how: str, requests: int) -> None:
        """The API server is cut off, is another one, or answers the next requests so."""
        match how:
            case "cut":
                self._await(self._api.stop())
            case "restart":
                self._await(self._api.stop())
                self._await(self._api.restart())
            case "expire":
                self._do(self._api.expire)
            case _:
                self._do(lambda: self._api.faults.next(requests, FAULTS[how]))

    def spoil_kubelet(self, how: str) -> None:
        """It goes, is another one, or does not answer."""
        match how:
            case "gone":
                self._await(self._kubelet.stop())
                self._await(self._listing.stop())
            case "restart":
                self._await(self._recover_kubelet())
            case "hold":
                self._do(self._listing.hold)

    def recover(self) -> None:
        self._do(self._api.faults.clear)
        self._await(self._api.stop())
        self._await(self._api.start())
        self._await(self._recover_kubelet())

    def reboot(self) -> None:
        """The node was started again, and its kubelet starts the pods that it had."""
        self._await(self._recover_kubelet())
        self._do(self._workloads.reboot)

    async def _recover_kubelet(self) -> None:
        self._listing.go_on()
        await self._listing.stop()
        await self._listing.start()
        await self._kubelet.restart()

    def add_pod(self, profile: int) -> None:
        self._pods += 1
        name = f"pod-{self._pods}"
        resource = f"{PREFIX}{_ASKED[(profile + 4 * self._pods) % len(_ASKED)]}"
        container = {"name": "main", "image": "none", "resources": {"limits": {resource: 1}}}
        spec = {"containers": [container]}
        self._do(lambda: self._api.add_pod(name, phase="Pending", spec=spec))

    def delete_pod(self, number: int) -> None:
        if pods := self._do(self._staying):
            self._do(lambda: self._api.delete_pod(pods[number % len(pods)]))

    def delete_pods(self) -> None:
        for name in self._do(self._staying):
            self._do(partial(self._api.delete_pod, name))

    def _do(self, work: Callable[[], T]) -> T:
        """Call it in the cluster's loop, where all of its objects are."""

        async def call() -> T:
            return work()

        return self._await(call())

    def _staying(self) -> list[str]:
        pods = self._api.store.all("pods", NAMESPACE)
        return [p["metadata"]["name"] for p in pods if "deletionTimestamp" not in p["metadata"]]

    # --- what is so -------------------------------------------------------------------------------

    def prepared(self) -> dict[str, tuple[str, str]]:
        """The uids of the claims of the pods that run, and what they asked for, a profile or `gpu`,
        shared or not, or PART, by the pods' names.
        """
        return dict(self._do(lambda: list(self._prepared())))

    def _prepared(self) -> Iterator[tuple[str, tuple[str, str]]]:
        claims = {
            one["metadata"]["name"]: one["metadata"]["uid"]
            for one in self._api.store.all("resourceclaims", NAMESPACE)
        }
        for pod in self._api.store.all("pods", NAMESPACE):
            name = pod["metadata"]["name"]
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                yield name, (claims[name], asked_by(pod).removeprefix("mig-"))

    def shared(self) -> dict[str, str]:
        """The claims of the pods that run and share their devices, by the pods' names."""
        prepared = self.prepared().items()
        return {pod: uid for pod, (uid, ask) in prepared if ask == PART or ask.endswith(SHARED)}

    def waiting(self, planned: str) -> list[str]:
        """Pods that do not run, though there are devices for them; the node, where it has none.
        Those on the GPU that is `planned` do not count: a newer plan may have no room for what they
        were allocated, and how its devices are shared is the plan's.
        """
        return self._do(lambda: list(self._waiting(f"{NAME}/{planned}".lower())))

    def _waiting(self, planned: str) -> Iterator[str]:
        if not self._api.store.all("resourceslices"):
            yield "the node offers no devices"
        claims = self._api.store.all("resourceclaims", NAMESPACE)
        pools = {
            one["metadata"]["name"]: device["pool"]
            for one in claims
            if "allocation" in one.get("status", {})
            for device in one["status"]["allocation"]["devices"]["results"]
        }
        for pod in self._api.store.all("pods", NAMESPACE):
            name, phase = pod["metadata"]["name"], pod["status"]["phase"]
            if phase == "Pending" and pools.get(name, planned) != planned:
                yield f"{name} does not run"

    def pods_and_claims(self) -> list[str]:
        if self._work.done():
            self._work.result()
        names = (one["metadata"]["name"] for kind in _GOING for one in self._api.store.all(kind))
        return self._do(lambda: list(names))

    def published(self) -> Published:
        return self._do(self._published)

    def _published(self) -> Published:
        (node,) = self._api.store.all("nodes")
        conditions = node["status"].get("conditions", ())
        slices = self._api.store.all("resourceslices")
        devices = [device for one in slices for device in one["spec"].get("devices", ())]
        return Published(
            status=status(self._api) or {},
            layout=json.loads(node["metadata"]["annotations"].get(_LAYOUT, "{}")),
            conditions={one["type"]: one["status"] for one in conditions},
            tainted=[
                device["name"]
                for device in devices
                if any(taint["key"] != _GOING_AWAY for taint in device.get("taints", ()))
            ],
        )


class ThreadedCluster(Cluster):
    """In a thread with an event loop, from `__init__` to `close`, while the player waits."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        super().__init__(folder, self._in_thread)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._await(self.start())

    def _in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_SOON)

    def close(self) -> None:
        self._await(self.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def device_files(folder: Path, uid: str) -> list[str]:
    """Those that a container with this claim gets, by its CDI file; raises OSError."""
    edits = _container_edits(folder, uid)
    return [node["path"] for one in edits for node in one.get("deviceNodes", ())]


def environment_of(folder: Path, uid: str) -> dict[str, str]:
    """What a container with this claim gets; raises OSError."""
    variables = (text for one in _container_edits(folder, uid) for text in one.get("env", ()))
    return dict(text.split("=", 1) for text in variables)


def device_shared(folder: Path, uid: str) -> str:
    """Whose MPS daemon a container with this claim asks; raises OSError."""
    return Path(environment_of(folder, uid)["CUDA_MPS_PIPE_DIRECTORY"]).parent.name


def _container_edits(folder: Path, uid: str) -> list[dict[str, Any]]:
    text = (folder / "cdi" / f"nodeagent.io-claim_{uid}.json").read_text()
    return [device["containerEdits"] for device in json.loads(text)["devices"]]
