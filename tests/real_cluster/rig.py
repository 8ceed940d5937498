"""A real cluster, a node of it on this machine, and the agent as a process on simulated GPUs."""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from nodeagent.simulation import SimulatedNode
from tests.acceptance.agent_home import Home
from tests.machine_load import wait_until

T = TypeVar("T")

SOON = 150.0  # seconds that anything may take; a kubelet looks at a pod once in 60 to 90
KUBECONFIG = os.environ.get("NODEAGENT_TEST_KUBECONFIG", "")
NODE = os.environ.get("NODEAGENT_TEST_NODE", "")
AGENT = "system:serviceaccount:nodeagent:nodeagent"
MERGE = "application/merge-patch+json"
RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
LABELS = {"app": "nodeagent-suite"}
SELECTED = "app=nodeagent-suite"


@dataclass(frozen=True)
class Place:
    """The node on this machine, as the file that NODEAGENT_TEST_NODE names says (CONTRIBUTING)."""

    name: str
    image: str  # with sh, ls and sleep; it is not pulled
    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    audit_log: Path | None = None
    service: Sequence[str] = ("systemctl",)  # what `stop kubelet` is appended to
    agent_image: str = ""  # the product's, of this checkout


def place() -> Place:
    found = yaml.safe_load(Path(NODE).read_text())
    return Place(
        found["name"],
        found["image"],
        Path(found.get("kubeletDir", Place.kubelet_dir)),
        Path(found.get("cdiDir", Place.cdi_dir)),
        Path(found["auditLog"]) if "auditLog" in found else None,
        found.get("service", Place.service),
        found.get("agentImage", ""),
    )


