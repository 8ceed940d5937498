"""The admission policies let an agent do with other objects than Nodes what it has to, no more."""

from typing import Any

import pytest
from cel_expr_python import cel

from tests.manifests.admission import Asked, compiled, policy

# Of every kind of the newest Kubernetes, by the name that they refer to each other with.


# --- Events -------------------------------------------------------------------------------------


def _event(kind: str, name: str) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, "involvedObject": {"kind": kind, "name": name}}


def test_events_are_about_the_agents_own_node() -> None:
    events = policy("nodeagent-own-events")
    own = _event("Node", "gpu-0")
    assert events.denials(Asked("CREATE", "events", own)) == []
    assert events.denials(Asked("UPDATE", "events", own, own)) == []
    nothing: dict[str, Any] = {"involvedObject": {}}
    for other in (_event("Node", "gpu-1"), _event("Pod", "gpu-0"), nothing):
        (denied,) = events.denials(Asked("CREATE", "events", other))
        assert "Events about it alone" in denied
    (denied,) = events.denials(Asked("UPDATE", "events", own, _event("Node", "gpu-1")))
    assert "another's Event" in denied
    assert events.denials(Asked("CREATE", "events", own, node="")) != []


def _claim_event(kind: str = "Pod", reason: str = "ClaimPrepared", **source: str) -> dict[str, Any]:
    about = {"kind": kind, "namespace": "team-a", "name": "x", "uid": "1"}
    by = {"component": "nodeagent", "host": "gpu-0", **source}
    return {"metadata": {"name": "x"}, "involvedObject": about, "reason": reason, "source": by}


def test_events_about_claims_are_in_the_agents_own_name() -> None:
    """About claims and pods, for its own reasons and as the agent of its Node."""
    events = policy("nodeagent-own-events")
    for kind in ("ResourceClaim", "Pod"):
        own = _claim_event(kind)
        assert events.denials(Asked("CREATE", "events", own)) == []
        assert events.denials(Asked("UPDATE", "events", own, own)) == []
    for other in (
        _claim_event("Secret"),
        _claim_event(reason="Killing"),
        _claim_event(host="gpu-1"),
        _claim_event(component="kubelet"),
    ):
        (denied,) = events.denials(Asked("CREATE", "events", other))
        assert "Events about it alone" in denied
    assert events.denials(Asked("CREATE", "events", _claim_event(host=""), node="")) != []
    for foreign in (_claim_event(host="gpu-1"), _claim_event(component="kubelet")):
        assert events.denials(Asked("UPDATE", "events", _claim_event(), foreign)) != []


# --- pods ---------------------------------------------------------------------------------------


def _pod(node: str, owner: str = "DaemonSet") -> dict[str, Any]:
    owners = [{"kind": owner, "name": "x", "controller": True}] if owner else []
    return {
        "metadata": {"name": "x", **({"ownerReferences": owners} if owners else {})},
        "spec": {"nodeName": node} if node else {},
    }


def test_pods_of_daemon_sets_on_the_own_node_may_be_deleted() -> None:
    """The device plugin's pod may go; another node's, or one that does not come back, may not."""
    pods = policy("nodeagent-plugin-pods")
    assert pods.denials(Asked("DELETE", "pods", None, _pod("gpu-0"))) == []
    for before, node, words in (
        (_pod("gpu-1"), "gpu-0", "deletes pods there alone"),
        (_pod(""), "gpu-0", "deletes pods there alone"),
        (_pod("gpu-0"), "", "deletes pods there alone"),
        (_pod("gpu-0", "ReplicaSet"), "gpu-0", "but a DaemonSet's"),
        (_pod("gpu-0", ""), "gpu-0", "but a DaemonSet's"),
    ):
        (denied,) = pods.denials(Asked("DELETE", "pods", None, before, node=node))
        assert words in denied


def test_the_clusters_own_pods_are_not_evicted() -> None:
    """Evictions pass for a token that names a Node, but not of pods in kube-system."""
    evictions = policy("nodeagent-evictions")
    eviction = {"metadata": {"name": "x"}}

    def denials(namespace: str, node: str = "gpu-0") -> list[str]:
        asked = Asked("CREATE", "pods/eviction", eviction, node=node, namespace=namespace)
        return evictions.denials(asked)

    assert denials("team-a") == []
    assert denials("kube-system") == ["no agent evicts pods of kube-system"]
    assert len(denials("team-a", node="")) == 1


