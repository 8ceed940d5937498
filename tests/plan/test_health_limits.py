"""What is sick gets nothing new: against brute force, and case by case."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.plan import steps
from nodeagent.plan.desired import DesiredGpu, DesiredNode, MigDisabled, MigEnabled
from nodeagent.plan.layouts import Card, creatable, free_slots
from nodeagent.plan.observed import Access, Gpu, HealthLimits, MigMode, ObservedNode
from nodeagent.plan.plan import GpuPlan, Policy, Verdict
from nodeagent.plan.planner import plan, plan_gpu
from nodeagent.plan.problems import Code
from nodeagent.structs import replace
from tests.draws import draws
from tests.plan import cards
from tests.plan.daemons import A

WHOLE = HealthLimits(whole=True, why="XID 79", remedy="reboot")


def sick(gpu: Gpu, slices: int) -> Gpu:
    """The GPU with these memory slices, given as bits, sick."""
    return replace(gpu, health_limits=HealthLimits(slices, why="errors", remedy="reset it"))


def _touching(gpu: Gpu, slices: int) -> frozenset[cards.Place]:
    """Every placement of every profile that has a sick slice in it."""
    return frozenset(
        (p.name, place.start)
        for p in gpu.profiles
        for place in p.placements
        if slices >> place.start & ((1 << place.size) - 1)
    )


def _check(gpu: Gpu, slices: int, key: object, ways: tuple[frozenset[cards.Place], ...]) -> None:
    """The plan is the best of what brute force finds allowed, or refused when that is nothing."""
    here = cards.places(gpu)
    refused = _touching(gpu, slices)
    allowed = [len(here - way) for way in ways if not (way & refused) - here]
    result = plan_gpu(cards.wanted(gpu, key), sick(gpu, slices))  # type: ignore[arg-type]
    if not allowed:
        assert result.verdict is Verdict.BLOCKED
        assert [p.code for p in result.problems] == [Code.GPU_UNHEALTHY]
        return
    destroyed = sum(isinstance(s, steps.DestroyGpuInstance) for s in result.steps)
    assert min(allowed) == destroyed
    assert dict(key) == cards.present(result.after)  # type: ignore[call-overload]
    assert cards.places(result.after) in ways
    assert not (cards.places(result.after) & refused) - here


def test_every_set_of_sick_slices_of_every_change() -> None:
    """An A30: all pairs of layouts with all 15 sets of sick memory slices, against brute force."""
    empty = cards.card("a30")
    everything = cards.layouts("a30")
    for ways in everything.values():
        gpu = cards.with_instances(empty, sorted(ways[0]))
        for key, targets in everything.items():
            for slices in range(1, 16):
                _check(gpu, slices, key, targets)


@pytest.mark.full
@pytest.mark.parametrize("board", ["h100-80gb", "rtx-pro-6000"])
def test_every_change_with_some_sick_slices(board: str) -> None:
    """Larger cards: all layouts from a third of the layouts, each pair with a set of sick slices of
    its own, so that each single slice and many sets come by.
    """
    empty = cards.card(board)
    slots = Card.of(empty).slots
    everything = cards.layouts(board)
    number = 0
    for start, ways in enumerate(everything.values()):
        if start % 3:
            continue
        gpu = cards.with_instances(empty, sorted(ways[start % len(ways)]))
        for key, targets in everything.items():
            number += 1
            one = 1 << number % slots
            many = number * 2654435761 >> 7 & ((1 << slots) - 1)
            _check(gpu, one if number % 2 else many or one, key, targets)


@pytest.mark.parametrize("board", ["h100-80gb", "a30"])
def test_what_is_creatable_beside_sick_slices(board: str) -> None:
    """So many of a profile as the planner then places, and not one more."""
    empty = cards.card(board)
    for slices in range(1, 1 << Card.of(empty).slots):
        gpu = sick(empty, slices)
        room = creatable(gpu)
        assert set(free_slots(gpu)) == {
            n for n in range(Card.of(empty).slots) if not slices >> n & 1
        }
        for profile in empty.profiles:
            most = room.get(profile.name, 0)
            more = plan_gpu(cards.wanted(gpu, [(profile.name, most + 1)]), gpu)
            assert more.verdict in {Verdict.BLOCKED, Verdict.UNSATISFIABLE}
            if most:
                fits = plan_gpu(cards.wanted(gpu, [(profile.name, most)]), gpu)
                assert fits.verdict is Verdict.APPLICABLE


def test_a_sick_device_that_the_plan_has_is_as_planned() -> None:
    """Nothing has to be done for what is there, sick or not."""
    gpu = cards.with_instances(cards.card("h100-80gb"), [("3g.40gb", 0), ("3g.40gb", 4)])
    for one in (sick(gpu, 0xF0), sick(gpu, 0xFF), replace(gpu, health_limits=WHOLE)):
        assert plan_gpu(cards.wanted(gpu, [("3g.40gb", 2)]), one).verdict is Verdict.IN_SYNC


def test_no_new_device_in_a_sick_gpu_instance() -> None:
    """A GPU instance with a sick slice gets no compute instance, but may lose one."""
    gpu = cards.divided(cards.card("h100-80gb", reported=True), "3g.40gb", 4, 1, 1)
    more = cards.devices(gpu, *[("3g.40gb", 1, 4)] * 3)
    assert [type(s) for s in plan_gpu(more, gpu).steps] == [steps.CreateComputeInstance]
    refused = plan_gpu(more, sick(gpu, 0x20))
    assert refused.verdict is Verdict.BLOCKED
    assert refused.problems[0].code is Code.GPU_UNHEALTHY
    fewer = plan_gpu(cards.devices(gpu, ("3g.40gb", 1, 4)), sick(gpu, 0x20))
    assert [type(s) for s in fewer.steps] == [steps.DestroyComputeInstance]


def test_a_half_made_instance_on_sick_slices_is_not_completed() -> None:
    """A new one is made elsewhere instead."""
    gpu = cards.with_instances(cards.card("h100-80gb"), [("3g.40gb", 0)])
    half = replace(gpu, instances=(replace(gpu.instances[0], compute=()),))
    result = plan_gpu(cards.wanted(gpu, [("3g.40gb", 1)]), sick(half, 0b1))
    assert [type(s) for s in result.steps] == [steps.DestroyGpuInstance, steps.CreateGpuInstance]
    created = result.steps[1]
    assert isinstance(created, steps.CreateGpuInstance)
    assert created.placement.start == 4


def test_a_gpu_sick_as_a_whole_is_left_alone_and_the_others_go_on() -> None:
    """Its plan is refused with its own code; its sibling's is carried out."""
    empty = cards.card("h100-80gb")
    ill = replace(empty, uuid="GPU-ill", health_limits=WHOLE)
    fit = replace(empty, uuid="GPU-fit", index=1)
    asked = cards.wanted(empty, [("1g.10gb", 7)])
    answer = plan(DesiredNode({"GPU-ill": asked, "GPU-fit": asked}), ObservedNode((ill, fit)))
    refused, planned = answer.gpus
    assert (refused.verdict, refused.steps) == (Verdict.BLOCKED, ())
    (problem,) = refused.problems
    assert (problem.code, problem.gpu) == (Code.GPU_UNHEALTHY, "GPU-ill")
    assert problem.message == "nothing is changed on GPU 0 (NVIDIA H100 80GB HBM3): XID 79"
    assert problem.remedy == "reboot"
    assert len(planned.steps) == 7
    assert creatable(ill) == {}
    assert free_slots(ill) == ()


