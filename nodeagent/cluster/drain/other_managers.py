"""Detects other managers of this node's GPUs. Two undo each other, so one found is a refusal.

Most of them destroy at their start what is not theirs. Each is recognised by its pods; where the
pods are not known, by the label that selects this node for them.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from nodeagent.catalogue import Words, filled, section
from nodeagent.claims.names import NVIDIA_DRIVER
from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.drain.pods import Pod
from nodeagent.cluster.kubelet.allocations import Holding
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import Struct

Pods = tuple[Pod, ...] | None


class OtherManager(StrEnum):
    """Other programs that divide GPUs; the values are those of a setting."""

    MIG_MANAGER = "mig-manager"
    NOS = "nos"
    DRA = "dra"
    HAMI = "hami"
    INSTASLICE = "instaslice"


class _Known(Struct, frozen=True):
    """A program to find. `label` brings its pods to a node, but is no evidence where our own
    plan source serves it, which is `source`.
    """

    finds: Callable[[NodeView, Pods], Iterator[str]]
    label: tuple[str, str] | None = None
    source: str = ""


MIG_MANAGER_LABEL: Final = "nvidia.com/gpu.deploy.mig-manager"
NOS_LABEL: Final = "nos.nebuly.com/gpu-partitioning"
HAMI_REGISTER: Final = "hami.io/node-nvidia-register"
_DRA_COMPONENTS = ("nvidia-dra-driver-gpu-component", "dra-driver-nvidia-gpu-component")
_INSTASLICE_PODS = ("instaslice-daemonset", "das-daemonset")
_INSTASLICE_RESOURCES = ("mig.das.com/", "instaslice.redhat.com/mig-")


def other_managers(node: NodeView, pods: Pods, *, source: str = "") -> dict[OtherManager, str]:
    """The other managers of this node's GPUs, each with the first evidence of it.

    `pods` None: it is not known which pods are on the node. `source` is the agent's own plan
    source, as in its setting.
    """
    found = {manager: _evidence(known, node, pods, source) for manager, known in _KNOWN.items()}
    return {manager: evidence for manager, evidence in found.items() if evidence}


def owned_by_others(
    node: NodeView, pods: Pods, *, source: str = "", tolerated: Collection[str] = ()
) -> tuple[Problem, ...]:
    """A problem for each of them that is not `tolerated`; the agent refuses to act while any is."""
    words, facts = section("manager"), {"node": node.name or "NODE"}
    # Where our own plan source serves the rest of it, only its agent has to go.
    mend = {m: "served" if known.source == source else "remedy" for m, known in _KNOWN.items()}
    return tuple(
        Problem.of(
            Code.OWNED,
            "manager",
            manager=words[manager]["name"],
            evidence=evidence,
            remedy=filled(words[manager].get(mend[manager]) or words[manager]["remedy"], facts),
        )
        for manager, evidence in other_managers(node, pods, source=source).items()
        if manager not in tolerated
    )


def other_allocator(
    drivers: Collection[str], allocatable: Mapping[str, str], node: str
) -> Words | None:
    """What hands out GPUs of the node to pods beside claims of the agent's own driver, and what
    ends that. `drivers` have ResourceSlices of the node, `allocatable` is the Node's.
    """
    if NVIDIA_DRIVER in drivers:
        return _other("driver", driver=NVIDIA_DRIVER)
    for resource, amount in sorted(allocatable.items()):
        if resource.startswith("nvidia.com/") and amount != "0":
            return _other("plugin", resource=resource, amount=amount, node=node)
    return None


def other_holder(held: Iterable[Holding]) -> Words | None:
    """Which pod has GPUs of this node from a device plugin, as the kubelet says."""
    one = next((one for one in held if one.resource.startswith("nvidia.com/")), None)
    return _other("pod", pod=one.pod, resource=one.resource) if one else None


def _other(case: str, **facts: object) -> Words:
    words = section("otherUse")[case]
    return Words(filled(words["message"], facts), filled(words["remedy"], facts))


# --- by what each is seen -------------------------------------------------------------------------


def _evidence(known: _Known, node: NodeView, pods: Pods, source: str) -> str:
    found = next(known.finds(node, pods), "")
    # Where pods are known, they decide: the label stays when one is switched off elsewhere.
    if (
        found
        or pods is not None
        or known.label is None
        or (known.source and known.source == source)
    ):
        return found
    key, value = known.label
    return f"the node has the label {key}={value}" if node.labels.get(key) == value else ""


def _running(pods: Pods) -> Iterable[Pod]:
    return (pod for pod in pods or () if not pod.finished)


def _pods_with(pods: Pods, key: str, *values: str) -> Iterator[str]:
    for pod in _running(pods):
        if pod.labels.get(key) in values:
            yield f"its pod {pod} is here ({key}={pod.labels[key]})"


def _nos(node: NodeView, pods: Pods) -> Iterator[str]:
    for pod in _running(pods):
        # The name alone is a common word; its DaemonSet goes where this node label is.
        if pod.labels.get("app.kubernetes.io/name", "").endswith("mig-agent") and (
            NOS_LABEL in pod.selects or NOS_LABEL in node.labels
        ):
            yield f"its mig-agent's pod {pod} is here"


def _dra(_: NodeView, pods: Pods) -> Iterator[str]:
    for pod in _running(pods):
        plugin = any(pod.labels.get(key) == "kubelet-plugin" for key in _DRA_COMPONENTS)
        if plugin and pod.dynamic_mig:
            yield f"its pod {pod} is here with DynamicMIG switched on"


def _hami(node: NodeView, pods: Pods) -> Iterator[str]:
    """HAMi, but only in MIG mode: else it divides memory by a library and leaves layouts alone."""
    here = any(
        pod.labels.get("app.kubernetes.io/component") == "hami-device-plugin"
        for pod in _running(pods)
    )
    if (here or pods is None) and _is_hami_mig(node.annotations.get(HAMI_REGISTER, "")):
        yield f"the annotation {HAMI_REGISTER} has GPUs in its mode mig"


def _is_hami_mig(register: str) -> bool:
    try:
        devices = json.loads(register)
    except (ValueError, RecursionError):
        # Older releases: records end with a colon, commas part fields.
        return any("mig" in record.split(",") for record in register.split(":"))
    if not isinstance(devices, list):
        return False
    return any(isinstance(device, dict) and device.get("mode") == "mig" for device in devices)


def _instaslice(node: NodeView, pods: Pods) -> Iterator[str]:
    for key in ("name", "app", "app.kubernetes.io/name"):
        yield from _pods_with(pods, key, *_INSTASLICE_PODS)
    for resource, amount in node.allocatable.items():
        if resource.startswith(_INSTASLICE_RESOURCES) and amount != "0":
            yield f"the node offers {resource}"


_KNOWN: Final = {
    OtherManager.MIG_MANAGER: _Known(
        lambda _, pods: _pods_with(pods, "app", "nvidia-mig-manager"), (MIG_MANAGER_LABEL, "true")
    ),
    OtherManager.NOS: _Known(_nos, (NOS_LABEL, "mig"), "nos"),
    OtherManager.DRA: _Known(_dra),
    OtherManager.HAMI: _Known(_hami),
    OtherManager.INSTASLICE: _Known(_instaslice),
}
