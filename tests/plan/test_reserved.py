"""Goals beside what is reserved: each sees and changes its own part of the GPU alone."""

import random
from collections import Counter

import pytest

from nodeagent.plan import desired
from nodeagent.plan.observed import Gpu, MigMode, ObservedNode
from nodeagent.plan.plan import Policy, Verdict
from nodeagent.plan.planner import layout_of, plan_gpu
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import ComputeMode, TimeSlice
from nodeagent.plan.steps import CreateGpuInstance, DestroyGpuInstance, SetMigMode
from nodeagent.structs import replace
from tests.plan.cards import Place, card, layouts, places, wanted, with_instances
from tests.plan.daemons import CLIENT, A, B, daemon, give, without_mig

BOARDS = ["a30", "h100-80gb", "rtx-pro-6000"]


def reserved(
    gpu: Gpu, held: set[Place], owner: str = "claim team/other"
) -> tuple[desired.Reserved, ...]:
    """These places, each held by `owner`."""
    found = []
    for name, start in sorted(held):
        profile = gpu.profile(name)
        assert profile is not None
        placement = next(p for p in profile.placements if p.start == start)
        found.append(desired.Reserved(name, placement, owner))
    return tuple(found)


def goal(gpu: Gpu, own: Place | None, others: set[Place]) -> desired.DesiredGpu:
    """What one claim makes the goal: its own instance, or none any more, beside the others."""
    instances: tuple[desired.WantedInstance, ...] = ()
    if own is not None:
        profile = gpu.profile(own[0])
        assert profile is not None
        instances = (desired.WantedInstance(own[0], profile.slices, own[1], "claim team/mine"),)
    layout = desired.Layout(instances, "claim team/mine")
    return desired.DesiredGpu(layout, "claim team/mine", reserved=reserved(gpu, others))


def ways_of(board: str, seed: int, most: int) -> list[frozenset[Place]]:
    """Layouts with their placements; all of them where there are no more than `most`."""
    ways = [way for ways in layouts(board).values() for way in ways]
    return ways if len(ways) <= most else random.Random(seed).sample(ways, most)


@pytest.mark.parametrize("board", BOARDS)
def test_one_instance_comes_and_goes_beside_all_others(board: str) -> None:
    """In each legal layout any instance can come last and go first, by one step, others in use."""
    empty = card(board)
    for way in ways_of(board, seed=1, most=300):
        for own in way:
            others = set(way - {own})
            before = with_instances(empty, sorted(others), used=range(len(others)))
            made = plan_gpu(goal(empty, own, others), before)
            [step] = made.steps
            assert isinstance(step, CreateGpuInstance)
            assert places(made.after) == way
            at = sorted(way).index(own)
            full = with_instances(empty, sorted(way), used=[n for n in range(len(way)) if n != at])
            assert plan_gpu(goal(empty, own, others), full).verdict is Verdict.IN_SYNC
            released = plan_gpu(goal(empty, None, others), full)
            [gone] = released.steps
            assert isinstance(gone, DestroyGpuInstance)
            assert places(released.after) == others
            kept = plan_gpu(
                goal(empty, None, others), with_instances(empty, sorted(way), used=[at])
            )
            assert (kept.verdict, kept.steps) == (Verdict.BLOCKED, ())


@pytest.mark.parametrize("board", BOARDS)
def test_a_plan_beside_claims_is_possible_exactly_where_there_is_a_layout_of_both(
    board: str,
) -> None:
    """By brute force over all layouts; no claimed instance goes, and one in the way is named."""
    empty, everything = card(board), layouts(board)
    rng = random.Random(2)
    for way in ways_of(board, seed=3, most=150):
        held = set(rng.sample(sorted(way), rng.randint(1, len(way))))
        here = with_instances(empty, sorted(way))
        counts = rng.choice(list(everything))
        goal = replace(wanted(empty, counts), reserved=reserved(empty, held))
        result = plan_gpu(goal, here)
        both = tuple(sorted((Counter(dict(counts)) + Counter(n for n, _ in held)).items()))
        if any(held <= layout for layout in everything.get(both, ())):
            assert result.verdict in (Verdict.APPLICABLE, Verdict.IN_SYNC)
            assert held <= places(result.after)
            assert Counter(n for n, _ in places(result.after) - held) == Counter(dict(counts))
        else:
            assert (result.verdict, result.steps) == (Verdict.BLOCKED, ())
            [problem] = result.problems
            assert problem.code is Code.IN_USE
            assert "claim team/other" in problem.message


def test_what_is_reserved_and_not_there_yet_keeps_its_place() -> None:
    """A claim that was admitted and whose instance is still to come."""
    empty = card("h100-80gb")
    mine = replace(wanted(empty, [("7g.80gb", 1)]), reserved=reserved(empty, {("1g.10gb", 6)}))
    result = plan_gpu(mine, empty)
    assert result.verdict is Verdict.BLOCKED
    [problem] = result.problems
    assert problem.message == (
        "GPU 0 (NVIDIA H100 80GB HBM3) has no room for 7g.80gb beside 1g.10gb at slice 6 "
        "(claim team/other)"
    )
    smaller = replace(wanted(empty, [("3g.40gb", 1)]), reserved=mine.reserved)
    assert places(plan_gpu(smaller, empty).after) == {("3g.40gb", 0)}
    never = replace(wanted(empty, [("7g.80gb", 2)]), reserved=mine.reserved)
    assert plan_gpu(never, empty).verdict is Verdict.UNSATISFIABLE


