"""Readers of what the API server sends: Nodes, pods, claims, slices, events, refusals."""

import json
from pathlib import Path
from typing import Any

from nodeagent.claims.model import ClaimRefused
from nodeagent.claims.names import DRIVER
from nodeagent.claims.offering import resource_slices
from nodeagent.claims.offering.pool_offer import PoolOffer
from nodeagent.claims.reporting.device_reports import shown_statuses
from nodeagent.claims.serving.allocation import read_allocation, read_state
from nodeagent.claims.serving.claim_object import read_claim
from nodeagent.cluster.client.faults import ClusterFault, from_status
from nodeagent.cluster.client.node_view import is_newer, read_node
from nodeagent.cluster.drain.other_managers import other_allocator, other_managers
from nodeagent.cluster.drain.pods import read_pod
from nodeagent.cluster.plan_sources.node_source import offer
from nodeagent.cluster.plan_sources.nos import grammar
from nodeagent.cluster.reflector import read_event
from nodeagent.cluster.slice_publisher import read_slice
from nodeagent.reconcile.plan_update import NoPlan
from nodeagent.views.status_annotation import StatusAnnotation, status_text
from tests.claims.samples import (
    UID,
    claim_json,
    config_json,
    device_config,
    mig_device,
    nvidia_config,
    record,
    result_json,
)
from tests.fuzz.runs import Parser
from tests.views.example_node import AT, IN_SYNC, content_of

# What is no JSON is refused before, with a ValueError, or a RecursionError where it is too deep.
_REFUSALS = (ClusterFault, ValueError, RecursionError)
_NOS = "nos.nebuly.com/"
_NODE: dict[str, Any] = {
    "kind": "Node",
    "metadata": {
        "name": "gpu-0",
        "uid": UID,
        "resourceVersion": "4711",
        "labels": {f"{_NOS}gpu-partitioning": "mig", "nvidia.com/gpu.count": "8", "zone": "z"},
        "annotations": {
            "nodeagent.io/plan": '{"version": "v1", "gpus": [{"mig": {"1g.10gb": 7}}]}',
            "nodeagent.io/plan-name": "all",
            f"{_NOS}spec-gpu-0-1g.10gb": "7",
            f"{_NOS}spec-gpu-1-1g.10gb.me": "1",
            f"{_NOS}status-gpu-0-1g.10gb-free": "7",
            f"{_NOS}status-partitioning-plan": "1714000000",
            "hami.io/node-nvidia-register": '[{"id": "GPU-1", "mode": "mig", "count": 10}]',
        },
    },
    "spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule", "value": "b"}]},
    "status": {
        "allocatable": {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "7"},
        "conditions": [
            {
                "type": "GPUHealthy",
                "status": "True",
                "reason": "r",
                "message": "m",
                "lastTransitionTime": "2026-11-01T00:00:00Z",
            },
            {"type": "Ready", "status": "True"},
        ],
    },
}
_POD: dict[str, Any] = {
    "metadata": {
        "namespace": "team",
        "name": "trainer",
        "uid": UID,
        "labels": {"app": "nvidia-mig-manager", "app.kubernetes.io/name": "mig-agent"},
        "annotations": {"kubernetes.io/config.mirror": "x"},
        "ownerReferences": [{"kind": "DaemonSet", "controller": True}],
        "deletionTimestamp": "2026-11-01T00:00:00Z",
    },
    "spec": {
        "nodeSelector": {"a": "b"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "k", "operator": "Exists"}]}
                    ]
                }
            }
        },
        "containers": [
            {"name": "c", "env": [{"name": "FEATURE_GATES", "value": "DynamicMIG=true"}]}
        ],
    },
    "status": {
        "phase": "Running",
        "containerStatuses": [{"state": {"running": {"startedAt": "x"}}}],
    },
}
_MPS = device_config(mps={"clients": {"memory": "8Gi", "threads": 25}})
_CLAIMS = (
    claim_json(),
    claim_json(
        result_json(shareID=UID, consumedCapacity={"memory": "8Gi"}),
        result_json(request="two/a", device="gpu", adminAccess=False),
        config=[
            config_json(_MPS),
            config_json(device_config(timeSlice="long"), "FromClass", requests=["two"]),
            config_json(
                nvidia_config(strategy="MPS", mpsConfig={"defaultActiveThreadPercentage": 50})
            ),
        ],
    )
    | {"apiVersion": "resource.k8s.io/v1"},
)
_SHOWN = claim_json()
_SHOWN["status"]["devices"] = [
    {
        "driver": DRIVER,
        "pool": "p",
        "device": "gpu",
        "data": {"gpu": "GPU-1"},
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-01T00:00:00Z"}
        ],
    }
]
_SHOWN["status"]["reservedFor"] = [{"resource": "pods", "name": "trainer", "uid": UID}]
_SLICE: dict[str, Any] = {
    "kind": "ResourceSlice",
    "metadata": {"name": "gpu-0-devices-00", "resourceVersion": "12", "uid": UID},
    "spec": {
        "driver": DRIVER,
        "nodeName": "gpu-0",
        "pool": {"name": "gpu-0/gpu-1", "generation": 1, "resourceSliceCount": 2},
        "sharedCounters": [{"name": "gpu", "counters": {"memory-slice-0": {"value": "1"}}}],
        "devices": [
            {
                "name": "mig-1g-10gb-0",
                "attributes": {"a": {"string": "mig"}, "b": {"int": 7}, "c": {"version": "1.2.3"}},
                "capacity": {"memory": {"value": "10Gi"}},
                "consumesCounters": [
                    {"counterSet": "gpu", "counters": {"memory-slice-0": {"value": "1"}}}
                ],
                "taints": [
                    {"key": "k", "effect": "NoSchedule", "timeAdded": "2026-11-01T00:00:00Z"}
                ],
            }
        ],
    },
}
_STATUS = {
    "kind": "Status",
    "code": 429,
    "message": "no",
    "details": {"causes": [{"reason": "DisruptionBudget", "message": "needs 2"}]},
}
_NODE_REFERENCE = resource_slices.NodeReference("gpu-0", UID)


