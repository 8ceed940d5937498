"""A plan as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.plan.desired import DesiredGpu, Layout, WantedInstance
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuPlan, NodePlan, Verdict
from nodeagent.plan.planner import plan_gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.steps import CreateGpuInstance, DestroyGpuInstance
from nodeagent.structs import replace
from nodeagent.terminal.page import plain_text
from nodeagent.terminal.plan_page import plan_page

if TYPE_CHECKING:
    from tests.terminal.conftest import Gpus


def _change(gpus: Gpus, index: int = 0) -> GpuPlan:
    """Two idle small ones make room for a large one beside one in use."""
    small = [gpus.instance(7 + n, "1g.10gb", n, 1) for n in range(2)]
    large = gpus.instance(2, "3g.40gb", 4, 4, usage=gpus.python)
    before = gpus.gpu(*small, large, index=index)
    after = gpus.gpu(gpus.instance(1, "3g.40gb", 0, 4, parts=3), large, index=index)
    destroys = tuple(
        DestroyGpuInstance(before.uuid, i.id, i.profile, i.placement, (), "not in the plan")
        for i in small
    )
    place = after.instances[0].placement
    create = CreateGpuInstance(before.uuid, 9, "3g.40gb", place, (1, 1, 1), "asked for")
    return GpuPlan(before, Verdict.APPLICABLE, (*destroys, create), after)


def test_before_and_after_are_drawn_to_scale_with_what_happens(gpus: Gpus) -> None:
    """The picture says of each instance whether it goes, stays, is new or is in use."""
    page = plain_text(plan_page(NodePlan(Verdict.APPLICABLE, (_change(gpus),)), 80))
    assert (
        page
        == """\
GPU 0  NVIDIA H100 80GB HBM3  GPU-0
  can be applied
          0       1       2       3       4       5       6       7
          ┌───────┬───────┬───────────────┬───────────────────────────────┐
  before  │1g.10gb│1g.10gb│               │3g.40gb                        │
          │goes   │goes   │               │in use                         │
          └───────┴───────┴───────────────┴───────────────────────────────┘
          ┌───────────────────────────────┬───────────────────────────────┐
  after   │3 x 1c.3g.40gb                 │3g.40gb                        │
          │new                            │in use                         │
          └───────────────────────────────┴───────────────────────────────┘
   1. destroy 1g.10gb at 0  (not in the plan)
   2. destroy 1g.10gb at 1  (not in the plan)
   3. create 3g.40gb at 0, divided into 3 x 1c  (asked for)

The plan can be applied: 3 steps on 1 GPU. Nothing was touched.
"""
    )


def test_gpus_with_the_same_picture_are_shown_once(gpus: Gpus) -> None:
    """Eight GPUs alike take the room of one; one that differs is shown apart."""
    alike = [_change(gpus, index) for index in (0, 1, 2, 5)]
    other = GpuPlan(gpus.gpu(index=3), Verdict.IN_SYNC, (), gpus.gpu(index=3))
    page = plain_text(plan_page(NodePlan(Verdict.APPLICABLE, (*alike, other)), 80))
    assert "GPUs 0-2, 5  4 x NVIDIA H100 80GB HBM3\n" in page
    assert "GPU 3  NVIDIA" in page
    assert page.count("3. create") == 1
    assert "12 steps on 4 GPUs" in page


def test_different_models_are_never_shown_as_one(gpus: Gpus) -> None:
    """The same picture of another card keeps that card's name."""
    first, second = _change(gpus), _change(gpus, 1)
    other = replace(second.before, name="NVIDIA B200")
    plan = NodePlan(Verdict.APPLICABLE, (first, replace(second, before=other)))
    page = plain_text(plan_page(plan, 80))
    assert "GPU 0  NVIDIA H100 80GB HBM3" in page
    assert "GPU 1  NVIDIA B200" in page


def test_what_will_still_be_missing_is_not_called_done(gpus: Gpus) -> None:
    """A plan that leaves something for later can be applied partly only."""
    problem = Problem(code=Code.RESET_REQUIRED, message="it waits for a reset")
    plan = NodePlan(Verdict.APPLICABLE, (replace(_change(gpus), problems=(problem,)),))
    page = plain_text(plan_page(plan, 80)).splitlines()
    assert page[1] == "  can be applied partly"
    assert page[-1].startswith("The plan can be applied partly: 3 steps")


