"""A plan's goal and claims on one GPU: what each leaves to the other."""

from pathlib import Path

import pytest

from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.offering.gpu_rules import FixedInstance, Planned
from nodeagent.claims.offering.planned import (
    FILE_NAME,
    PlannedPlaces,
    goal_with_claims,
    planned,
    planned_places_file,
)
from nodeagent.claims.parts import to_prepare, to_release
from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, MigEnabled, Reserved
from nodeagent.plan.observed import Access, Gpu, Placement
from nodeagent.plan.plan import Verdict
from nodeagent.plan.planner import plan_gpu
from nodeagent.plan.shares import ComputeMode, Share, Sharing, TimeSlice
from nodeagent.plan.steps import StartMps
from nodeagent.structs import replace
from tests.claims.boards import mig_off
from tests.claims.samples import mig_device, mig_result, record, whole_device
from tests.plan.cards import Place, card, devices, divided, wanted, with_instances
from tests.plan.daemons import A, daemon, give, without_mig

PATH = "gpus[0]"
H100 = card("h100-80gb")
ONE = [("1g.10gb", 1), ("3g.40gb", 1)]


def fixed_record(gpu: Gpu, *places: tuple[str, int]) -> ClaimRecord:
    """A claim that uses these instances of the plan's."""
    return record(
        *(
            mig_device(
                gpu=gpu.uuid,
                profile=profile,
                placement=_placement(gpu, profile, start),
                fixed=True,
                result=mig_result(device=f"mig-{profile}-{start}".replace(".", "-")),
            )
            for profile, start in places
        )
    )


def _placement(gpu: Gpu, profile: str, start: int) -> Placement:
    found = gpu.profile(profile)
    assert found
    return next(p for p in found.placements if p.start == start)


# --- what claims have of the plan -----------------------------------------------------------------


def test_a_layout_that_is_there() -> None:
    gpu = with_instances(H100, [("1g.10gb", 2), ("3g.40gb", 4)])
    goal = wanted(H100, ONE)
    there = planned(goal, gpu, ())
    assert set(there.fixed) == {FixedInstance("1g.10gb", 2), FixedInstance("3g.40gb", 4)}
    assert (there.goal, there.is_there) == (goal, True)