def _node(text: bytes, _: Path) -> None:
    """And all that is made of its annotations and labels."""
    view = read_node(text)
    grammar.is_divided(view.labels), other_managers(view, ())
    other_allocator((), view.allocatable, view.name)
    _annotations(view.annotations)
    is_newer(view.resource_version, "4711")


def _annotations(annotations: Any) -> None:
    grammar.read_spec(annotations)
    list(grammar.requested_profiles(annotations))
    list(map(grammar.read_status, grammar.status_keys(annotations)))
    offer(annotations, NoPlan("there is none"))


def _annotations_of_nos(text: bytes, _: Path) -> None:
    """Also such as no API server lets through."""
    found = json.loads(text)
    if isinstance(found, dict):
        _annotations({key: value for key, value in found.items() if isinstance(value, str)})


def _status_annotation(text: bytes, _: Path) -> None:
    StatusAnnotation().text(content_of(IN_SYNC), existing=text.decode("utf-8", "replace"), now=AT)


def _claim(text: bytes, _: Path) -> None:
    claim = read_claim(text)
    list(shown_statuses(claim))
    read_state(claim, record(mig_device()))
    nvidia = len(text) % 2 == 0
    try:
        read_allocation(claim, namespace="team", name="trainer", uid=UID, nvidia=nvidia)
    except ClaimRefused as refusal:
        if not str(refusal).isprintable() or len(str(refusal)) >= 1000:
            raise AssertionError("not a short printable line") from refusal
        raise


def _slice(text: bytes, _: Path) -> None:
    one = read_slice(text).body
    resource_slices.compare(_SLICE, one)
    resource_slices.slice_diff(PoolOffer("node/gpu", {}, ()), [one, _SLICE], _NODE_REFERENCE)
    resource_slices.read_offer([one, _SLICE])