def test_problems_are_shown_with_their_place_and_remedy(gpus: Gpus) -> None:
    """Who reads the page learns what stands in the way and what to do about it."""
    problem = Problem(
        code=Code.IN_USE, message="in use by pid 4711 (python)", remedy="end it", path="gpus[0].mig"
    )
    gpu = gpus.gpu(gpus.instance(1, "3g.40gb", 0, 4, usage=gpus.python))
    blocked = GpuPlan(gpu, Verdict.BLOCKED, (), gpu, (problem,))
    page = plain_text(plan_page(NodePlan(Verdict.BLOCKED, (blocked,)), 80))
    assert "  ! gpus[0].mig: in use by pid 4711 (python)\n    end it\n" in page
    assert "The plan is blocked. Nothing was touched." in page


def test_nothing_to_do_is_one_picture(gpus: Gpus) -> None:
    """A GPU in sync is drawn as it is, not twice."""
    gpu = gpus.gpu(gpus.instance(1, "3g.40gb", 0, 4))
    page = plain_text(plan_page(NodePlan(Verdict.IN_SYNC, (_in_sync(gpu),)), 80))
    assert "now " in page
    assert "before" not in page
    assert "The plan is in sync: nothing to do." in page


def _in_sync(gpu: Gpu) -> GpuPlan:
    return GpuPlan(gpu, Verdict.IN_SYNC, (), gpu)


def test_mig_mode_is_named_where_there_is_no_instance(gpus: Gpus) -> None:
    """Off, waiting for a reset, and on but empty are distinct; without MIG nothing is drawn."""
    pages = {
        name: plain_text(plan_page(NodePlan(Verdict.IN_SYNC, (_in_sync(gpu),)), 80))
        for name, gpu in {
            "off": gpus.off(),
            "waiting": gpus.off(pending=True),
            "empty": gpus.gpu(),
            "none": replace(gpus.gpu(), mig=None),
        }.items()
    }
    assert "│MIG off  " in pages["off"]
    assert "│MIG off, on after a reset" in pages["waiting"]
    assert "│MIG on, no instances" in pages["empty"]
    assert "│" not in pages["none"]


def test_half_made_instances_are_called_so(gpus: Gpus) -> None:
    """A GPU instance without compute instance is no device, and says so."""
    gpu = gpus.gpu(gpus.instance(1, "3g.40gb", 0, 4, parts=0))
    page = plain_text(plan_page(NodePlan(Verdict.IN_SYNC, (_in_sync(gpu),)), 80))
    assert "3g.40gb half made" in page


def test_a_blocked_plan_shows_what_is_in_the_way_and_what_is_wanted(gpus: Gpus) -> None:
    """Only what has to go is in the way; what fits beside it stays."""
    small = gpus.instance(7, "1g.10gb", 0, 1, usage=gpus.python)
    fits = gpus.instance(2, "3g.40gb", 4, 4, usage=gpus.python)
    fits = replace(fits, compute=(replace(fits.compute[0], slices=3),))
    gpu = gpus.gpu(small, fits)
    wanted = tuple(WantedInstance("3g.40gb", 3, None, "gpus[0].mig") for _ in range(2))
    blocked = plan_gpu(DesiredGpu(mig=Layout(wanted, "gpus[0].mig"), path="gpus[0]"), gpu)
    page = plain_text(plan_page(NodePlan(blocked.verdict, (blocked,)), 80))
    assert (
        """\
  blocked
          0       1       2       3       4       5       6       7
          ┌───────┬───────────────────────┬───────────────────────────────┐
  now     │1g.10gb│                       │3g.40gb                        │
          │in use │                       │in use                         │
          │in the │                       │                               │
          │way    │                       │                               │
          └───────┴───────────────────────┴───────────────────────────────┘
          ┌───────────────────────────────┬───────────────────────────────┐
  wanted  │3g.40gb                        │3g.40gb                        │
          │new                            │in use                         │
          └───────────────────────────────┴───────────────────────────────┘
  ! gpus[0].mig: 1g.10gb at slice 0 of GPU 0"""
        in page
    )
    assert page.endswith("\nThe plan is blocked. Nothing was touched.\n")
