"""Whose a claim is, by the API server at first and then by the kubelet."""

from __future__ import annotations

from nodeagent.claims.model import Allocated
from nodeagent.claims.serving.claim_object import ReservedFor
from nodeagent.claims.serving.claim_pods import RECENT, ClaimPods
from nodeagent.views.shapes import Pod
from tests.claims.samples import claim_object

KEY = ("team", "trainer")
DEVICE = ("node/gpu", "mig-1g-10gb-4", "")


def _claim(*names: str) -> ReservedFor:
    return ReservedFor("uid", tuple((name, f"uid-{name}") for name in names))


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


def test_what_was_read_of_a_claim_is_its_present_state_for_a_moment() -> None:
    """Other pods may come to share it, and one of its name may be made anew."""
    now = 100.0
    pods = ClaimPods(lambda: now)
    assert pods.recent(KEY) is None
    pods.reserve(KEY, _claim("a"))
    assert pods.recent(KEY) == _claim("a")
    now += RECENT
    assert pods.recent(KEY) is None
    assert pods.of(KEY) == [_pod("a")]


def test_the_object_names_its_pods() -> None:
    """With the uids by which Kubernetes knows them."""
    reserved = [
        {"resource": "pods", "name": "a", "uid": "uid-a"},
        {"resource": "podgroups", "name": "group", "uid": "uid-group"},
        {"apiGroup": "", "resource": "pods", "name": "b", "uid": "uid-b"},
    ]
    claim = {"metadata": {"uid": "uid"}, "status": {"reservedFor": reserved}}
    assert claim_object(claim).reserved_for == _claim("a", "b")


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
