"""A cordon of ours is ended by us, one of somebody else's never."""

from __future__ import annotations

from nodeagent.cluster.drain.plan import CORDONED, cordoning, uncordoning
from nodeagent.cluster.drain.steps import NodeFacts

OURS = {CORDONED: "true"}


def test_cordon_and_uncordon() -> None:
    """The memory is set and taken away in the same patch as the cordon."""
    cordon = cordoning(NodeFacts())
    assert cordon is not None
    assert (cordon.unschedulable, cordon.annotations) == (True, OURS)
    during = NodeFacts(annotations=OURS, unschedulable=True)
    assert cordoning(during) is None
    uncordon = uncordoning(during)
    assert uncordon is not None
    assert (uncordon.unschedulable, uncordon.annotations) == (False, {CORDONED: None})


def test_what_we_did_not_cordon_is_left_alone() -> None:
    """An administrator's cordon is there before and afterwards."""
    cases: list[bool] = [True, False]
    for unschedulable in cases:
        node = NodeFacts(unschedulable=unschedulable)
        assert (cordoning(node) is None) == unschedulable
        assert uncordoning(node) is None


def test_an_uncordon_in_between_is_kept() -> None:
    """Somebody wanted pods here: only the memory goes, and a later change cordons anew."""
    node = NodeFacts(annotations=OURS)
    ended = uncordoning(node)
    assert ended is not None
    assert (ended.unschedulable, ended.annotations) == (None, {CORDONED: None})
    assert cordoning(node) is not None
