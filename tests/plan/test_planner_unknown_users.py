"""Every combination of known, unknown and no users, on a GPU and on each of its devices."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest

from nodeagent.plan.desired import DesiredGpu, MigDisabled
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import Policy, Verdict
from nodeagent.plan.planner import plan_gpu
from nodeagent.plan.problems import Code
from nodeagent.plan.steps import (
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetMigMode,
)
from nodeagent.plan.users import IDLE, Usage
from nodeagent.structs import replace
from tests.plan.cards import (
    IN_USE,
    NOT_KNOWN,
    Multiset,
    card,
    layouts,
    wanted,
    with_instances,
)

USES = (IDLE, IN_USE, NOT_KNOWN)
RESETTING = Policy(reset_when_idle=True)


def used_by(gpu: Gpu, on_gpu: Usage, on_devices: tuple[Usage, ...]) -> Gpu:
    """The GPU with these users outside its instances, and on one device after the other."""
    return replace(
        gpu,
        usage=on_gpu,
        instances=tuple(
            replace(i, compute=(replace(i.compute[0], usage=usage),))
            for i, usage in zip(gpu.instances, on_devices, strict=True)
        ),
    )


def of_three(board: str) -> list[frozenset[tuple[str, int]]]:
    """Layouts of three instances, of which a plan may keep some."""
    ways = [way for ways in layouts(board).values() for way in ways if len(way) == 3]
    return ways[:: max(1, len(ways) // 8)]


@pytest.mark.parametrize("board", [pytest.param("h100-80gb", marks=pytest.mark.full), "a30"])
def test_nothing_goes_that_is_not_proven_idle(board: str) -> None:
    """Every combination of users on layouts of three, to every layout of one or two."""
    goals = [key for key in layouts(board) if 1 <= sum(n for _, n in key) <= 2]
    verdicts = {
        judged(with_instances(card(board), sorted(start)), goal, on_gpu, on_devices)
        for start in of_three(board)
        for goal in goals[:: max(1, len(goals) // 3)]
        for on_gpu, *on_devices in product(USES, repeat=4)
    }
    assert verdicts == {Verdict.APPLICABLE, Verdict.BLOCKED}


@pytest.mark.parametrize("unknown_or_used", [IN_USE, NOT_KNOWN])
def test_a_full_card_is_recut_only_where_it_is_proven_idle(unknown_or_used: Usage) -> None:
    """Seven instances, each with or without users, and the GPU with any."""
    full = with_instances(card("h100-80gb"), [("1g.10gb", start) for start in range(7)])
    goal = (("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1))
    verdicts = {
        judged(full, goal, on_gpu, on_devices)
        for on_gpu in USES
        for on_devices in product((IDLE, unknown_or_used), repeat=7)
    }
    assert verdicts == {Verdict.APPLICABLE, Verdict.BLOCKED}


def judged(gpu: Gpu, goal: Multiset, on_gpu: Usage, on_devices: Iterable[Usage]) -> Verdict:
    """Plan for these users; fails the test if anything goes that is not proven idle."""
    now = used_by(gpu, on_gpu, tuple(on_devices))
    result = plan_gpu(wanted(now, goal), now)
    gone = {s.instance for s in result.steps if isinstance(s, DestroyGpuInstance)}
    assert not any(i.in_use for i in now.instances if i.id in gone)
    assert not any(isinstance(s, DestroyComputeInstance) for s in result.steps)
    if on_gpu.in_use:
        assert not gone
        assert not any(isinstance(s, CreateGpuInstance) for s in result.steps)
    if result.verdict is Verdict.BLOCKED:
        assert {p.code for p in result.problems} == {Code.IN_USE}
    if now.idle:
        assert result.verdict is Verdict.APPLICABLE
    return result.verdict


@pytest.mark.parametrize("board", ["h100-80gb", "a30"])
@pytest.mark.parametrize("on_gpu", USES)
@pytest.mark.parametrize("on_device", USES)
def test_the_mode_changes_only_on_what_is_proven_idle(
    board: str, on_gpu: Usage, on_device: Usage
) -> None:
    """Switching MIG off destroys every instance, so all must be idle."""
    smallest = max(card(board).profiles, key=lambda p: len(p.placements)).name
    gpu = used_by(with_instances(card(board), [(smallest, 0)]), on_gpu, (on_device,))
    result = plan_gpu(DesiredGpu(MigDisabled("gpus[0].mig"), "gpus[0]"), gpu, RESETTING)
    idle = not (on_gpu.in_use or on_device.in_use)
    acts = any(isinstance(s, SetMigMode | ResetGpu | DestroyGpuInstance) for s in result.steps)
    assert acts is idle
    assert result.verdict is (Verdict.APPLICABLE if idle else Verdict.BLOCKED)
