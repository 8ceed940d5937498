"""What agents try to change of Nodes, and what the policy should say to it."""

from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

PAUSED = "paused-for-mig-change"
NODE: Object = {
    "metadata": {
        "name": "gpu-0",
        "annotations": {"nodeagent.io/plan": "version: v1", "other.io/key": "x"},
        "labels": {
            "kubernetes.io/hostname": "gpu-0",
            "nvidia.com/mig.config": "all-1g.10gb",
            "nvidia.com/gpu.deploy.dcgm": "true",
            "nvidia.com/gpu.deploy.nvsm": "false",
            "nvidia.com/gpu.deploy.mig-manager": "false",
        },
        "finalizers": ["other.io/finalizer"],
    },
    "spec": {"podCIDR": "10.1.0.0/24", "taints": [{"key": "a", "effect": "NoSchedule"}]},
    "status": {
        "capacity": {"nvidia.com/gpu": "2"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
    },
}
BARE: Object = {"metadata": {"name": "gpu-0"}, "spec": {}, "status": {}}
CORDONED: Object = {**NODE, "spec": {**NODE["spec"], "unschedulable": True}}
CORDONED_BY_US: Object = {
    **CORDONED,
    "metadata": {**NODE["metadata"], "annotations": {"nodeagent.io/cordoned": "true"}},
}


@dataclass(frozen=True, slots=True)
class Change:
    """A merge patch by an agent of `node`; `denied` is in the message, "" if it is let through."""

    name: str
    patch: Object
    denied: str = ""
    before: Object = field(default_factory=lambda: NODE)
    node: str = "gpu-0"
    status: bool = False  # through nodes/status


def annotated(**keys: str | None) -> Object:
    """A patch; `nodeagent_io__status` stands for nodeagent.io/status."""
    return {"metadata": {"annotations": _keys(keys)}}


def labelled(**keys: str | None) -> Object:
    return {"metadata": {"labels": _keys(keys)}}


def _keys(keys: dict[str, str | None]) -> dict[str, str | None]:
    names = {"nodeagent": "nodeagent.io", "nvidia": "nvidia.com", "nos": "nos.nebuly.com"}
    found = {}
    for key, value in keys.items():
        domain, _, name = key.partition("__")
        found[f"{names.get(domain, domain)}/{name.replace('_', '-')}"] = value
    return found


def condition(kind: str, *others: Object) -> Object:
    """A status with this condition behind `others`."""
    return {"status": {"conditions": [*others, {"type": kind, "status": "True", "reason": "x"}]}}


def tainted(*taints: Object) -> Object:
    return {"spec": {"taints": list(taints)}}


OTHERS = NODE["spec"]["taints"]
TAINT = {"key": "nodeagent.io/gpu-unhealthy", "effect": "NoSchedule"}
READY = NODE["status"]["conditions"][0]
MARK = {"nodeagent.io/cordoned": "true"}
MANAGED = {
    "manager": "tester",
    "operation": "Update",
    "apiVersion": "v1",
    "fieldsType": "FieldsV1",
    "fieldsV1": {"f:metadata": {"f:labels": {"f:kubernetes.io/hostname": {}}}},
}
ADDRESS = {"type": "InternalIP", "address": "10.0.0.1"}

ALLOWED = (
    Change("its status", annotated(nodeagent__status="{}")),
    Change("its status on a bare Node", annotated(nodeagent__status="{}"), before=BARE),
    Change("nothing at all", {}),
    Change("nothing of the status", {}, status=True),
    Change("what nos reads", annotated(**{"nos__status-gpu-0-1g.10gb-free": "2"})),
    Change("its layout as labels", labelled(nodeagent__free="4")),
    Change("mig-manager's state", labelled(**{"nvidia__mig.config.state": "success"})),
    Change("the device plugin's configuration", labelled(**{"nvidia__device-plugin.config": "a"})),
    Change("a client paused", labelled(**{"nvidia__gpu.deploy.dcgm": PAUSED})),
    Change(
        "a client put back",
        labelled(**{"nvidia__gpu.deploy.dcgm": "true"}),
        before={
            **NODE,
            "metadata": {"name": "gpu-0", "labels": {"nvidia.com/gpu.deploy.dcgm": PAUSED}},
        },
    ),
    Change(
        "a cordon under its mark",
        {"metadata": {"annotations": MARK}, "spec": {"unschedulable": True}},
    ),
    Change(
        "the end of that cordon",
        {
            "metadata": {"annotations": {"nodeagent.io/cordoned": None}},
            "spec": {"unschedulable": None},
        },
        before=CORDONED_BY_US,
    ),
    Change(
        "its mark taken away after somebody's uncordon",
        annotated(nodeagent__cordoned=None),
        before={**CORDONED_BY_US, "spec": NODE["spec"]},
    ),
    Change("a taint of its own", tainted(*OTHERS, TAINT)),
    Change("its taint on a bare Node", tainted(TAINT), before=BARE),
    Change(
        "its taint taken away",
        tainted(*OTHERS),
        before={**NODE, "spec": {**NODE["spec"], "taints": [TAINT, *OTHERS]}},
    ),
    Change("its conditions", condition("GPUPartitionsReady", READY), status=True),
    Change("its condition on a bare Node", condition("GPUHealthy"), before=BARE, status=True),
    Change("its own annotation through the status", annotated(nodeagent__x="1"), status=True),
)

DENIED = (
    Change("another's Node", annotated(nodeagent__status="{}"), "may not change", node="gpu-1"),
    Change("without a Node", annotated(nodeagent__status="{}"), "names no Node", node=""),
    Change("nothing, of another's Node", {}, "may not change Node gpu-0", node="gpu-1"),
    Change("its own plan", annotated(nodeagent__plan="version: v1\n"), "annotation of an agent"),
    Change("its plan's name", annotated(**{"nodeagent__plan-name": "a"}), "nodeagent.io/plan-n"),
    Change("its plan taken away", annotated(nodeagent__plan=None), "nodeagent.io/plan"),
    Change("another's annotation", annotated(**{"other.io__key": "y"}), "other.io/key"),
    Change("another's taken away", annotated(**{"other.io__key": None}), "other.io/key"),
    Change("a new one", annotated(**{"other.io__new": "y"}), "other.io/new"),
    Change("what nos asks", annotated(**{"nos__spec-gpu-0-1g.10gb": "2"}), "nos.nebuly.com/spec"),
    Change("the configuration asked for", labelled(**{"nvidia__mig.config": "a"}), "mig.config"),
    Change("a role", labelled(**{"node-role.kubernetes.io__control-plane": ""}), "no label"),
    Change("the host's name", labelled(**{"kubernetes.io__hostname": "other"}), "no label"),
    Change("mig-manager", labelled(**{"nvidia__gpu.deploy.mig-manager": "true"}), "no label"),
    Change("a client that is off", labelled(**{"nvidia__gpu.deploy.nvsm": "true"}), "only pause"),
    Change("a client switched off", labelled(**{"nvidia__gpu.deploy.dcgm": "false"}), "only pause"),
    Change("a client taken away", labelled(**{"nvidia__gpu.deploy.dcgm": None}), "only pause"),
    Change("a new client", labelled(**{"nvidia__gpu.deploy.client": "true"}), "only pause"),
    Change("finalizers", {"metadata": {"finalizers": ["a.io/b"]}}, "finalizers"),
    Change("no finalizers", {"metadata": {"finalizers": None}}, "finalizers"),
    Change("a taint", tainted(*OTHERS, {"key": "b", "effect": "NoExecute"}), "are the agent's"),
    Change("others' taints", tainted(TAINT), "are the agent's"),
    Change("no taints", {"spec": {"taints": None}}, "are the agent's"),
    Change("who runs here", tainted(*OTHERS, {**TAINT, "effect": "NoExecute"}), "are the agent's"),
    Change("the provider's id", {"spec": {"providerID": "x://1"}}, "only change unschedulable"),
    Change("a cordon without a mark", {"spec": {"unschedulable": True}}, "only under its mark"),
    Change(
        "the end of another's cordon",
        {"spec": {"unschedulable": None}},
        "ends no other cordon",
        before=CORDONED,
    ),
    Change(
        "another's cordon marked as its own",
        annotated(nodeagent__cordoned="true"),
        "another program cordoned",
        before=CORDONED,
    ),
    Change("capacity", {"status": {"capacity": {"cpu": "99"}}}, "only change cond", status=True),
    Change("no capacity", {"status": {"capacity": None}}, "only change cond", status=True),
    Change("an address", {"status": {"addresses": [ADDRESS]}}, "only change", status=True),
    Change(
        "another's condition",
        condition("GPUHealthy", {**READY, "status": "False"}),
        "are the agent's",
        status=True,
    ),
    Change("another's condition gone", condition("GPUHealthy"), "are the agent's", status=True),
    Change("a new condition", condition("DiskFull", READY), "are the agent's", status=True),
    Change("a label by the status", labelled(**{"other.io__x": "1"}), "no label", status=True),
    Change(
        "who set what, wiped",
        {"metadata": {"managedFields": [{}]}},
        "managedFields are not an agent's",
        before={**NODE, "metadata": {**NODE["metadata"], "managedFields": [MANAGED]}},
    ),
    Change("all conditions gone", {"status": {"conditions": None}}, "are the agent's", status=True),
)
