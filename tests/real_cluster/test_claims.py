"""Pods that ask for slices on a real scheduler, kubelet and runtime, on good days and bad ones."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.real_cluster.conftest import serving
from tests.real_cluster.rig import LABELS, PODS, RESOURCE, Cluster, Node
from tests.simulated_cluster.fixtures import grpc_ends
from tests.simulated_cluster.listing import listed

NAMES = [f"pod-{number}" for number in range(5)]


def versions(node: Node) -> dict[str, str]:
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in node.offer()}


def five(node: Node) -> dict[str, str]:
    """Five pods with a slice each; their containers."""
    for name in NAMES:
        node.pod(name)
    return node.until_running()


def test_five_pods(node: Node) -> None:
    """Each has a slice, of which its container has the device files; in the end nothing is left."""
    five(node)
    assert [size for _, _, size in node.slices()] == [1] * 5
    files = {node.inside(name, "ls /dev/nvidia-caps; ls /dev/nvidia[0-9]*") for name in NAMES}
    assert len(files) == 5
    assert all("nvidia-cap" in one and "/dev/nvidia" in one for one in files)
    node.delete_pods()


def test_a_slice_shared_by_mps(node: Node) -> None:
    """The daemon is there before the pod's container, which finds its sockets and its limits."""
    node.claim("shared", "mig-2g-20gb.nodeagent.io", mps={"clients": {"threads": 50}})
    node.pod("client", claim="shared")
    node.until_running()
    said = node.inside("client", "ls $CUDA_MPS_PIPE_DIRECTORY; env")
    assert "control\n" in said
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50" in said
    node.delete_pods()
    assert node.daemons() == []


def test_devices_that_exclude_each_other(node: Node) -> None:
    """Two claims with MPS for one container are refused, and claim and pod say why; for a container
    each they are made. A pod that joins them then runs, and is named.
    """
    claims = [{"name": name, "resourceClaimName": name} for name in ("one", "two")]
    for one in claims:
        node.claim(one["name"], "mig-1g-10gb.nodeagent.io", mps={"clients": {}})
    both = [{"name": one["name"]} for one in claims]

    def pod(name: str, *containers: list[dict[str, str]]) -> None:
        spec = node.pod_spec([{"claims": list(claimed)} for claimed in containers], claims)
        spec["securityContext"] = {"runAsUser": 1000}  # as the daemon
        node.cluster.create(PODS, {"metadata": {"name": name, "labels": LABELS}, "spec": spec})

    def said(reason: str) -> set[str]:
        events = node.cluster.items("/api/v1/namespaces/default/events")
        about = [one for one in events if "devices that exclude each other" in one["message"]]
        return {one["involvedObject"]["name"] for one in about if one["reason"] == reason}

    pod("together", both)
    node.until(lambda: "together" in said("ClaimRefused") and said("ClaimRefused") & {"one", "two"})
    assert not node.running()
    node.cluster.ask("DELETE", f"{PODS}/together")
    node.until(lambda: not node.pods())
    pod("apart", both[:1], both[1:])
    node.until_running()
    pod("late", both)
    node.until_running()
    node.until(lambda: {"late", "one", "two"} <= said("ClaimMismatch"))
    node.delete_pods()


def test_fifty_six_pods_at_once(node: Node) -> None:
    """The cards are filled to the last slice."""
    for number in range(56):
        node.pod(f"pod-{number}")
    node.until_running()
    assert len(node.slices()) == 56


def test_the_agent_is_killed_in_the_middle(node: Node) -> None:
    """By SIGKILL as soon as a pod's slice is there, eight times; all pods run."""
    for number in range(8):
        before = len(node.slices())
        node.pod(f"pod-{number}")
        node.until(partial(lambda before: len(node.slices()) > before, before))
        node.stop(signal.SIGKILL)
        node.serve()
    node.until_running()
    assert len(node.slices()) == 8


def test_slices_that_were_wiped(node: Node) -> None:
    """All of them are there again, while the pods go on, and new ones start."""
    before = five(node)
    names = set(versions(node))
    node.cluster.ask("DELETE", f"{RESOURCE}/resourceslices?fieldSelector=spec.nodeName={node.node}")
    node.until(lambda: len(versions(node)) == len(names))
    node.pod("another")
    assert node.until_running().items() > before.items()


def test_one_slice_is_changed(node: Node) -> None:
    """By another program: the others stay as they are. One with a label has its content still."""
    before = versions(node)
    labelled, gone, *others = sorted(before)
    path = f"{RESOURCE}/resourceslices"
    node.cluster.ask("PATCH", f"{path}/{labelled}", {"metadata": {"labels": {"a": "b"}}})
    node.cluster.ask("DELETE", f"{path}/{gone}")
    node.until(lambda: len(versions(node)) == len(before))
    after = versions(node)
    assert {name: after.get(name) for name in others} == {name: before[name] for name in others}


