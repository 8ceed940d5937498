"""Places of planned instances: noted while they are there, taken again after a reboot."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.claims.offering.planned_places import FILE_NAME, PlannedPlaces, planned_places_file
from nodeagent.plan.desired import DesiredGpu, Layout, MigEnabled, Reserved
from nodeagent.plan.observed import Gpu, Placement
from nodeagent.plan.planner import plan_gpu
from nodeagent.structs import replace
from tests.claims.samples import mig_device, record
from tests.plan.cards import Place, card, devices, divided, wanted, with_instances
from tests.plan.daemons import A, daemon, give

H100 = card("h100-80gb")
TWO = wanted(H100, [("1g.10gb", 2)])


@pytest.fixture
def places(tmp_path: Path) -> PlannedPlaces:
    """Of a machine that was never started before."""
    return PlannedPlaces(planned_places_file(tmp_path / FILE_NAME))


def noted(places: PlannedPlaces, goal: DesiredGpu, gpu: Gpu) -> PlannedPlaces:
    """The agent of the next start, after this one has seen the GPU."""
    places.note([gpu], {gpu.uuid: goal}, ())
    following = PlannedPlaces(planned_places_file(places.file.path))
    following.load()
    return following


def made(places: PlannedPlaces, goal: DesiredGpu, gpu: Gpu = H100) -> set[Place]:
    """What the plan makes of the GPU."""
    after = plan_gpu(places.as_before(goal, gpu), gpu).after
    return {(one.profile, one.placement.start) for one in after.instances}


def test_a_layout_comes_back_where_it_was(places: PlannedPlaces) -> None:
    """All of it, and the rest where some is there already."""
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
    """The places are those of the layout that was there."""
    following = noted(places, TWO, with_instances(H100, [("1g.10gb", 1), ("1g.10gb", 3)]))
    assert following.as_before(goal, H100) == goal


def test_places_that_claims_have_by_now(places: PlannedPlaces) -> None:
    """The plan goes round them."""
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
    places.note([both], {H100.uuid: TWO}, [record(claimed)])
    assert places.as_before(TWO, H100) == TWO
    goal = wanted(H100, [("1g.10gb", 1)])
    places.note([both], {H100.uuid: goal}, [record(claimed)])
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


def test_a_file_that_cannot_be_written_or_read(places: PlannedPlaces) -> None:
    """It is a problem with words, and the plan goes on without."""
    assert places.file.path
    places.file.path.mkdir()
    places.note([with_instances(H100, [("1g.10gb", 1), ("1g.10gb", 3)])], {H100.uuid: TWO}, ())
    assert places.file.problem
    assert "planned-places" in places.file.problem.message
    assert places.as_before(TWO, H100) == TWO
    places.file.path.rmdir()
    places.file.path.write_text("{}")
    places.load()
    assert "after a reboot they may be made in other places" in str(places.file.problem)
