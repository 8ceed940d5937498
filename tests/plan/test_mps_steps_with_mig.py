"""The rules of MPS on MIG devices and around changes of MIG mode, one by one."""

from __future__ import annotations

from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, MigEnabled, WantedInstance
from nodeagent.plan.plan import Policy, Verdict
from nodeagent.plan.planner import layout_of, plan_gpu
from nodeagent.plan.shares import TimeSlice
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetComputeMode,
    SetMigMode,
    StartMps,
    StopMps,
)
from nodeagent.structs import replace
from tests.plan.cards import IN_USE, card, divided, with_instances
from tests.plan.daemons import (
    CLIENT,
    H100,
    T4,
    A,
    B,
    D,
    daemon,
    daemons_of,
    give,
    kinds,
    running,
    shared,
    without_mig,
)

# --- MIG devices ------------------------------------------------------------------------------


def test_new_devices_get_daemons_after_they_are_made() -> None:
    """Named by their place, for they have no UUID yet; the mode of each before its daemon."""
    desired = shared(H100, ("3g.40gb", 4, A), ("1g.10gb", 0, None), ("1g.10gb", 1, B))
    result = plan_gpu(desired, H100)
    assert [CreateGpuInstance] * 3 + [SetComputeMode, StartMps] * 2 == kinds(result)
    started = {
        (s.profile, s.placement.start if s.placement else None, s.device, s.wanted)
        for s in result.steps
        if isinstance(s, StartMps)
    }
    assert started == {("3g.40gb", 4, "", A), ("1g.10gb", 1, "", B)}
    assert daemons_of(result.after) == [None, B, A]
    assert plan_gpu(desired, result.after).verdict is Verdict.IN_SYNC


def test_daemons_of_what_goes_stop_first() -> None:
    """Then MIG changes, then the new daemons; the other device's daemon is not touched."""
    gpu = give(with_instances(H100, [("3g.40gb", 0), ("3g.40gb", 4)]), daemon(A), daemon(A))
    desired = shared(H100, ("3g.40gb", 4, A), ("2g.20gb", 0, B))
    result = plan_gpu(desired, gpu)
    assert [StopMps, DestroyGpuInstance, CreateGpuInstance, SetComputeMode, StartMps] == kinds(
        result
    )
    stop = result.steps[0]
    assert isinstance(stop, StopMps)
    assert (stop.device, stop.profile) == ("MIG-0", "3g.40gb")
    assert stop.placement is not None
    assert stop.placement.start == 0


def test_a_device_with_clients_is_a_fixed_point() -> None:
    """Clients that only the daemon knows of keep their device, which the layout goes around."""
    gpu = with_instances(H100, [("1g.10gb", 0), ("1g.10gb", 1)])
    served = give(gpu, None, daemon(A, CLIENT))
    result = plan_gpu(shared(H100, ("1g.10gb", None, A)), served)
    assert {"MIG-1"} == {c.uuid for i in result.after.instances for c in i.compute}
    blocked = plan_gpu(shared(H100, ("3g.40gb", 0, None)), give(gpu, daemon(A, CLIENT)))
    assert Verdict.BLOCKED is blocked.verdict
    assert "pid 815" in blocked.problems[0].message


def test_the_least_is_disturbed() -> None:
    """Which device gets what: an equal daemon first, then one that can become it as it runs."""
    gpu = with_instances(H100, [("1g.10gb", s) for s in range(4)])
    have = give(gpu, daemon(D), daemon(A), None, daemon(B))
    desired = shared(
        H100,
        ("1g.10gb", None, None),
        ("1g.10gb", None, D),
        ("1g.10gb", None, mid := replace(A, sharing=replace(A.sharing, enforce="terminate"))),
        ("1g.10gb", None, B),
    )
    result = plan_gpu(desired, have)
    assert [StartMps] == kinds(result)
    assert daemons_of(result.after) == [D, mid, None, B]