@pytest.mark.parametrize("who", ["kubelet", "agent", "kube-apiserver"])
def test_one_of_them_is_started_again(node: Node, who: str) -> None:
    """What runs goes on, another pod gets a slice, and no ResourceSlice is written; but a kubelet
    that starts deletes them all.
    """
    before, offer, slices = five(node), versions(node), node.slices()
    if who == "agent":
        node.stop(signal.SIGTERM)
        node.serve()
    else:
        node.service("restart", who)
    node.until(lambda: node.cluster.ask("GET", "/readyz")[0] == 200)
    node.pod("another")
    after = node.until_running("another", *NAMES)
    assert {name: after[name] for name in NAMES} == before
    assert set(node.slices()) > set(slices)
    assert who == "kubelet" or versions(node) == offer


def test_who_has_used_it(cluster: Cluster, folder: Path) -> None:
    """By the records: the pod's container from its first second on, and on after a restart."""
    with serving(cluster, folder, NODEAGENT_SAMPLE_INTERVAL="1") as node:
        node.pod("train")

        def held() -> dict[tuple[str, str | None], float]:
            found = node.get("/v1/advice")["advice"]
            return {(one["workload"], one.get("container")): one["held"] for one in found}

        before = node.until(lambda: held().get(("train", "main"), 0.0))
        node.stop(signal.SIGTERM)
        node.serve()
        node.until(node.status)
        node.until(lambda: held().get(("train", "main"), 0.0) > before)
        assert len(held()) == 1


def test_a_reboot(node: Node) -> None:
    """No container and no slice is left, and the kubelet starts last: all is made again."""
    before = five(node)
    node.service("stop", "kubelet")
    node.stop(signal.SIGKILL)
    node.kill_containers()
    with node.cards() as cards:
        cards.reboot()
    node.run_agent()
    node.service("start", "kubelet")
    node.until(lambda: len(node.slices()) == 5)
    node.until(lambda: len(set(node.running().values()) - set(before.values())) == 5)


def taints(node: Node) -> list[str]:
    """Of all devices that are offered, without such that are only occupied."""
    devices = (device for one in node.offer() for device in one["spec"].get("devices", ()))
    return sorted({t["key"] for device in devices for t in device.get("taints", ())})


def resource_health(node: Node, pod: str) -> list[str]:
    (container,) = node.pods()[pod]["status"]["containerStatuses"]
    found = container.get("allocatedResourcesStatus", ())
    return [one["health"] for status in found for one in status["resources"]]


def test_a_used_slice_becomes_sick(node: Node) -> None:
    """XID 95: the device has a taint and its pod says so, until the GPU was reset."""
    node.claim("sick", "mig-1g-10gb.nodeagent.io")
    node.pod("sick", claim="sick")
    node.until_running("sick")
    node.until(lambda: resource_health(node, "sick") == ["Healthy"])
    [used] = node.slices()
    node.kernel_says(used, 95)
    node.until(lambda: "gpu.nodeagent.io/unhealthy" in taints(node))
    node.until(lambda: resource_health(node, "sick") == ["Unhealthy"])
    node.delete_pods()
    with node.cards() as cards:
        cards.reset(used[0])
    node.until(lambda: taints(node) == [])


def test_a_forced_deletion(node: Node) -> None:
    """The next pod is given the same device while the first's container still runs: it starts when
    that has ended, and not a minute later.
    """
    whole = [f"whole-{number}" for number in range(8)]
    for name in whole:
        node.pod(name, "mig-7g.80gb")
    node.until_running()
    node.pod("next", "mig-7g.80gb")
    options: dict[str, Any] = {"gracePeriodSeconds": 0}
    node.cluster.ask("DELETE", f"{PODS}/{whole[0]}", options)
    node.until_running("next", seconds=45)


# --- what the kubelet lists ---------------------------------------------------------------------

__all__ = ["grpc_ends"]


@pytest.mark.usefixtures("grpc_ends")
async def test_what_it_lists(node: Node) -> None:
    """Every pod with all its containers, and of each the devices that it has, however it asked."""
    node.claim("claim", "mig-1g-10gb.nodeagent.io")
    node.pod("by-claim", claim="claim")
    node.until_running()
    node.pod("by-limit")
    node.pod("plain", "")
    node.until_running()
    found, recorded = await listed(
        node.place.kubelet_dir / "pod-resources" / "kubelet.sock", record=True
    )
    assert found == recorded
