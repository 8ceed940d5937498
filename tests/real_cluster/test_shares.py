"""Pods that have one GPU together on a real API server, scheduler, kubelet and runtime."""

import signal

from nodeagent.claims.capacity import MEMORY, THREADS
from tests.real_cluster.rig import CLAIMS, Node

CLASS = "mps.nodeagent.io"


def share(node: Node, name: str, memory: str, **more: str) -> None:
    node.claim(name, CLASS, {MEMORY: memory, **more})
    node.pod(name, claim=name)


def limits(node: Node, pod: str) -> list[str]:
    return sorted(node.inside(pod, "env | grep -E 'MEM_LIMIT|PERCENTAGE' || true").split())


def two(node: Node) -> dict[str, str]:
    """One with threads in proportion, one with threads of its own; their containers."""
    share(node, "first", "8Gi")
    share(node, "second", "20000Mi", **{THREADS: "50"})
    return node.until_running()


def test_two_shares_and_what_waits_for_them(sharing: Node) -> None:
    """Each is held to what its claim consumes, by one daemon. A share that does not fit, all of
    the GPU and a part of it wait, and come when they are gone.
    """
    two(sharing)
    assert limits(sharing, "first") == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10.04",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M",
    ]
    assert limits(sharing, "second") == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20224M",
    ]
    assert len(sharing.daemons()) == 1
    share(sharing, "memory", "60Gi")
    share(sharing, "threads", "1Gi", **{THREADS: "51"})
    sharing.pod("part")
    sharing.until_waiting("memory", "threads", "part")
    sharing.delete("memory", "threads", "first", "second")
    sharing.until_running("part")
    assert sharing.daemons() == []
    sharing.pod("whole", "gpu")
    sharing.until_waiting("whole")
    sharing.delete("part")
    sharing.until_running("whole")
    assert limits(sharing, "whole") == []
    share(sharing, "late", "256Mi")
    sharing.until_waiting("late")


def test_shares_of_a_mig_device(dividing: Node) -> None:
    """Two pods have one, one has another as a whole, by the class of their profile; what fits no
    more has a third. The first is there as long as one of its pods.
    """
    profile = "mig-1g-10gb.nodeagent.io"
    for name, memory in (("first", "4Gi"), ("second", "5Gi"), ("third", "2Gi")):
        dividing.claim(name, profile, {MEMORY: memory})
        dividing.pod(name, claim=name)
        dividing.until_running()
    dividing.pod("whole")
    dividing.until_running()
    assert [size for _, _, size in dividing.slices()] == [1] * 3
    assert limits(dividing, "first") == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=41.02",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M",
    ]
    visible = [
        dividing.inside(pod, "echo $CUDA_VISIBLE_DEVICES").strip()
        for pod in ("first", "second", "third")
    ]
    assert (visible[0], len({*visible})) == (visible[1], 2)
    assert visible[0].startswith("MIG-")
    assert (limits(dividing, "whole"), len(dividing.daemons())) == ([], 2)
    dividing.delete("first", "third")
    dividing.until(lambda: len(dividing.slices()) == 2)
    assert len(dividing.daemons()) == 1
    dividing.delete("second")
    dividing.until(lambda: len(dividing.slices()) == 1)
    assert dividing.daemons() == []


def test_gpus_of_one_container(pair: Node) -> None:
    """A pod with a share of each has one daemon for both, and so has a pod with a share of one
    beside it, also when the first is gone; one with both GPUs as a whole has another daemon then.
    """
    pair.claim("job", CLASS, {MEMORY: "8Gi"}, count=2)
    pair.pod("job", claim="job")
    pair.until_running()
    [daemon] = pair.daemons()
    both = pair.inside("job", "echo $CUDA_VISIBLE_DEVICES").split()[0].split(",")
    assert both == sorted({*both, daemon["device"]})
    assert limits(pair, "job")[1] == "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M,1=8192M"
    assert len(pair.inside("job", "ls /dev/nvidia[0-9]*").split()) == len(both) == 2
    share(pair, "notebook", "1Gi")
    pair.until_running()
    assert pair.inside("notebook", "echo $CUDA_VISIBLE_DEVICES").strip() in both
    assert len(pair.inside("notebook", "ls /dev/nvidia[0-9]*").split()) == 1
    pair.delete("job")
    pair.until(lambda: len(pair.cdi()) == 1)
    assert [one["pid"] for one in pair.daemons()] == [daemon["pid"]]
    pair.delete_pods()
    assert pair.daemons() == []
    pair.claim("whole", "gpu.nodeagent.io", count=2, mps={"clients": {"memory": "16Gi"}})
    pair.pod("whole", claim="whole")
    pair.until_running()
    assert limits(pair, "whole") == ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=16384M,1=16384M"]
    assert len(pair.daemons()) == 1


def test_the_agent_is_killed(sharing: Node) -> None:
    """The shares and their daemon stay, and another one comes beside them."""
    before = two(sharing)
    [daemon] = sharing.daemons()
    sharing.stop(signal.SIGKILL)
    sharing.serve()
    share(sharing, "third", "1Gi")
    assert sharing.until_running().items() > before.items()
    [now] = sharing.daemons()
    assert now["pid"] == daemon["pid"]
    devices = [one["status"]["allocation"]["devices"] for one in sharing.cluster.items(CLAIMS)]
    assert len({one["results"][0]["shareID"] for one in devices}) == 3