def test_the_mode_stays_on_for_a_claim() -> None:
    """MIG mode goes off only with nothing reserved; where it is off, nothing is to be done."""
    gpu = with_instances(card("h100-80gb"), [("1g.10gb", 0)])
    off = desired.DesiredGpu(desired.MigDisabled("gpus[0].mig"), "gpus[0]")
    beside = replace(off, reserved=reserved(gpu, {("1g.10gb", 0)}))
    refused = plan_gpu(beside, gpu)
    assert (refused.verdict, refused.steps) == (Verdict.BLOCKED, ())
    assert "claim team/other" in refused.problems[0].message
    already = replace(gpu, mig=MigMode(current=False, pending=False), instances=())
    assert plan_gpu(beside, already).verdict is Verdict.IN_SYNC


def test_a_gpu_held_as_a_whole_is_not_changed() -> None:
    """No step of any kind, and the holder is named."""
    gpu = replace(card("h100-80gb"), mig=MigMode(current=False, pending=False))
    goal = wanted(gpu, [("1g.10gb", 7)])
    held = replace(goal, reserved=(desired.Reserved("", None, "claim team/whole"),))
    assert [type(step) for step in plan_gpu(goal, gpu).steps][:1] == [SetMigMode]
    refused = plan_gpu(held, gpu)
    assert (refused.verdict, refused.steps) == (Verdict.BLOCKED, ())
    assert "the whole GPU (claim team/whole)" in refused.problems[0].message


def test_a_claim_switches_mig_on_where_the_gpu_is_empty() -> None:
    """The mode first, then the instance; not while a process uses the GPU."""
    gpu = replace(card("h100-80gb"), mig=MigMode(current=False, pending=False))
    made = plan_gpu(goal(gpu, ("1g.10gb", 6), set()), gpu)
    assert [type(step) for step in made.steps] == [SetMigMode, CreateGpuInstance]
    assert places(made.after) == {("1g.10gb", 6)}


def test_daemons_beside_are_not_touched() -> None:
    gpu = card("h100-80gb")
    others = {("2g.20gb", 0), ("1g.10gb", 4)}
    here = give(with_instances(gpu, sorted(others)), daemon(A), daemon(A, CLIENT))
    made = plan_gpu(goal(gpu, ("1g.10gb", 6), others), here, Policy())
    assert [type(step) for step in made.steps] == [CreateGpuInstance]
    gone = plan_gpu(goal(gpu, None, others), made.after, Policy())
    assert [type(step) for step in gone.steps] == [DestroyGpuInstance]


def test_what_was_there_leaves_out_what_is_reserved() -> None:
    """The way back after a failed step restores this goal's own part alone."""
    gpu = card("h100-80gb")
    mine, others = ("2g.20gb", 0), {("1g.10gb", 4), ("1g.10gb", 5)}
    before = with_instances(gpu, [mine, *sorted(others)])
    back = layout_of(before, goal(gpu, mine, others))
    theirs_gone = with_instances(gpu, [mine])
    assert plan_gpu(back, theirs_gone).verdict is Verdict.IN_SYNC
    own_gone = with_instances(gpu, sorted(others))
    assert places(plan_gpu(back, own_gone).after) == {mine, *others}


@pytest.mark.parametrize("owners", [["claim team/a"], [""], ["claim team/a", ""]])
def test_what_ends_who_is_in_the_way(owners: list[str]) -> None:
    """Claims are listed, and what no claim has is shown with how it is removed."""
    gpu = card("h100-80gb")
    held = [one for owner in owners for one in reserved(gpu, {("1g.10gb", 0)}, owner)]
    remedy = desired.in_the_way(gpu, held, "no room", "gpus[0]").remedy
    assert ("`nodeagent claims`" in remedy) is any(owners)
    assert ("`nodeagent status --gpu 0`" in remedy) is not all(owners)


def test_a_goal_is_beside_the_claims_of_its_gpu() -> None:
    """Of a GPU that is not there, nothing is known, and its goal stays."""
    gpu = card("h100-80gb")
    held = reserved(gpu, {("1g.10gb", 0)})
    goals = {uuid: wanted(gpu, [("1g.10gb", 1)]) for uuid in (gpu.key, "GPU-gone")}
    found = desired.node_with_claims(
        desired.DesiredNode(goals),
        ObservedNode((gpu,)),
        lambda goal, _: replace(goal, reserved=held),
    )
    assert {key: goal.reserved for key, goal in found.gpus.items()} == {
        gpu.key: held,
        "GPU-gone": (),
    }


def test_how_a_gpu_held_as_a_whole_is_shared_is_its_owners() -> None:
    """Its daemon, compute mode and time slice stay; a goal that shares it otherwise is refused."""
    served = without_mig(
        card("h100-80gb"),
        mps=daemon(A),
        compute_mode=ComputeMode.EXCLUSIVE_PROCESS,
        earlier_mode=ComputeMode.DEFAULT,
    )
    turns = without_mig(
        card("h100-80gb"), time_slice=TimeSlice.LONG, earlier_time_slice=TimeSlice.DEFAULT
    )
    off = desired.DesiredGpu(desired.MigDisabled("gpus[0].mig"), "gpus[0]")
    held = replace(off, reserved=(desired.Reserved("", None, "claim team/whole", shared=True),))
    for gpu in (served, turns):
        assert plan_gpu(off, gpu).steps
        assert plan_gpu(held, gpu).verdict is Verdict.IN_SYNC
        assert plan_gpu(layout_of(gpu, held), gpu).verdict is Verdict.IN_SYNC
    for goal_of_a_plan in (replace(held, mps=B), replace(held, time_slice=TimeSlice.SHORT)):
        refused = plan_gpu(goal_of_a_plan, served)
        assert (refused.verdict, refused.steps) == (Verdict.BLOCKED, ())
        assert "the whole GPU (claim team/whole)" in refused.problems[0].message