def test_no_daemon_is_started_on_a_gpu_sick_as_a_whole() -> None:
    """MPS is something new there, too."""
    gpu = cards.card("t4")
    asked = DesiredGpu(None, "gpus[0]", mps=A)
    assert plan_gpu(asked, gpu).verdict is Verdict.APPLICABLE
    assert plan_gpu(asked, replace(gpu, health_limits=WHOLE)).problems[0].code is Code.GPU_UNHEALTHY


def test_sick_slices_are_not_handed_out_with_the_whole_gpu() -> None:
    """Without MIG anybody would have them; only a reset on the way allows it."""
    off = DesiredGpu(MigDisabled("gpus[0].mig"), "gpus[0]")
    at_once = sick(cards.card("h100-80gb"), 0b1)
    refused = plan_gpu(off, at_once)
    assert (refused.verdict, refused.problems[0].code) == (Verdict.BLOCKED, Code.GPU_UNHEALTHY)
    by_reset = sick(cards.card("a100-40gb"), 0b1)
    mended = plan_gpu(off, by_reset, Policy(reset_when_idle=True))
    assert [type(s) for s in mended.steps] == [steps.SetMigMode, steps.ResetGpu]


def test_mig_is_switched_on_beside_sick_slices() -> None:
    """From then on they can be left out."""
    off = replace(sick(cards.card("h100-80gb"), 0b1), mig=MigMode(current=False, pending=False))
    on = plan_gpu(DesiredGpu(MigEnabled("gpus[0].mig"), "gpus[0]"), off)
    assert [type(s) for s in on.steps] == [steps.SetMigMode]


