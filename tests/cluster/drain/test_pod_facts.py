"""What is read from a pod, what is not a pod, and which pods a selector means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodeagent.cluster.drain.pods import Pod, PodSelector, read_pod

LEAST = {"metadata": {"namespace": "a", "name": "b", "uid": "1"}}


def pod_of(pod: object) -> Pod:
    """What is read of this JSON."""
    return read_pod(json.dumps(pod).encode())


def test_a_whole_pod() -> None:
    """Owners that control, labels that select by selector and by affinity, literal variables."""
    term = {"matchExpressions": [{"key": "by-affinity", "operator": "Exists"}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    owners = [{"kind": "Node", "controller": False}, {"kind": "DaemonSet", "controller": True}]
    source = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    gates = {"name": "FEATURE_GATES", "value": "A=false, dynamicMIG=True"}
    env = [gates, {"name": "NODE", "valueFrom": source}]
    metadata = {
        **LEAST["metadata"],
        "labels": {"app": "x"},
        "annotations": {"kubernetes.io/config.mirror": "1"},
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": owners,
    }
    spec = {
        "nodeSelector": {"by-selector": "true"},
        "affinity": {"nodeAffinity": affinity},
        "initContainers": [{"name": "i"}],
        "containers": [{"name": "c", "env": env}],
    }
    assert pod_of({"metadata": metadata, "spec": spec, "status": {"phase": "Failed"}}) == Pod(
        "a",
        "b",
        {"app": "x"},
        phase="Failed",
        ended=True,
        leaving=True,
        controller="DaemonSet",
        mirror=True,
        selects=frozenset({"by-selector", "by-affinity"}),
        dynamic_mig=True,
        uid="1",
    )


def test_feature_gates() -> None:
    """Only a literal FEATURE_GATES that switches DynamicMIG itself on counts, in any letters."""
    cases = [
        ("FEATURE_GATES", "MPSSupport=false,DynamicMIG=true,", True),
        ("FEATURE_GATES", "DynamicMIG=false", False),
        ("FEATURE_GATES", "NotDynamicMIG=true", False),
        ("FEATURE_GATES", "DynamicMIG=true.", False),
        ("GATES", "DynamicMIG=true", False),
    ]
    for name, value, on in cases:
        spec = {"containers": [{"env": [{"name": name, "value": value}]}]}
        assert pod_of({**LEAST, "spec": spec}).dynamic_mig is on


def test_the_least_there_can_be() -> None:
    """What is absent or null is nothing, and a pod without a phase has not ended."""
    pod = {**LEAST, "spec": {"containers": None}, "status": {}}
    assert pod_of(pod) == Pod("a", "b", phase="", uid="1")


def test_what_is_no_pod() -> None:
    """A strange answer is refused, and never a pod that holds nothing."""
    cases: list[Any] = [
        None,
        [],
        {},
        {"metadata": {"namespace": "a", "name": 1, "uid": "1"}},
        {**LEAST, "spec": {"nodeSelector": ["x"]}},
        {**LEAST, "spec": {"containers": {}}},
    ]
    for pod in cases:
        with pytest.raises(ValueError, match=r"Expected|missing"):
            pod_of(pod)


def test_when_a_pod_is_over() -> None:
    """Its phase says so, and none of its containers is reported as running."""
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"phase": "Succeeded"}, True),
        ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {}}}]}, True),
        ({"phase": "Failed", "containerStatuses": [{"state": {"running": {}}}]}, False),
        ({"phase": "Failed", "initContainerStatuses": [{"state": {"running": {}}}]}, False),
        ({"phase": "Running"}, False),
        ({"phase": "Unknown"}, False),
    ]
    for status, over in cases:
        assert pod_of({**LEAST, "status": status}).ended == over


# --- selectors ------------------------------------------------------------------------------------

CLIENT = "nvidia.com/gpu.deploy.client"


def test_what_matches() -> None:
    """All labels have to match; an empty selector matches no pod, never every pod."""
    cases: list[tuple[PodSelector, Pod, bool]] = [
        (PodSelector({"app": "x"}), Pod("a", "p", {"app": "x", "more": "y"}), True),
        (PodSelector({"app": "x"}), Pod("a", "p", {"app": "y"}), False),
        (PodSelector({"app": "x", "b": "c"}), Pod("a", "p", {"app": "x"}), False),
        (PodSelector(), Pod("a", "p", {"app": "x"}), False),
        (
            PodSelector(selects=CLIENT),
            Pod("a", "p", controller="DaemonSet", selects=frozenset({CLIENT})),
            True,
        ),
        (PodSelector(selects=CLIENT), Pod("a", "p", selects=frozenset({CLIENT})), False),
        (PodSelector(selects=CLIENT), Pod("a", "p", controller="DaemonSet"), False),
    ]
    for selector, pod, matches in cases:
        assert selector.matches(pod) is matches


def test_a_selector_as_it_is_written() -> None:
    """Labels with commas between; anything else is refused, and never taken for all pods."""
    assert PodSelector.of("app=x") == PodSelector({"app": "x"})
    assert PodSelector.of("app=x, b/c=") == PodSelector({"app": "x", "b/c": ""})
    for wrong in ("", "app", "=x", "app=x,"):
        with pytest.raises(ValueError, match="labels"):
            PodSelector.of(wrong)
