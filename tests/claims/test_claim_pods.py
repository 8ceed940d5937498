"""Whose a claim is, by the API server at first and then by the kubelet."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.claims.claim_pods import ClaimPods
from nodeagent.claims.decisions import Allocated
from nodeagent.views.shapes import Pod

KEY = ("team", "trainer")
DEVICE = ("node/gpu", "mig-1g-10gb-4", "")


def _claim(*names: str, resource: str = "pods") -> dict[str, Any]:
    reserved = [{"resource": resource, "name": name, "uid": f"uid-{name}"} for name in names]
    return {"status": {"reservedFor": reserved}}


def _pod(name: str, container: str = "") -> Pod:
    return Pod(namespace="team", name=name, container=container)


def _allocated(pod: str, container: str, claim: str = "trainer") -> Allocated:
    return Allocated("team", claim, pod, DEVICE, container)


def test_the_pods_that_a_claim_is_reserved_for() -> None:
    """Known before anything is made; a claim that is gone has none."""
    pods = ClaimPods()
    pods.reserve(KEY, _claim("a", "b"))
    assert pods.of(KEY) == [_pod("a"), _pod("b")]
    pods.reserve(KEY, None)
    assert pods.of(KEY) == []


@pytest.mark.parametrize(
    "claim",
    [
        {},
        {"status": None},
        {"status": {"reservedFor": "pods"}},
        {"status": {"reservedFor": [{"name": 7}]}},
        [],
        _claim("group", resource="podgroups"),
    ],
)
def test_an_object_that_names_no_pods(claim: object) -> None:
    """Tenants write claims: nothing follows from what is not as it should be."""
    pods = ClaimPods()
    pods.reserve(KEY, claim)
    assert pods.of(KEY) == []


def test_the_kubelet_adds_the_container() -> None:
    """Where one container has it; a pod is there once."""
    pods = ClaimPods()
    pods.reserve(KEY, _claim("a", "b"))
    listed = [_allocated("a", "main"), _allocated("b", "one"), _allocated("b", "two")]
    assert pods.observe(listed, {KEY})
    assert pods.of(KEY) == [_pod("a", "main"), _pod("b")]
    assert not pods.observe(listed, {KEY})
    assert pods.observe([], {KEY})
    assert pods.of(KEY) == [_pod("a"), _pod("b")]


def test_claims_that_are_over_are_forgotten() -> None:
    """Else a node would remember every claim that it ever had."""
    pods = ClaimPods()
    pods.reserve(KEY, _claim("a"))
    pods.observe([], ())
    assert pods.of(KEY) == []
