import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cluster.client.node_view import (
    NodeView,
    Wanted,
    difference,
    is_newer,
    patch_of,
    read_node,
)
from nodeagent.health.reporting import Condition
from tests.simulated_cluster.patching import merged


def view_of(node: object) -> NodeView:
    return read_node(json.dumps(node).encode())


def node(**parts: Any) -> dict[str, Any]:
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
    assert is_newer("10", "9")
    assert not is_newer("9", "10")
    assert not is_newer("9", "9")
    assert is_newer("opaque", "9")
    assert is_newer("9" * 5000, "9")  # no number of any server


# --- the difference from what is wanted -----------------------------------------------------------


TYPES = ("GPUPartitionsReady", "GPUHealthy")

keys = st.sampled_from(["nodeagent.io/status", "nodeagent.io/x~z", "nos.nebuly.com/a"])
values = st.sampled_from(["", "1", "2", "long" * 10])
there_keys = st.dictionaries(keys, values)
wanted_keys = st.dictionaries(keys, st.none() | values)
condition = st.builds(
    Condition,
    status=st.sampled_from(["True", "False", "Unknown"]),
    reason=st.sampled_from(["A", "B"]),
    message=st.sampled_from(["", "m"]),
)
conditions = st.dictionaries(st.sampled_from(TYPES), condition)


def view(
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    there: dict[str, Condition] | None = None,
) -> NodeView:
    return NodeView(
        name="n",
        uid="u",
        resource_version="1",
        annotations=annotations or {},
        labels=labels or {},
        conditions=there or {},
        changed_at=dict.fromkeys(there or {}, "2026-01-01T00:00:00Z"),
    )


def as_json(seen: NodeView) -> dict[str, Any]:
    return {
        "metadata": {
            "name": seen.name,
            "uid": seen.uid,
            "resourceVersion": "2",
            "annotations": dict(seen.annotations),
            "labels": dict(seen.labels),
        },
        "status": {
            "conditions": [
                {
                    "type": kind,
                    "status": c.status,
                    "reason": c.reason,
                    "message": c.message,
                    "lastTransitionTime": seen.changed_at[kind],
                }
                for kind, c in seen.conditions.items()
            ]
        },
    }


def sent_for(wanted: Wanted, there: NodeView) -> dict[str, Any]:
    """The body of the one request, empty when there is none."""
    moment = datetime(2026, 2, 2, tzinfo=UTC)
    part = difference(wanted, there)
    return (patch_of("n", part, there, moment).body or {}) if part else {}


@given(annotations=there_keys, labels=there_keys, want_a=wanted_keys, want_l=wanted_keys)
def test_the_patch_gives_what_is_wanted_and_leaves_the_rest(
    annotations: dict[str, str],
    labels: dict[str, str],
    want_a: dict[str, str | None],
    want_l: dict[str, str | None],
) -> None:
    wanted, before = Wanted(want_a, want_l), view(annotations, labels)
    after = read_node(json.dumps(merged(as_json(before), sent_for(wanted, before))).encode())
    for there, want, now in (
        (annotations, want_a, after.annotations),
        (labels, want_l, after.labels),
    ):
        expected = {k: v for k, v in {**there, **want}.items() if v is not None}
        assert dict(now) == expected
    assert difference(wanted, after) is None


@given(annotations=there_keys, want=wanted_keys)
def test_the_patch_is_minimal(annotations: dict[str, str], want: dict[str, str | None]) -> None:
    sent = sent_for(Wanted(want), view(annotations)).get("metadata", {})
    assert set(sent.get("annotations", {})) == {
        key for key, value in want.items() if annotations.get(key) != value
    }
    assert set(sent) <= {"annotations"}


@given(there=conditions, want=conditions)
def test_conditions_are_written_by_type_and_only_where_they_differ(
    there: dict[str, Condition], want: dict[str, Condition]
) -> None:
    before = view(there=there)
    entries = sent_for(Wanted(conditions=want), before).get("status", {}).get("conditions", [])
    assert {e["type"] for e in entries} == {k for k, c in want.items() if there.get(k) != c}
    whole = as_json(before)
    by_type = {c["type"]: c for c in whole["status"]["conditions"]} | {
        e["type"]: e for e in entries
    }
    whole["status"]["conditions"] = list(by_type.values())
    after = read_node(json.dumps(whole).encode())
    assert dict(after.conditions) == {**there, **want}
    for entry in entries:
        same = entry["type"] in there and there[entry["type"]].status == entry["status"]
        assert (
            entry["lastTransitionTime"] == f"2026-0{1 if same else 2}-0{1 if same else 2}T00:00:00Z"
        )
        assert entry["lastHeartbeatTime"] == "2026-02-02T00:00:00Z"
