"""The planner's rules one by one, and every combination of known, unknown and no users."""

from collections.abc import Iterable
from itertools import product

import pytest

from nodeagent.plan.desired import DesiredGpu, DesiredNode, MigDisabled, MigEnabled, WhenInUse
from nodeagent.plan.observed import Access, Gpu, MigMode, ObservedNode
from nodeagent.plan.plan import Policy, Verdict
from nodeagent.plan.planner import once_free, plan, plan_gpu
from nodeagent.plan.problems import Code
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetMigMode,
    after,
)
from nodeagent.plan.users import IDLE, Usage, User
from nodeagent.structs import replace
from tests.plan.cards import (
    IN_USE,
    NOT_KNOWN,
    Multiset,
    card,
    devices,
    divided,
    layouts,
    places,
    wanted,
    with_instances,
)

OFF = DesiredGpu(MigDisabled("gpus[0].mig"), "gpus[0]")
ON = DesiredGpu(MigEnabled("gpus[0].mig"), "gpus[0]")
MODE_OFF = MigMode(current=False, pending=False)


def kinds(steps: object) -> list[type]:
    assert isinstance(steps, tuple)
    return [type(step) for step in steps]


def test_keeps_what_fits_and_creates_largest_first() -> None:
    gpu = with_instances(card("h100-80gb"), [("1g.10gb", s) for s in range(7)])
    result = plan_gpu(wanted(gpu, [("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2)]), gpu)
    assert [DestroyGpuInstance] * 5 + [CreateGpuInstance] * 2 == kinds(result.steps)
    made = [s.profile for s in result.steps if isinstance(s, CreateGpuInstance)]
    assert made == ["3g.40gb", "2g.20gb"]


def test_a_device_in_use_is_a_fixed_point() -> None:
    gpu = with_instances(card("h100-80gb"), [("1g.10gb", 1), ("1g.10gb", 4)], used=[0])
    result = plan_gpu(wanted(gpu, [("3g.40gb", 1), ("1g.10gb", 2)]), gpu)
    assert Verdict.APPLICABLE is result.verdict
    assert {("1g.10gb", 1), ("3g.40gb", 4)} <= places(result.after)
    two = with_instances(card("a30"), [("1g.6gb", 0), ("1g.6gb", 1)], used=[1])
    assert places(plan_gpu(wanted(two, [("1g.6gb", 1)]), two).after) == {("1g.6gb", 1)}


def test_blocked_names_blocker_and_purpose() -> None:
    gpu = with_instances(card("h100-80gb"), [("1g.10gb", 0), ("1g.10gb", 4)], used=[0, 1])
    result = plan_gpu(wanted(gpu, [("3g.40gb", 1), ("1g.10gb", 2)]), gpu)
    assert Verdict.BLOCKED is result.verdict
    assert result.steps == ()
    (problem,) = result.problems
    assert Code.IN_USE is problem.code
    free = "(only memory slices 1, 2, 3, 5, 6 and 7 are free)"
    for part in ("1g.10gb at slice", f"room for 3g.40gb + 1g.10gb {free}", "pid 4711 (python)"):
        assert part in problem.message


def test_eviction_is_promised_only_in_a_cluster() -> None:
    """Elsewhere the users are to be ended, whatever the plan says."""
    gpu = with_instances(card("h100-80gb"), [("1g.10gb", 0), ("1g.10gb", 4)], used=[0, 1])
    desired = replace(wanted(gpu, [("7g.80gb", 1)]), when_in_use=WhenInUse.EVICT)
    assert "kill 4711" in plan_gpu(desired, gpu).problems[0].remedy
    for problem in plan_gpu(desired, gpu, Policy(evicts=True)).problems:
        assert "the agent evicts its pods" in problem.remedy
        assert "kill" not in problem.remedy


def test_never_on_this_card() -> None:
    """What no empty card could hold is unsatisfiable; the device too much is named."""
    gpu = card("h100-80gb")
    result = plan_gpu(wanted(gpu, [("3g.40gb", 2), ("1g.10gb", 1)]), gpu)
    assert Verdict.UNSATISFIABLE is result.verdict
    assert "beside 2x 3g.40gb there is no room for 1g.10gb" in result.problems[0].message
    assert "takes 1 of 8 memory slices" in result.problems[0].remedy


def test_explicit_start() -> None:
    gpu = with_instances(card("h100-80gb"), [("3g.40gb", 0)])
    result = plan_gpu(devices(gpu, ("3g.40gb", 3, 4)), gpu)
    assert {("3g.40gb", 4)} == places(result.after)
    assert "asks for it here" in result.steps[-1].reason


# --- compute instances ------------------------------------------------------------------------


def test_splits_share_a_gpu_instance() -> None:
    """Three 1c.3g and one whole 3g are two GPU instances."""
    gpu = card("h100-80gb")
    parts = [("3g.40gb", 1, None)] * 3 + [("3g.40gb", 3, None)]
    result = plan_gpu(devices(gpu, *parts), gpu)
    made = sorted(s.compute for s in result.steps if isinstance(s, CreateGpuInstance))
    assert made == [(1, 1, 1), (3,)]


def test_existing_division_is_enough() -> None:
    """Two 1c in two GPU instances are the two 1c asked for: nothing is gathered for tidiness."""
    gpu = divided(divided(card("h100-80gb"), "3g.40gb", 0, 1), "3g.40gb", 4, 1)
    result = plan_gpu(devices(gpu, ("3g.40gb", 1, None), ("3g.40gb", 1, None)), gpu)
    assert Verdict.IN_SYNC is result.verdict


def test_adds_to_a_gpu_instance_in_use() -> None:
    gpu = divided(card("a100-40gb"), "3g.20gb", 0, 1, used=[0])
    result = plan_gpu(devices(gpu, ("3g.20gb", 1, None), ("3g.20gb", 2, None)), gpu)
    assert [CreateComputeInstance] == kinds(result.steps)


def test_takes_only_the_compute_instance() -> None:
    """Where one of three compute instances is too many, an idle one goes and the rest stays."""
    gpu = divided(card("h100-80gb"), "3g.40gb", 0, 1, 1, 1, used=[0, 2])
    result = plan_gpu(devices(gpu, ("3g.40gb", 1, 0), ("3g.40gb", 1, 0)), gpu)
    (step,) = result.steps
    assert isinstance(step, DestroyComputeInstance)
    assert step.compute == 1


def test_half_made_is_completed() -> None:
    gpu = with_instances(card("h100-80gb"), [("3g.40gb", 4)])
    gpu = replace(gpu, instances=(replace(gpu.instances[0], compute=()),))
    result = plan_gpu(wanted(gpu, [("3g.40gb", 1)]), gpu)
    assert [CreateComputeInstance] == kinds(result.steps)
    assert "completes a half-made" in result.steps[0].reason
    parted = divided(card("h100-80gb"), "3g.40gb", 4, 1)
    more = plan_gpu(devices(parted, *[("3g.40gb", 1, 4)] * 2), parted)
    assert [CreateComputeInstance] == kinds(more.steps)
    assert "half-made" not in more.steps[0].reason


def test_half_made_elsewhere_goes() -> None:
    gpu = with_instances(card("h100-80gb"), [("3g.40gb", 0)])
    gpu = replace(gpu, instances=(replace(gpu.instances[0], compute=()),))
    result = plan_gpu(wanted(gpu, [("4g.40gb", 1)]), gpu)
    assert [DestroyGpuInstance, CreateGpuInstance] == kinds(result.steps)
    assert "half-made" in result.steps[0].reason


# --- mode -------------------------------------------------------------------------------------


def test_ampere_without_permission_to_reset() -> None:
    """On Ampere the mode is set; what else is needed is said, and nothing more is planned."""
    gpu = replace(card("a100-40gb"), mig=MODE_OFF)
    result = plan_gpu(wanted(gpu, [("7g.40gb", 1)]), gpu)
    assert [SetMigMode] == kinds(result.steps)
    assert Code.RESET_REQUIRED is result.problems[0].code
    pending = plan_gpu(wanted(gpu, [("7g.40gb", 1)]), result.after)
    assert Verdict.BLOCKED is pending.verdict
    assert "nvidia-smi --gpu-reset -i 00000000:1A:00.0" in pending.problems[0].remedy


def test_ampere_with_permission_to_reset() -> None:
    """Where the setting allows it, an idle Ampere GPU is reset between mode and layout."""
    gpu = replace(card("a100-40gb"), mig=MODE_OFF)
    result = plan_gpu(wanted(gpu, [("7g.40gb", 1)]), gpu, Policy(reset_when_idle=True))
    assert [SetMigMode, ResetGpu, CreateGpuInstance] == kinds(result.steps)
    cannot = replace(gpu, no_reset="a virtual machine")
    unable = plan_gpu(wanted(gpu, [("7g.40gb", 1)]), cannot, Policy(reset_when_idle=True))
    assert [SetMigMode] == kinds(unable.steps)
    assert "it cannot reset the GPU (a virtual machine)" in unable.problems[0].remedy


@pytest.mark.parametrize("usage", [NOT_KNOWN, Usage((User(1, "Xorg"),))])
@pytest.mark.parametrize("board", ["a100-40gb", "h100-80gb"])
def test_mode_stays_while_in_use(board: str, usage: Usage) -> None:
    """No mode change and no reset unless the GPU is proven idle."""
    gpu = replace(card(board), mig=MODE_OFF, usage=usage)
    name = gpu.profiles[0].name
    result = plan_gpu(wanted(gpu, [(name, 1)]), gpu, Policy(reset_when_idle=True))
    assert Verdict.BLOCKED is result.verdict
    assert str(usage) in result.problems[0].message


def test_disable_on_ampere_keeps_instances_without_reset() -> None:
    """Without the reset the mode would stay on and the instances be gone for nothing."""
    gpu = with_instances(card("a100-40gb"), [("1g.5gb", 0)])
    assert Verdict.BLOCKED is plan_gpu(OFF, gpu).verdict
    allowed = plan_gpu(OFF, gpu, Policy(reset_when_idle=True))
    assert [DestroyGpuInstance, SetMigMode, ResetGpu] == kinds(allowed.steps)


@pytest.mark.parametrize(("pending", "steps"), [(True, [SetMigMode]), (False, [])])
def test_disable_on_an_empty_ampere_waits_for_a_reset(pending: bool, steps: list[type]) -> None:
    """The mode is set, once; from then on the reset alone is missing."""
    gpu = replace(card("a100-40gb"), mig=MigMode(current=True, pending=pending))
    result = plan_gpu(OFF, gpu)
    assert kinds(result.steps) == steps
    assert result.verdict is (Verdict.APPLICABLE if pending else Verdict.BLOCKED)
    assert [problem.code for problem in result.problems] == [Code.RESET_REQUIRED]


@pytest.mark.parametrize("board", ["a30", "a100-40gb", "h100-80gb", "rtx-pro-6000"])
def test_a_driver_that_reports_a_single_profile(board: str) -> None:
    """One instance of it is possible, whatever engines it takes."""
    for profile in card(board).profiles:
        gpu = replace(card(board), profiles=(profile,))
        assert plan_gpu(wanted(gpu, [(profile.name, 1)]), gpu).verdict is Verdict.APPLICABLE


def test_pending_changes_are_taken_back() -> None:
    """A mode change that waits for a reset and that the plan does not want is cancelled."""
    going_off = replace(
        with_instances(card("a100-40gb"), [("3g.20gb", 0)]),
        mig=MigMode(current=True, pending=False),
    )
    result = plan_gpu(wanted(going_off, [("3g.20gb", 1)]), going_off)
    assert [SetMigMode] == kinds(result.steps)
    assert [SetMigMode] == kinds(plan_gpu(ON, going_off).steps)
    going_on = replace(card("a100-40gb"), mig=MigMode(current=False, pending=True))
    assert [SetMigMode] == kinds(plan_gpu(OFF, going_on).steps)


def test_enabled_leaves_instances() -> None:
    """`enabled` asks for the mode alone; without it there are none."""
    gpu = with_instances(card("h100-80gb"), [("1g.10gb", 0)])
    assert Verdict.IN_SYNC is plan_gpu(ON, gpu).verdict
    for enabled, left in ((True, gpu.instances), (False, ())):
        assert after(gpu, [SetMigMode(gpu.uuid, enabled, "a test's")]).instances == left


def test_creation_waits_for_a_client_of_the_whole_gpu() -> None:
    """A process that holds the GPU outside any instance makes the driver refuse new ones."""
    gpu = replace(card("h100-80gb"), usage=Usage((User(7, "nsys"),)))
    result = plan_gpu(wanted(gpu, [("1g.10gb", 1)]), gpu)
    assert Verdict.BLOCKED is result.verdict
    assert "nsys" in result.problems[0].message


# --- the node ---------------------------------------------------------------------------------


def test_gpus_are_independent() -> None:
    lost = replace(card("h100-80gb"), uuid="GPU-a", access=Access.LOST, access_reason="XID 79")
    fine = replace(card("h100-80gb"), uuid="GPU-b", index=1)
    other = replace(card("h100-80gb"), uuid="GPU-c", index=2)
    wish = wanted(fine, [("7g.80gb", 1)])
    result = plan(DesiredNode({"GPU-a": wish, "GPU-b": wish}), ObservedNode((lost, fine, other)))
    assert Verdict.BLOCKED is result.verdict
    assert [g.verdict for g in result.gpus] == [Verdict.BLOCKED, Verdict.APPLICABLE]
    assert "XID 79" in result.gpus[0].problems[0].message


def test_vanished_gpu() -> None:
    result = plan(DesiredNode({"GPU-gone": OFF}), ObservedNode())
    assert Verdict.BLOCKED is result.verdict
    assert "GPU-gone" in result.problems[0].message


@pytest.mark.parametrize(
    ("access", "code"), [(Access.LOST, Code.GPU_LOST), (Access.UNKNOWN, Code.GPU_UNKNOWN)]
)
def test_a_gpu_that_does_not_answer_says_which_way(access: Access, code: Code) -> None:
    """One is lost until it is looked after, the other may answer again by itself."""
    gpu = replace(card("h100-80gb"), access=access, access_reason="XID 79")
    (problem,) = plan_gpu(wanted(gpu, [("1g.10gb", 1)]), gpu).problems
    assert problem.code is code
    assert "XID 79" in problem.message


def test_what_a_blocked_plan_comes_to_once_free() -> None:
    """Of the devices in use, the one that is in the way is taken for free, the other stays."""
    gpu = with_instances(card("h100-80gb"), [("1g.10gb", 0), ("1g.10gb", 4)], used=[0, 1])
    blocked = plan_gpu(wanted(gpu, [("4g.40gb", 1), ("1g.10gb", 1)]), gpu)
    assert blocked.verdict is Verdict.BLOCKED
    free = once_free(blocked)
    assert free is not None
    assert free.verdict is Verdict.APPLICABLE
    assert places(free.after) == {("4g.40gb", 0), ("1g.10gb", 4)}


@pytest.mark.parametrize("access", [Access.LOST, Access.UNKNOWN])
def test_nothing_is_shown_for_later_of_a_plan_that_users_do_not_block(access: Access) -> None:
    """Neither of one that can be applied, nor of a GPU that does not answer."""
    gpu = with_instances(card("h100-80gb"), [("1g.10gb", 0)], used=[0])
    blocked = plan_gpu(wanted(gpu, [("7g.80gb", 1)]), gpu)
    assert once_free(replace(blocked, before=replace(gpu, access=access))) is None
    assert once_free(plan_gpu(wanted(gpu, [("1g.10gb", 1)]), gpu)) is None


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