@pytest.mark.parametrize("access", Access)
@pytest.mark.parametrize("gone", [True, False])
def test_a_gpu_that_does_not_answer_is_neither_there_nor_idle(access: Access, gone: bool) -> None:
    """Nor is one there that answers, and that health finds gone."""
    limits = HealthLimits(whole=gone, gone=gone)
    gpu = replace(cards.card("h100-80gb"), access=access, health_limits=limits)
    assert gpu.is_there is (access is Access.OK and not gone)
    assert gpu.idle is (access is Access.OK)


def test_the_problem_names_the_slices() -> None:
    gpu = sick(cards.card("h100-80gb"), 0b110000)
    (problem,) = plan_gpu(cards.wanted(gpu, [("7g.80gb", 1)]), gpu).problems
    assert problem.message == (
        "the plan needs unhealthy memory slices of GPU 0 (NVIDIA H100 80GB HBM3) "
        "(unhealthy: 4, 5): errors"
    )
    assert problem.remedy == "reset it"
    assert problem.path == "gpus[0].mig"


def test_too_much_is_too_much_sick_or_not() -> None:
    """What fits no card of the kind is reported as that, and not as a matter of health."""
    gpu = sick(cards.card("h100-80gb"), 0b1)
    result = plan_gpu(cards.wanted(gpu, [("4g.40gb", 2)]), gpu)
    assert result.verdict is Verdict.UNSATISFIABLE
    assert result.problems[0].code is Code.DOES_NOT_FIT


@settings(max_examples=draws(150))
@given(st.data())
def test_divided_layouts_put_nothing_new_on_sick_slices(data: st.DataObject) -> None:
    """Whatever is divided how, and whatever is asked: every creation keeps off, and what it took
    from the GPU it would have had to take from a well one, too, or the plan is refused.
    """
    gpu = cards.card(
        data.draw(st.sampled_from(["h100-80gb", "a30"])), reported=data.draw(st.booleans())
    )
    slots = Card.of(gpu).slots
    gpu = cards.divided(gpu, "1g.6gb" if slots == 4 else "3g.40gb", 0, 1)
    if slots == 8:
        gpu = cards.divided(gpu, "3g.40gb", 4, 1, 1)
    ill = sick(gpu, data.draw(st.integers(1, (1 << slots) - 1)))
    names = [p for p in gpu.profiles if "+" not in p.name and "-" not in p.name]
    parts: list[tuple[str, int, int | None]] = []
    for profile in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4)):
        size = data.draw(st.sampled_from([1, profile.slices]))
        parts.append((profile.name, size, None))
    result: GpuPlan = plan_gpu(cards.devices(gpu, *parts), ill)
    for step in result.steps:
        if isinstance(step, steps.CreateGpuInstance | steps.CreateComputeInstance):
            assert not ill.health_limits.slices & step.placement.mask
    if result.verdict is Verdict.UNSATISFIABLE:
        assert plan_gpu(cards.devices(gpu, *parts), gpu).verdict is Verdict.UNSATISFIABLE
