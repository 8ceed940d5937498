"""Who has not gone, and how that is told."""

from __future__ import annotations

from nodeagent.cluster.drain.steps import NodeFacts, PodFact, PodSelector, pods_left, still_there

PLUGIN = PodSelector({"app": "plugin"})


def test_only_unfinished_pods_are_left() -> None:
    """A pod that is being ended is there until it has ended; not knowing is told apart."""
    pods = (
        PodFact("gpu", "going", {"app": "plugin"}, leaving=True),
        PodFact("gpu", "done", {"app": "plugin"}, phase="Succeeded"),
        PodFact("gpu", "other", {"app": "another"}),
    )
    assert pods_left(PLUGIN, NodeFacts(pods=pods)) == pods[:1]
    assert pods_left(PLUGIN, NodeFacts(pods=pods[1:])) == ()
    assert pods_left(PLUGIN, NodeFacts()) is None


def test_it_is_told_by_name() -> None:
    """Which pods, by which selector, after how long, and that nothing was changed."""
    message = still_there(PLUGIN, (PodFact("gpu", "p1"), PodFact("gpu", "p2")), 300).message
    assert message == (
        "the pods gpu/p1, gpu/p2 (app=plugin) have not gone within 300 s, so the GPUs were not "
        "changed"
    )
    assert "is not known" in still_there(PLUGIN, None, 2.5).message