# --- ResourceSlices -----------------------------------------------------------------------------


def _slice(
    node: str | None = "gpu-0", driver: str = "gpu.nodeagent.io", pool: str = "gpu-0/gpu-1"
) -> dict[str, Any]:
    spec = {"driver": driver, "pool": {"name": pool}, **({"nodeName": node} if node else {})}
    return {"metadata": {"name": "x"}, "spec": spec}


OF_OTHERS = "the agent of gpu-0 writes slices of its own driver and pools alone"


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_slices_are_of_the_own_node_and_driver(operation: str) -> None:
    """Another node's slices, another driver's and those of no node are denied, with the reason."""
    policies = policy("nodeagent-own-slices")

    def denials(one: dict[str, Any], **who: str) -> list[str]:
        after, before = (None, one) if operation == "DELETE" else (one, _slice())
        return policies.denials(Asked(operation, "resourceslices", after, before, **who))

    assert denials(_slice()) == []
    named = denials(_slice(driver="gpu.nvidia.com"))  # the agent may have been called so
    assert named == ([] if operation == "DELETE" else [OF_OTHERS])
    for other, words in (
        (_slice(node="gpu-1"), "of its own Node alone"),
        (_slice(node=None), "of its own Node alone"),
        (_slice(pool="gpu-1/gpu-1"), "of its own driver and pools alone"),
        (_slice(pool="gpu-0"), "of its own driver and pools alone"),
    ):
        (denied,) = denials(other)
        assert words in denied
    assert "names no Node" in denials(_slice(), node="")[0]
    assert denials(_slice(node="gpu-1"), user="system:serviceaccount:other:other") == []


# --- ResourceClaims -----------------------------------------------------------------------------

ALLOCATION = {"devices": {"results": [{"driver": "gpu.nodeagent.io"}]}}
THEIRS = {"driver": "net.example.com", "pool": "gpu-0", "device": "nic"}
ELSEWHERE = {"driver": "gpu.nodeagent.io", "pool": "gpu-1/gpu-1", "device": "gpu"}
OWN = {"driver": "gpu.nodeagent.io", "pool": "gpu-0/gpu-1", "device": "gpu", "data": {}}


def _claim(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    status = {"allocation": ALLOCATION, **({"devices": list(devices)} if devices else {})}
    return {"metadata": {"name": "x", "labels": {"a": "b"}}, "status": {**status, **changes}}


def test_of_claims_the_own_devices_are_written() -> None:
    """In the status alone; other drivers' and other nodes' devices stay, and what was allocated."""
    claims = policy("nodeagent-own-claims")
    before = _claim(THEIRS, ELSEWHERE)

    def denials(after: dict[str, Any], resource: str = "resourceclaims/status", **who: str) -> str:
        return "".join(claims.denials(Asked("UPDATE", resource, after, before, **who))[:1])

    assert denials(_claim(THEIRS, ELSEWHERE, OWN)) == ""
    assert denials(before) == ""
    assert "the status alone" in denials(before, "resourceclaims")
    assert "the status alone" in denials(before, node="")
    assert "its own devices alone" in denials(_claim(THEIRS, OWN))
    assert "its own devices alone" in denials(_claim({**THEIRS, "data": {}}, ELSEWHERE))
    assert "writes devices alone" in denials(_claim(THEIRS, ELSEWHERE, reservedFor=[]))
    assert "writes devices alone" in denials(_claim(THEIRS, ELSEWHERE, allocation={}))
    labelled = {**before, "metadata": {"name": "x", "labels": {"a": "c"}}}
    assert "not an agent's" in denials(labelled)
    assert denials(labelled, user="system:serviceaccount:other:other") == ""


# --- the interpreter ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "object.a in [object.b, 'x']",  # what no list of Kubernetes' may hold
        "['x', 1] == []",
        "object.a + 'x' + 1",
        "request.operation == 'DELETE' ? 1 : 'x'",
        "oject.a",
        "variables.later",
    ],
)
def test_expressions_that_a_real_server_refuses_are_refused(expression: str) -> None:
    """Each has types that do not fit, or names what is not there."""
    known = dict.fromkeys(("request", "object"), cel.Type.DYN)
    with pytest.raises((ValueError, RuntimeError), match=r"list of other|INVALID_ARGUMENT"):
        compiled(expression, known)
