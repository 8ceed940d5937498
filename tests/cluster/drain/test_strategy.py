"""The device plugin's MIG strategies: what they call a layout, and which ones they cannot serve."""

from __future__ import annotations

from nodeagent.cluster.drain.device_plugin import (
    FEATURES_LABEL,
    STRATEGY_LABEL,
    Strategy,
    cannot_serve,
    gpus_after,
    offered,
    resource_of,
    strategy_of,
)
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import Access, Gpu, MigMode, ObservedNode
from nodeagent.plan.planner import plan
from nodeagent.structs import replace
from tests.plan.cards import card, divided, wanted, with_instances

H100 = card("h100-80gb")
OFF = replace(H100, mig=MigMode(current=False, pending=False))
BALANCED = with_instances(H100, [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2), ("3g.40gb", 4)])
THREES = with_instances(H100, [("3g.40gb", 0), ("3g.40gb", 4)])
A100_THREES = with_instances(card("a100-80gb"), [("3g.40gb", 0)])
PARTS = divided(H100, "3g.40gb", 0, 1, 1, 1)
T4 = card("t4")
LOST = replace(BALANCED, access=Access.LOST)


def test_the_strategy_is_read_from_the_labels() -> None:
    """Without feature discovery's labels nothing is assumed."""
    cases: list[tuple[dict[str, str], Strategy | None]] = [
        ({STRATEGY_LABEL: "mixed"}, Strategy.MIXED),
        ({STRATEGY_LABEL: "single", FEATURES_LABEL: "1"}, Strategy.SINGLE),
        ({FEATURES_LABEL: "1700000000"}, Strategy.NONE),
        ({STRATEGY_LABEL: "none"}, Strategy.NONE),
        ({}, None),
        ({STRATEGY_LABEL: "another", FEATURES_LABEL: "1"}, None),
    ]
    for labels, strategy in cases:
        assert strategy_of(labels) is strategy


def test_resource_names() -> None:
    """A resource's name has no plus; the plugin writes a dot."""
    cases: list[tuple[str, str]] = [
        ("3g.40gb", "nvidia.com/mig-3g.40gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
        ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
    ]
    for profile, resource in cases:
        assert resource_of(profile) == resource


def test_what_each_strategy_offers() -> None:
    """Whole GPUs and MIG devices under the names that pods ask by."""
    cases: list[tuple[Strategy, tuple[Gpu, ...], dict[str, int]]] = [
        (Strategy.NONE, (OFF, T4), {"nvidia.com/gpu": 2}),
        (Strategy.NONE, (BALANCED,), {"nvidia.com/gpu": 1}),
        (Strategy.SINGLE, (THREES, THREES), {"nvidia.com/gpu": 4}),
        (Strategy.SINGLE, (OFF, T4), {"nvidia.com/gpu": 2}),
        (
            Strategy.MIXED,
            (BALANCED, OFF),
            {
                "nvidia.com/gpu": 1,
                "nvidia.com/mig-1g.10gb": 2,
                "nvidia.com/mig-2g.20gb": 1,
                "nvidia.com/mig-3g.40gb": 1,
            },
        ),
        (Strategy.MIXED, (OFF, LOST), {"nvidia.com/gpu": 1}),
        (Strategy.MIXED, (), {}),
    ]
    for strategy, gpus, counts in cases:
        assert offered(strategy, gpus) == counts


def test_what_a_strategy_cannot_serve() -> None:
    """Each layout with which the plugin would offer nothing, or what no pod can use."""
    cases: list[tuple[Strategy, tuple[Gpu, ...], list[str]]] = [
        (Strategy.NONE, (OFF, T4), []),
        (Strategy.NONE, (BALANCED, OFF), ["strategy is none"]),
        (Strategy.SINGLE, (THREES, THREES), []),
        (Strategy.SINGLE, (OFF, T4), []),
        (Strategy.SINGLE, (PARTS,), []),
        (Strategy.SINGLE, (BALANCED,), ["2 × 1g.10gb"]),
        (Strategy.SINGLE, (THREES, OFF), ["on all GPUs of a node or on none"]),
        (Strategy.SINGLE, (THREES, T4), ["on all GPUs of a node or on none"]),
        (Strategy.SINGLE, (THREES, A100_THREES), ["1 × 3g.40gb of 42 SMs"]),
        (Strategy.SINGLE, (H100,), ["without any device"]),
        (Strategy.SINGLE, (THREES, LOST), []),
        (Strategy.MIXED, (BALANCED, OFF, T4), []),
        (Strategy.MIXED, (BALANCED, H100), ["without any device"]),
        (Strategy.MIXED, (PARTS,), ["3 × 1c.3g.40gb"]),
        (Strategy.MIXED, (H100, PARTS), ["without any device", "no name for a part"]),
    ]
    for strategy, gpus, words in cases:
        numbered = tuple(replace(gpu, index=n, uuid=f"GPU-{n}") for n, gpu in enumerate(gpus))
        problems = cannot_serve(strategy, numbered)
        assert len(problems) == len(words)
        for problem, part in zip(problems, words, strict=True):
            assert part in problem.message
            assert problem.remedy


def test_it_is_found_before_anything_is_touched() -> None:
    """The plan's picture of afterwards is judged, with GPUs it does not name as they are."""
    one, two = (replace(OFF, index=n, uuid=f"GPU-{n}") for n in range(2))
    observed = ObservedNode((one, two))
    asked = wanted(H100, [("3g.40gb", 2)])
    half = plan(DesiredNode({"GPU-0": asked}), observed)
    assert cannot_serve(Strategy.SINGLE, gpus_after(half, observed))
    assert not cannot_serve(Strategy.MIXED, gpus_after(half, observed))
    whole = plan(DesiredNode({"GPU-0": asked, "GPU-1": asked}), observed)
    assert not cannot_serve(Strategy.SINGLE, gpus_after(whole, observed))
    assert not cannot_serve(Strategy.SINGLE, observed.gpus)
