"""What is taken from a Node's JSON, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodeagent.cluster.client.node_view import NodeView, is_newer, read_node
from nodeagent.health.reporting import Condition


def view_of(node: object) -> NodeView:
    """What is read of this JSON."""
    return read_node(json.dumps(node).encode())


def node(**parts: Any) -> dict[str, Any]:
    """The least that a Node has, and these parts."""
    return {"metadata": {"name": "n", "uid": "u", "resourceVersion": "7"}, **parts}


def test_only_what_is_of_interest_is_in_the_view() -> None:
    """Keys of others, and the kubelet's heartbeats in the conditions, change no view."""
    whole = node(
        spec={"unschedulable": True},
        status={
            "allocatable": {"cpu": "4", "nvidia.com/gpu": "8"},
            "conditions": [
                {"type": "Ready", "status": "True", "lastHeartbeatTime": "now"},
                {"type": "GPUHealthy", "status": "True", "lastTransitionTime": "then"},
            ],
        },
    )
    whole["metadata"] |= {
        "annotations": {"nodeagent.io/plan": "p", "other/key": "o"},
        "labels": {"nvidia.com/mig.config": "c", "zone": "z"},
    }
    view = view_of(whole)
    assert view.annotations == {"nodeagent.io/plan": "p"}
    assert view.labels == {"nvidia.com/mig.config": "c"}
    assert view.allocatable == {"nvidia.com/gpu": "8"}
    assert view.conditions == {"GPUHealthy": Condition("True", "", "")}
    assert view.changed_at == {"GPUHealthy": "then"}
    assert view.unschedulable is True
    whole["metadata"]["resourceVersion"] = "8"
    whole["metadata"]["annotations"]["other/key"] = "p"
    assert view_of(whole) == view


def test_what_is_no_node_is_refused() -> None:
    """A proxy may answer anything."""
    cases: list[object] = [
        None,
        "text",
        [],
        {},
        {"metadata": {"name": "n", "uid": "u"}},
        {"metadata": {"name": "n", "uid": "u", "resourceVersion": 7}},
        {"metadata": []},
        node(spec="s"),
        node(status={"allocatable": ["cpu"]}),
        node(status={"allocatable": {"nvidia.com/gpu": 4}}),
        node(status={"conditions": {}}),
        node(status={"conditions": [{"type": "GPUHealthy"}]}),
    ]
    for strange in cases:
        with pytest.raises(ValueError, match=r"Expected|missing"):
            view_of(strange)


def test_versions_are_compared_as_numbers() -> None:
    """Not as words; and a version that is not a number is always news."""
    assert is_newer("10", "9")
    assert not is_newer("9", "10")
    assert not is_newer("9", "9")
    assert is_newer("opaque", "9")
    assert is_newer("9" * 5000, "9")  # no number of any server