class Cluster:
    """Requests of its administrator, through `kubectl proxy`, which knows every kind of login."""

    def __init__(self, url: str) -> None:
        self._url = url

    def kubectl(self, *arguments: str, said: bytes | None = None) -> str:
        """A command to its end; what it prints. Where it fails the test does, with what it says."""
        command = ["kubectl", "--kubeconfig", KUBECONFIG, *arguments]
        done = subprocess.run(command, input=said, capture_output=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr.decode()[:2000]}"
        return done.stdout.decode()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Code and JSON of the answer; 502 while the API server is away."""
        kind = MERGE if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": kind, **{k.replace("_", "-"): v for k, v in headers.items()}},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=SOON) as answer:
                code, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            code, text = error.code, error.read().decode()
        return code, json.loads(text) if text.startswith("{") else text

    def get(self, path: str) -> Any:
        code, found = self.ask("GET", path)
        assert code == 200, f"{path}: {found}"
        return found

    def items(self, path: str) -> list[Any]:
        return list(self.get(path)["items"])

    def create(self, path: str, body: Any) -> None:
        code, found = self.ask("POST", path, body)
        assert code == 201, found

    def annotate(self, node: str, key: str, value: str | None) -> None:
        patch = {"metadata": {"annotations": {key: value}}}
        code, found = self.ask("PATCH", f"/api/v1/nodes/{node}", patch)
        assert code == 200, found

    def kubeconfig(self, folder: Path, node: str) -> Path:
        """For the agent: its service account's token, bound to the Node, as a pod there has it."""
        bound = ("--bound-object-kind=Node", f"--bound-object-name={node}")
        token = self.kubectl("-n", "nodeagent", "create", "token", "nodeagent", *bound)
        (folder / "token").write_text(token.strip())
        config = json.loads(self.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
        config["users"][0]["user"] = {"tokenFile": str(folder / "token")}
        (folder / "kubeconfig").write_text(json.dumps(config))
        return folder / "kubeconfig"


class Member(Home):
    """The agent of a Node, and the cards under it."""

    def __init__(self, folder: Path, cluster: Cluster, node: str) -> None:
        super().__init__(folder)
        self.cluster, self.node, self.boards = cluster, node, "h100-80gb:8"
        self.config = cluster.kubeconfig(folder, node)
        os.mkfifo(folder / "kmsg")
        self._kernel = os.open(folder / "kmsg", os.O_RDWR | os.O_NONBLOCK)
        self.settings["NODEAGENT_HEALTH_KERNEL_LOG"] = str(folder / "kmsg")

    def run_agent(self) -> None:
        which = ("--node-name", self.node, "--kubeconfig", str(self.config))
        self.start("--source", "annotation", *which)

    def until(self, condition: Callable[[], T], *, seconds: float = SOON) -> T:
        return wait_until(condition, said=self.said, within=seconds)

    def close(self) -> None:
        self.end_everything()
        os.close(self._kernel)

    @contextlib.contextmanager
    def cards(self) -> Iterator[SimulatedNode]:
        with SimulatedNode(state=self.state) as node:
            yield node

    def slices(self) -> list[tuple[int, int, int]]:
        """What the hardware has: GPU, start and size of each GPU instance."""
        gpus = json.loads(self.state.read_text())["gpus"] if self.state.exists() else []
        found = [(n, i["start"], i["size"]) for n, g in enumerate(gpus) for i in g["instances"]]
        return sorted(found)

    def kernel_says(self, slice_: tuple[int, int, int], xid: int) -> None:
        """A line of the kernel's log, as of now, about an XID in a GPU instance."""
        gpu, start, _ = slice_
        instances = json.loads(self.state.read_text())["gpus"][gpu]["instances"]
        (number,) = (one["id"] for one in instances if one["start"] == start)
        with self.cards() as cards:
            where = f"PCI:{cards.card(gpu).identity.pci_bus_id[4:-2].lower()} GPU-I:{number:02}"
        micros = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        line = f"3,17,{micros},-;NVRM: Xid ({where}): {xid}, pid=7, name=x\n"
        os.write(self._kernel, line.encode())


class Node(Member):
    """The node on this machine: real kubelet and runtime, simulated GPUs, an agent with claims."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.place = place()
        super().__init__(folder, cluster, self.place.name)
        self.settings |= {
            "NODEAGENT_DRA_MODE": "dynamic",
            "NODEAGENT_KUBELET_USE": "always",
            "NODEAGENT_KUBELET_DIR": str(self.place.kubelet_dir),
            "NODEAGENT_KUBELET_SOCKET": f"{self.place.kubelet_dir}/pod-resources/kubelet.sock",
            "NODEAGENT_CDI_DIR": str(self.place.cdi_dir),
        }

    def serve(self) -> None:
        """Start the agent, and wait until pods can have what it offers."""
        before = self.registrations()
        self.run_agent()
        self.until(lambda: self.registrations() > before)
        gpus = int(self.boards.rpartition(":")[2])
        self.until(lambda: len(self.offer()) == 2 * gpus)

    def registrations(self) -> int:
        said = self.said() if (self.folder / "stderr").exists() else ""
        return said.count("the kubelet registered the DRA driver")

    def offer(self) -> list[Any]:
        found = self.cluster.items(f"{RESOURCE}/resourceslices")
        return [one for one in found if one["spec"].get("nodeName") == self.place.name]

    def service(self, action: str, unit: str) -> None:
        """Stop, start or restart the kubelet, or the API server."""
        subprocess.run([*self.place.service, action, unit], check=True)

    # --- pods -----------------------------------------------------------------------------------

    def pod(self, name: str, resource: str = "mig-1g.10gb", *, claim: str = "") -> None:
        """One that asks for this by a limit ("" for none), or by a claim that there is."""
        limits = {f"nvidia.com/{resource}": 1} if resource and not claim else {}
        named = [{"name": claim}] if claim else []
        claims = [{**one, "resourceClaimName": claim} for one in named]
        spec = self.pod_spec([{"limits": limits, "claims": named}], claims)
        self.cluster.create(PODS, {"metadata": {"name": name, "labels": LABELS}, "spec": spec})

    def pod_spec(self, containers: Sequence[Any], claims: Sequence[Any]) -> dict[str, Any]:
        """Of a pod for this node, whose containers `main`, `c1` and on have these resources."""
        common = {
            "image": self.place.image,
            "imagePullPolicy": "Never",
            "command": ["sleep", "1000000"],
        }
        return {
            "containers": [
                {"name": f"c{number}" if number else "main", **common, "resources": resources}
                for number, resources in enumerate(containers)
            ],
            "resourceClaims": list(claims),
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"kubernetes.io/hostname": self.place.name},
        }

    def claim(
        self,
        name: str,
        device_class: str,
        capacity: Mapping[str, str] = {},
        *,
        count: int = 1,
        **sharing: Any,
    ) -> None:
        """A claim for a device or part of it, which pods can name, so configured for the agent."""
        exactly: dict[str, Any] = {"deviceClassName": device_class, "count": count}
        exactly |= {"capacity": {"requests": capacity}} if capacity else {}
        request = {"name": "gpu", "exactly": exactly}
        wanted = {"apiVersion": "gpu.nodeagent.io/v1", "kind": "DeviceConfig", **sharing}
        opaque = {"driver": "gpu.nodeagent.io", "parameters": wanted}
        devices = {"requests": [request], "config": [{"opaque": opaque}] if sharing else []}
        self.cluster.create(CLAIMS, {"metadata": {"name": name}, "spec": {"devices": devices}})

    def pods(self) -> dict[str, Any]:
        """Those of the suite by their names."""
        found = self.cluster.items(f"{PODS}?labelSelector={SELECTED}")
        return {one["metadata"]["name"]: one for one in found}

    def running(self) -> dict[str, str]:
        """The ids of the containers that run, by the names of their pods."""
        states = {
            name: (one["status"].get("containerStatuses") or [{}])[0]
            for name, one in self.pods().items()
        }
        return {n: s["containerID"] for n, s in states.items() if "running" in s.get("state", {})}

    def until_running(self, *names: str, seconds: float = SOON) -> dict[str, str]:
        """Wait for these pods, or for all that there are."""
        wanted = set(names or self.pods())
        self.until(lambda: wanted <= set(self.running()), seconds=seconds)
        return self.running()

    def until_waiting(self, *names: str) -> None:
        """Wait until the scheduler has no device for these pods."""

        def waiting(pod: Any) -> bool:
            found = pod["status"].get("conditions", ())
            return "Unschedulable" in [one.get("reason") for one in found]

        self.until(lambda: all(waiting(self.pods()[name]) for name in names))

    def delete(self, *names: str) -> None:
        for name in names:
            self.cluster.ask("DELETE", f"{PODS}/{name}")

    def delete_pods(self) -> None:
        """All of them, and wait until nothing is left of them: no slice, no claim, no CDI file."""
        self.cluster.ask("DELETE", f"{PODS}?labelSelector={SELECTED}")
        self.until(lambda: not self.pods())
        self.cluster.ask("DELETE", CLAIMS)
        self.until(lambda: not self.cluster.items(f"{RESOURCE}/resourceclaims"))
        self.until(lambda: (self.slices(), self.cdi()) == ([], []))

    def cdi(self) -> list[Path]:
        return list(self.place.cdi_dir.glob("nodeagent.io-claim_*.json"))

    def inside(self, pod: str, command: str, container: str = "main") -> str:
        return self.cluster.kubectl("exec", pod, "-c", container, "--", "sh", "-c", command)

    def kill_containers(self) -> None:
        """All processes of the suite's pods, as a reboot does."""
        uids = [one["metadata"]["uid"] for one in self.pods().values()]
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                group = (entry / "cgroup").read_text()
                if any(uid in group or uid.replace("-", "_") in group for uid in uids):
                    os.kill(int(entry.name), signal.SIGKILL)
