"""What a node should offer, by the plugin's sharing, and how a difference is worded."""

from __future__ import annotations

from nodeagent.cluster.drain.device_plugin import (
    PluginConfiguration,
    Strategy,
    mismatches,
)
from nodeagent.plan.observed import Gpu, MigMode
from nodeagent.structs import replace
from tests.plan.cards import card, with_instances

H100 = card("h100-80gb")
OFF = replace(H100, mig=MigMode(current=False, pending=False))
SPLIT = with_instances(H100, [("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)])
ALIKE = with_instances(H100, [("3g.40gb", 0), ("3g.40gb", 4)])
GPU, ONE, THREE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


def sliced(
    *replicas: tuple[str, int], strategy: Strategy = Strategy.MIXED, rename: bool = False
) -> PluginConfiguration:
    """Time slicing of these."""
    return PluginConfiguration(strategy, replicas, rename)


def by_mps(
    resource: str, replicas: int, strategy: Strategy = Strategy.MIXED
) -> PluginConfiguration:
    """One resource shared by MPS."""
    return PluginConfiguration(strategy, ((resource, replicas),), by_mps=True)


def test_what_is_expected() -> None:
    """Replicas multiply, under another name where the file says so, and only what is shared."""
    cases: list[tuple[PluginConfiguration, dict[str, int]]] = [
        (sliced(), {GPU: 2, ONE: 2, THREE: 1}),
        (sliced((GPU, 4)), {GPU: 8, ONE: 2, THREE: 1}),
        (sliced((GPU, 4), rename=True), {f"{GPU}.shared": 8, ONE: 2, THREE: 1}),
        (sliced((ONE, 3), (GPU, 2)), {GPU: 4, ONE: 6, THREE: 1}),
        (sliced(("nvidia.com/mig-7g.80gb", 9)), {GPU: 2, ONE: 2, THREE: 1}),
        (by_mps(GPU, 10), {GPU: 20, ONE: 2, THREE: 1}),
    ]
    for plugin, counts in cases:
        assert plugin.offer((SPLIT, OFF, OFF)) == dict(sorted(counts.items()))


def test_nothing_is_expected_of_nothing() -> None:
    """A node without GPUs offers none, and no zero is awaited."""
    assert sliced((GPU, 4)).offer(()) == {}


def test_nothing_is_expected_where_it_is_not_known() -> None:
    """Neither without the strategy, nor where the number of replicas is not determined."""
    assert PluginConfiguration(None).offer((SPLIT,)) is None
    assert PluginConfiguration(Strategy.MIXED, None).offer((SPLIT,)) is None


def test_what_cannot_be_shared() -> None:
    """MPS on MIG devices, which the plugin refuses."""
    cases: list[tuple[tuple[Gpu, ...], PluginConfiguration, list[str]]] = [
        ((SPLIT, OFF), by_mps(GPU, 4), []),
        ((SPLIT,), by_mps(ONE, 4), [ONE]),
        ((ALIKE,), by_mps(GPU, 4, Strategy.SINGLE), [GPU]),
        ((OFF,), by_mps(GPU, 4, Strategy.SINGLE), []),
        ((OFF,), by_mps(ONE, 4), []),
        ((SPLIT,), sliced((ONE, 4)), []),
    ]
    for gpus, plugin, words in cases:
        problems = plugin.refuses(gpus)
        assert len(problems) == len(words)
        for problem, part in zip(problems, words, strict=True):
            assert part in problem.message


def test_a_mismatch_is_worded() -> None:
    """What is there, what should be, and where to look; what others offer is not our business."""
    cases: list[tuple[dict[str, str], list[str]]] = [
        ({ONE: "2", THREE: "1"}, []),
        ({ONE: "2", THREE: "1", GPU: "0", "cpu": "8"}, []),
        ({ONE: "2", THREE: "1", "nvidia.com/gpumem": "7", "nvidia.com/hostdev": "2"}, []),
        ({ONE: "1", THREE: "1"}, [f"offers 1 {ONE} where it should offer 2"]),
        ({ONE: "2"}, [f"offers 0 {THREE} where it should offer 1"]),
        ({ONE: "2", THREE: "1", GPU: "1"}, [f"offers 1 {GPU} where it should offer none"]),
        (
            {"nvidia.com/mig-7g.80gb": "1"},
            [f"0 {ONE}", f"0 {THREE}", "1 nvidia.com/mig-7g.80gb where it should offer none"],
        ),
        ({ONE: "2k", THREE: "1"}, [f"offers 2k {ONE}"]),
    ]
    for allocatable, words in cases:
        problems = mismatches({ONE: 2, THREE: 1}, allocatable, plugin=("-A -l app=plugin",))
        assert len(problems) == len(words)
        for problem, part in zip(problems, words, strict=True):
            assert part in problem.message
            assert "pods -A -l app=plugin`" in problem.remedy