def test_the_layout_keeps_the_devices_whose_daemons_are_wanted() -> None:
    """Of two that could go, the one without a wanted daemon goes."""
    gpu = with_instances(H100, [("1g.10gb", s) for s in range(3)])
    for position in range(3):
        have = give(gpu, *[daemon(A) if n == position else daemon(D) for n in range(3)])
        result = plan_gpu(shared(H100, ("1g.10gb", None, A)), have)
        assert {f"MIG-{position}"} == {c.uuid for i in result.after.instances for c in i.compute}
        assert not any(isinstance(step, StartMps) for step in result.steps)


def test_a_pinned_instance_gets_its_own() -> None:
    """What the plan ties to a slice goes there, though another has an equal daemon."""
    gpu = give(with_instances(H100, [("1g.10gb", 0), ("1g.10gb", 1)]), None, daemon(A))
    result = plan_gpu(shared(H100, ("1g.10gb", None, None), ("1g.10gb", 0, A)), gpu)
    assert daemons_of(result.after) == [A, None]


def test_mps_goes_to_the_device_that_is_not_in_use() -> None:
    """One in use outside MPS cannot have it; the plan does not insist on that one."""
    gpu = give(with_instances(H100, [("1g.10gb", 0), ("1g.10gb", 1)], used=[0]))
    result = plan_gpu(shared(H100, ("1g.10gb", None, A), ("1g.10gb", None, None)), gpu)
    assert Verdict.APPLICABLE is result.verdict
    assert daemons_of(result.after) == [None, A]
    both = plan_gpu(shared(H100, ("1g.10gb", None, A), ("1g.10gb", None, A)), gpu)
    assert Verdict.BLOCKED is both.verdict
    assert "1g.10gb at slice 0 of GPU 0" in both.problems[0].message


def test_a_process_of_unknown_instance_may_be_on_any() -> None:
    """No daemon can be started or stopped beside it; a client that a daemon knows is placed."""
    gpu = with_instances(H100, [("1g.10gb", 0)])
    asked = shared(H100, ("1g.10gb", 0, A))
    assert plan_gpu(asked, replace(give(gpu), usage=IN_USE)).verdict is Verdict.BLOCKED
    served = replace(give(gpu, daemon(A)), usage=IN_USE)
    assert plan_gpu(shared(H100, ("1g.10gb", 0, D)), served).verdict is Verdict.BLOCKED
    two = with_instances(H100, [("1g.10gb", 0), ("1g.10gb", 1)])
    placed = replace(give(two, daemon(A, CLIENT), daemon(A)), usage=CLIENT)
    result = plan_gpu(shared(H100, ("1g.10gb", 0, A), ("1g.10gb", 1, None)), placed)
    assert [StopMps, SetComputeMode] == kinds(result)


def test_parts_of_one_instance() -> None:
    """Compute instances share a placement; each has a daemon of its own."""
    gpu = divided(H100, "3g.40gb", 0, 1, 1)
    parts = tuple(WantedInstance("3g.40gb", 1, 0, "gpus[0].mig[0]", m) for m in (A, B, None))
    desired = DesiredGpu(Layout(parts, "gpus[0].mig"), "gpus[0]")
    result = plan_gpu(desired, give(gpu))
    assert [CreateComputeInstance] + [SetComputeMode, StartMps] * 2 == kinds(result)
    assert daemons_of(result.after) == [A, B, None]


def test_by_device_where_instances_are_left() -> None:
    """`mig: enabled`: the devices named get theirs, the others none."""
    gpu = give(with_instances(H100, [("3g.40gb", 0), ("3g.40gb", 4)]), daemon(A), None)
    desired = DesiredGpu(MigEnabled("gpus[0].mig"), "gpus[0]", mps_by_device={"MIG-1": B})
    result = plan_gpu(desired, gpu)
    assert [StopMps, SetComputeMode, SetComputeMode, StartMps] == kinds(result)
    assert daemons_of(result.after) == [None, B]


def test_of_two_daemons_the_idle_one_is_restarted() -> None:
    """Which of them gets something else is free, so it is not the one that serves a client."""
    gpu = give(with_instances(H100, [("1g.10gb", 0), ("1g.10gb", 1)]), daemon(D, CLIENT), daemon(D))
    result = plan_gpu(shared(H100, ("1g.10gb", None, A), ("1g.10gb", None, D)), gpu)
    assert Verdict.APPLICABLE is result.verdict
    assert daemons_of(result.after) == [D, A]