@pytest.mark.parametrize(
    ("instances", "fixed"),
    [
        ([], set()),
        ([("3g.40gb", 4)], {FixedInstance("3g.40gb", 4)}),
        ([("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)], {FixedInstance("3g.40gb", 4)}),
        (
            [("1g.10gb", 0), ("2g.20gb", 2), ("3g.40gb", 4)],
            {FixedInstance("1g.10gb", 0), FixedInstance("3g.40gb", 4)},
        ),
    ],
)
def test_a_layout_that_is_not_there_yet(
    instances: list[tuple[str, int]], fixed: set[FixedInstance]
) -> None:
    """Missing, one too many, one that is not asked for: fixed is what surely stays."""
    found = planned(wanted(H100, ONE), with_instances(H100, instances), ())
    assert set(found.fixed) == fixed
    assert not found.is_there


def test_places_that_the_plan_names() -> None:
    goal = devices(H100, ("1g.10gb", 1, 5))
    elsewhere = planned(goal, with_instances(H100, [("1g.10gb", 3)]), ())
    assert (elsewhere.fixed, elsewhere.is_there) == ((), False)
    there = planned(goal, with_instances(H100, [("1g.10gb", 5)]), ())
    assert (there.fixed, there.is_there) == ((FixedInstance("1g.10gb", 5),), True)


def test_instances_of_claims_are_not_the_plans() -> None:
    """Neither those that its goal was told of, nor those that came since."""
    gpu = with_instances(H100, [("1g.10gb", 2), ("1g.10gb", 6)])
    held = (Reserved("1g.10gb", Placement(6, 1), "claim team/trainer"),)
    goal = wanted(H100, [("1g.10gb", 1)])
    claims = [record(mig_device(gpu=gpu.uuid, placement=Placement(6, 1)))]
    for found in (planned(goal, gpu, claims), planned(replace(goal, reserved=held), gpu, ())):
        assert (found.fixed, found.is_there) == ((FixedInstance("1g.10gb", 2),), True)


def test_what_nobody_can_have_alone() -> None:
    """An instance that the plan divides, and one that it shares by MPS, are kept back."""
    gpu = give(with_instances(H100, [("1g.10gb", 0)]), daemon(A))
    gpu = divided(gpu, "3g.40gb", 4, 1, 1, 1)
    goal = devices(H100, ("1g.10gb", 1, None), *[("3g.40gb", 1, None)] * 3)
    found = planned(goal, gpu, ())
    kept = {one.profile: one.kept_back for one in found.fixed}
    assert kept == {"3g.40gb": "the plan divides it", "1g.10gb": "the plan shares it by MPS"}
    assert found.is_there


def test_a_daemon_of_claims_is_not_the_plans(places: PlannedPlaces) -> None:
    """The instance is still for claims, and comes back where it was, shared or not."""
    shares = (Share("share-1", None, 1024, 1.0, total=1024),)
    theirs = replace(A, sharing=Sharing(shares, "report"))
    gpu = give(with_instances(H100, [("1g.10gb", 3)]), daemon(theirs))
    goal = wanted(H100, [("1g.10gb", 1)])
    [fixed] = planned(goal, gpu, ()).fixed
    assert fixed == FixedInstance("1g.10gb", 3)
    assert made(noted(places, goal, gpu), goal) == {("1g.10gb", 3)}


def test_goals_without_a_layout() -> None:
    off = DesiredGpu(MigDisabled(PATH), PATH, dra=False)
    assert planned(off, H100, ()) == Planned(off)
    assert planned(off, H100, ()).fixes("gpu")
    assert not planned(DesiredGpu(MigEnabled(PATH), PATH), H100, ()).fixes("gpu")


# --- what the plan has of claims ------------------------------------------------------------------


def test_an_instance_in_a_claim_is_not_moved() -> None:
    """Where its place is lost, by a reboot say, it comes back just there, whatever is best."""
    for start in range(7):
        goal = goal_with_claims(
            wanted(H100, [("1g.10gb", 1)]), H100, (), [fixed_record(H100, ("1g.10gb", start))]
        )
        [made] = plan_gpu(goal, H100).after.instances
        assert made.placement.start == start


def test_a_whole_gpu_in_a_claim() -> None:
    """It stays one: MIG is not switched on, and a plan that leaves it whole goes on."""
    gpu = mig_off(H100)
    whole = whole_device(gpu.uuid, fixed=True)
    using = [record(whole)]
    on = plan_gpu(goal_with_claims(wanted(H100, ONE), gpu, (), using), gpu)
    assert on.verdict is Verdict.BLOCKED
    assert "claim team/trainer" in on.problems[0].message
    off = DesiredGpu(MigDisabled(PATH), PATH)
    assert goal_with_claims(off, gpu, (), using) == off


def test_a_plan_that_would_share_what_a_claim_uses() -> None:
    """Its daemon would keep the claim's pods from their device, so it waits for the claim."""
    gpu = with_instances(H100, [("1g.10gb", 0), ("1g.10gb", 1)])
    using = [fixed_record(gpu, ("1g.10gb", 1))]
    layout = wanted(gpu, [("1g.10gb", 2)])
    one, other = layout.mig.instances if isinstance(layout.mig, Layout) else ()
    one_shared = Layout((replace(one, mps=A), other), PATH)
    found = plan_gpu(goal_with_claims(replace(layout, mig=one_shared), gpu, (), using), gpu)
    [start] = [step for step in found.steps if isinstance(step, StartMps)]
    assert start.placement == Placement(0, 1)
    full = wanted(gpu, [("1g.10gb", 7)])
    assert isinstance(full.mig, Layout)
    all_shared = Layout(tuple(replace(one, mps=A) for one in full.mig.instances), PATH)
    found = plan_gpu(goal_with_claims(replace(full, mig=all_shared), gpu, (), using), gpu)
    assert found.verdict is Verdict.BLOCKED
    assert "claim team/trainer" in found.problems[0].message
    whole = whole_device(gpu.uuid, fixed=True)
    bare = without_mig(gpu)
    for mig in (None, MigDisabled(PATH)):
        goal = goal_with_claims(DesiredGpu(mig, PATH, mps=A), bare, (), [record(whole)])
        assert plan_gpu(goal, bare).verdict is Verdict.BLOCKED


def test_a_claim_that_only_uses_changes_nothing() -> None:
    """Neither the plan's daemons nor its time slice end when it comes or goes."""
    whole = whole_device(H100.uuid, fixed=True)
    exclusive = ComputeMode.EXCLUSIVE_PROCESS
    served = without_mig(H100, mps=daemon(A), earlier_mode=ComputeMode.DEFAULT)
    sliced = without_mig(H100, time_slice=TimeSlice.LONG, earlier_time_slice=TimeSlice.DEFAULT)
    divided = give(with_instances(H100, [("1g.10gb", 0), ("3g.40gb", 4)]), daemon(A))
    for gpu, using in (
        (replace(served, compute_mode=exclusive), record(whole)),
        (sliced, record(whole)),
        (divided, fixed_record(divided, ("3g.40gb", 4))),
    ):
        for goal in (to_prepare(using, gpu, ()), to_release(using, gpu, ())):
            assert plan_gpu(goal, gpu).verdict is Verdict.IN_SYNC


def test_what_does_not_bind_the_plan() -> None:
    goal = wanted(H100, ONE)
    looking = whole_device(H100.uuid, admin_access=True)
    for one in (record(looking), fixed_record(replace(H100, uuid="GPU-2"), ("1g.10gb", 3))):
        assert goal_with_claims(goal, H100, (), [one]) == goal
    silent = replace(H100, access=Access.LOST, profiles=())
    held = (Reserved("", None, "a record"),)
    using = [fixed_record(H100, ("1g.10gb", 3))]
    assert goal_with_claims(goal, silent, held, using) == replace(goal, reserved=held)


# --- places kept for the next start ---------------------------------------------------------------

TWO = wanted(H100, [("1g.10gb", 2)])


@pytest.fixture
def places(tmp_path: Path) -> PlannedPlaces:
    return PlannedPlaces(planned_places_file(tmp_path / FILE_NAME))


def noted(places: PlannedPlaces, goal: DesiredGpu, gpu: Gpu) -> PlannedPlaces:
    """The agent of the next start, after this one has seen the GPU."""
    places.record([gpu], {gpu.uuid: goal}, ())
    following = PlannedPlaces(planned_places_file(places.file.path))
    following.load()
    return following


def made(places: PlannedPlaces, goal: DesiredGpu, gpu: Gpu = H100) -> set[Place]:
    after = plan_gpu(places.as_before(goal, gpu), gpu).after
    return {(one.profile, one.placement.start) for one in after.instances}


def test_a_layout_comes_back_where_it_was(places: PlannedPlaces) -> None:
    before = [("1g.10gb", 1), ("1g.10gb", 3)]
    assert made(places, TWO) != {*before}
    following = noted(places, TWO, with_instances(H100, before))
    assert made(following, TWO) == {*before}
    assert made(following, TWO, with_instances(H100, before[1:])) == {*before}


def test_what_lies_elsewhere_is_not_moved(places: PlannedPlaces) -> None:
    """Another program made it there since; what is in use is kept in any case."""
    following = noted(places, TWO, with_instances(H100, [("1g.10gb", 1), ("1g.10gb", 3)]))
    there = with_instances(H100, [("1g.10gb", 5)])
    assert following.as_before(TWO, there) == TWO


@pytest.mark.parametrize(
    "goal",
    [
        wanted(H100, [("1g.10gb", 1)]),
        wanted(H100, [("1g.10gb", 3)]),
        wanted(H100, [("2g.20gb", 2)]),
        devices(H100, ("1g.10gb", 1, 0), ("1g.10gb", 1, None)),
        DesiredGpu(MigEnabled("gpus[0]"), "gpus[0]"),
    ],
)
def test_another_plan_is_laid_out_anew(places: PlannedPlaces, goal: DesiredGpu) -> None:
    following = noted(places, TWO, with_instances(H100, [("1g.10gb", 1), ("1g.10gb", 3)]))
    assert following.as_before(goal, H100) == goal


def test_places_that_claims_have_by_now(places: PlannedPlaces) -> None:
    following = noted(places, TWO, with_instances(H100, [("1g.10gb", 1), ("1g.10gb", 3)]))
    held = (Reserved("1g.10gb", Placement(3, 1), "claim team/trainer"),)
    goal = replace(TWO, reserved=held)
    assert following.as_before(goal, H100) == goal


def test_only_what_is_there_is_noted(places: PlannedPlaces) -> None:
    """A layout with something missing is not, and what a claim holds is not the plan's."""
    one = with_instances(H100, [("1g.10gb", 1)])
    assert noted(places, TWO, one).as_before(TWO, H100) == TWO
    both = with_instances(H100, [("1g.10gb", 1), ("1g.10gb", 3)])
    claimed = mig_device(gpu=H100.uuid, placement=Placement(3, 1))
    places.record([both], {H100.uuid: TWO}, [record(claimed)])
    assert places.as_before(TWO, H100) == TWO
    goal = wanted(H100, [("1g.10gb", 1)])
    places.record([both], {H100.uuid: goal}, [record(claimed)])
    assert made(places, goal) == {("1g.10gb", 1)}


def test_divided_and_shared_instances(places: PlannedPlaces) -> None:
    """Each part belongs to its instance, and the daemon comes back where it was."""
    gpu = give(with_instances(H100, [("1g.10gb", 0), ("1g.10gb", 2)]), None, daemon(A))
    gpu = divided(gpu, "3g.40gb", 4, 1, 1, 1)
    goal = devices(H100, *[("3g.40gb", 1, None)] * 3, *[("1g.10gb", 1, None)] * 2)
    assert isinstance(goal.mig, Layout)
    *others, last = goal.mig.instances
    goal = replace(goal, mig=replace(goal.mig, instances=(*others, replace(last, mps=A))))
    found = noted(places, goal, gpu).as_before(goal, H100)
    assert isinstance(found.mig, Layout)
    assert [one.start for one in found.mig.instances] == [4, 4, 4, 0, 2]
