"""Which pods a selector means."""

from __future__ import annotations

import pytest

from nodeagent.cluster.drain.steps import PodFact, PodSelector

CLIENT = "nvidia.com/gpu.deploy.client"


def test_what_matches() -> None:
    """All labels; an empty selector means nobody, never everybody."""
    cases: list[tuple[PodSelector, PodFact, bool]] = [
        (PodSelector({"app": "x"}), PodFact("a", "p", {"app": "x", "more": "y"}), True),
        (PodSelector({"app": "x"}), PodFact("a", "p", {"app": "y"}), False),
        (PodSelector({"app": "x", "b": "c"}), PodFact("a", "p", {"app": "x"}), False),
        (PodSelector(), PodFact("a", "p", {"app": "x"}), False),
        (
            PodSelector(selects=CLIENT),
            PodFact("a", "p", controller="DaemonSet", selects=frozenset({CLIENT})),
            True,
        ),
        (PodSelector(selects=CLIENT), PodFact("a", "p", selects=frozenset({CLIENT})), False),
        (PodSelector(selects=CLIENT), PodFact("a", "p", controller="DaemonSet"), False),
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