def test_of_parts_the_one_without_a_daemon_goes() -> None:
    """Where a GPU instance has one part too many."""
    gpu = give(divided(H100, "3g.40gb", 0, 1, 1, 1), None, None, daemon(A))
    parts = tuple(WantedInstance("3g.40gb", 1, 0, "gpus[0].mig[0]", m) for m in (A, None))
    result = plan_gpu(DesiredGpu(Layout(parts, "gpus[0].mig"), "gpus[0]"), gpu)
    assert [DestroyComputeInstance] == kinds(result)
    assert daemons_of(result.after) == [None, A]


# --- MIG mode ---------------------------------------------------------------------------------


def test_into_mig_mode() -> None:
    """The GPU's daemon and what was set for it go before the mode, new daemons come last."""
    gpu = running(A, H100, time_slice=TimeSlice.DEFAULT)
    result = plan_gpu(shared(H100, ("7g.80gb", 0, A)), gpu)
    assert [
        StopMps,
        SetComputeMode,
        SetMigMode,
        CreateGpuInstance,
        SetComputeMode,
        StartMps,
    ] == kinds(result)
    assert result.after.mps is None
    busy = plan_gpu(shared(H100, ("7g.80gb", 0, A)), running(A, H100, CLIENT))
    assert Verdict.BLOCKED is busy.verdict
    assert "pid 815" in busy.problems[0].message


def test_out_of_mig_mode() -> None:
    """Daemons of instances stop first; the GPU's own comes after the mode, and after a reset."""
    off = MigDisabled("gpus[0].mig")
    gpu = give(with_instances(H100, [("7g.80gb", 0)]), daemon(A))
    result = plan_gpu(DesiredGpu(off, "gpus[0]", mps=B), gpu)
    assert [StopMps, DestroyGpuInstance, SetMigMode, SetComputeMode, StartMps] == kinds(result)
    a100 = card("a100-40gb")
    gpu = give(with_instances(a100, [("7g.40gb", 0)]), daemon(A))
    desired = DesiredGpu(off, "gpus[0]", mps=B)
    reset = plan_gpu(desired, gpu, Policy(reset_when_idle=True))
    assert ResetGpu in kinds(reset)
    assert daemons_of(reset.after) == [B]
    assert plan_gpu(desired, gpu).verdict is Verdict.BLOCKED


def test_a_daemon_left_behind_by_a_change_of_mode() -> None:
    """Another program switched MIG on beside the agent: the GPU's own daemon is stopped."""
    found = replace(H100, mps=daemon(A))
    result = plan_gpu(DesiredGpu(MigEnabled("p"), "gpus[0]"), found)
    assert [StopMps] == kinds(result)


def test_what_refuses_mig_refuses_all() -> None:
    """No daemon is touched for a layout that is not to be."""
    gpu = give(with_instances(H100, [("1g.10gb", 0), ("1g.10gb", 1)], used=[1]), daemon(A))
    result = plan_gpu(shared(H100, ("7g.80gb", 0, A)), gpu)
    assert Verdict.BLOCKED is result.verdict
    assert (result.steps, result.before, result.after) == ((), gpu, gpu)


# --- the way back -----------------------------------------------------------------------------


def test_what_is_there_can_be_desired() -> None:
    """A GPU's own description of itself is in sync with it, and brings it back from elsewhere."""
    mig = give(with_instances(H100, [("3g.40gb", 0), ("3g.40gb", 4)]), daemon(A), None)
    sliced = without_mig(T4, time_slice=TimeSlice.LONG, earlier_time_slice=TimeSlice.DEFAULT)
    for gpu in (mig, running(A), running(B, H100), sliced, T4):
        goal = layout_of(gpu)
        assert plan_gpu(goal, gpu).verdict is Verdict.IN_SYNC
        bare = replace(goal, mps=None, time_slice=None, mig=goal.mig and MigDisabled("p"))
        away = plan_gpu(bare, gpu).after
        back = plan_gpu(goal, away).after
        assert daemons_of(back) == daemons_of(gpu)
        assert back.time_slice is gpu.time_slice or gpu is not sliced