def _watch(text: bytes, _: Path) -> None:
    event = read_event(text, "a watch")
    is_newer(event.version, "4711")
    if event.type in ("ADDED", "MODIFIED"):
        read_node(event.object)


def _fault(text: bytes, _: Path) -> None:
    from_status(
        429, text, purpose="an eviction", headers={"Retry-After": text[:30].decode("latin-1")}
    )


def _crowded(start: bytes, one: bytes, end: bytes) -> bytes:
    return start + b",".join([one] * ((1_400_000 - len(start)) // (len(one) + 1))) + end


def _long(node: dict[str, Any], **annotations: str) -> bytes:
    """The Node with these annotations, whose first underline is a slash."""
    named = {key.replace("_", "/", 1).replace("_", "."): text for key, text in annotations.items()}
    return json.dumps({**node, "metadata": {**node["metadata"], "annotations": named}}).encode()


_LARGE_NODES = (
    _long(_NODE, **{"hami.io/node-nvidia-register": "[" + "1," * 130_000 + "1]"}),
    _long(_NODE, **{"hami.io/node-nvidia-register": "[" * 260_000}),
    _long(_NODE, **{"hami.io/node-nvidia-register": "mig:," * 52_000}),
    _long(_NODE, **{f"{_NOS}spec-gpu-0-1g.10gb": "0" * 260_000 + "x"}),
    _long(_NODE, **{f"{_NOS}spec-gpu-{n}-1g.10gb": "1" for n in range(7_000)}),
    _long(_NODE, **{f"{_NOS}spec-gpu-0-{n}g.10gb": "x" for n in range(7_000)}),
    _long(_NODE, **{"nodeagent.io/plan": "x" * 260_000}),
)


def parsers() -> tuple[Parser, ...]:
    """One for each kind of object, and for what comes around them."""
    spec = _NODE["metadata"]["annotations"]
    status = status_text(content_of(IN_SYNC), AT).encode()
    return (
        Parser("Node", _node, _REFUSALS, (json.dumps(_NODE).encode(),), _LARGE_NODES),
        Parser("annotations of nos", _annotations_of_nos, _REFUSALS, (json.dumps(spec).encode(),)),
        Parser("status annotation", _status_annotation, (), (status,), (status * 60,)),
        Parser(
            "pod",
            lambda text, _: read_pod(text),
            _REFUSALS,
            (json.dumps(_POD).encode(),),
            (
                _crowded(
                    b'{"metadata": {"namespace": "a", "name": "b", "uid": "c"}, '
                    b'"spec": {"containers": [',
                    b'{"name": "c", "image": "i", "env": [{"name": "a", "value": "b"}]}',
                    b"]}}",
                ),
            ),
        ),
        Parser(
            "claim",
            _claim,
            (*_REFUSALS, ClaimRefused),
            tuple(json.dumps(claim).encode() for claim in (*_CLAIMS, _SHOWN)),
            (
                _crowded(
                    b'{"metadata": {"uid": "' + UID.encode() + b'"}, "status": {"devices": [',
                    b'{"driver": "a", "pool": "p", "device": "d"}',
                    b"]}}",
                ),
            ),
        ),
        Parser(
            "ResourceSlice",
            _slice,
            (*_REFUSALS, resource_slices.UnreadableSlice),
            (json.dumps(_SLICE).encode(),),
        ),
        Parser(
            "watch event",
            _watch,
            _REFUSALS,
            tuple(
                json.dumps(event).encode()
                for event in (
                    {"type": "MODIFIED", "object": _NODE},
                    {"type": "ERROR", "object": _STATUS},
                    {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5"}}},
                    _STATUS,
                )
            ),
            (
                _crowded(
                    b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "1"}, "a": [',
                    b"{}",
                    b"]}}",
                ),
            ),
        ),
        Parser("refusal", _fault, (), (json.dumps(_STATUS).encode(),)),
    )
