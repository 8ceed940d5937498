"""The rules of MPS and time slices one by one: whole GPUs, MIG devices, changes of MIG mode."""

import pytest

from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, MigEnabled, WantedInstance
from nodeagent.plan.observed import DeviceDaemon, Gpu
from nodeagent.plan.plan import Policy, Verdict
from nodeagent.plan.planner import layout_of, plan_gpu
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import ComputeMode, TimeSlice, WantedMps
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartMps,
    StopMps,
)
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from tests.plan.cards import IN_USE, NOT_KNOWN, card, divided, with_instances
from tests.plan.daemons import (
    CLIENT,
    DEFAULT,
    EXCLUSIVE,
    H100,
    T4,
    A,
    B,
    C,
    D,
    daemon,
    daemons_of,
    give,
    kinds,
    running,
    shared,
    whole,
    without_mig,
)

LEAVE = Policy(exclusive_mps=False)


# --- a whole GPU ------------------------------------------------------------------------------


def test_a_gpu_gets_its_mode_then_its_daemon() -> None:
    result = plan_gpu(whole(A), T4)
    assert [SetComputeMode, StartMps] == kinds(result)
    mode, start = result.steps
    assert isinstance(mode, SetComputeMode)
    assert isinstance(start, StartMps)
    assert (mode.device, mode.mode, mode.placement) == (T4.uuid, EXCLUSIVE, None)
    assert (start.device, start.wanted, start.runs) == (T4.uuid, A, False)
    assert "gpus[0].mps" in start.reason
    assert plan_gpu(whole(A), result.after).verdict is Verdict.IN_SYNC
    assert DEFAULT is result.after.earlier_mode


def test_a_setting_leaves_the_mode_alone() -> None:
    assert [StartMps] == kinds(plan_gpu(whole(A), T4, LEAVE))
    assert plan_gpu(whole(A), without_mig(T4, mps=daemon(A)), LEAVE).verdict is Verdict.IN_SYNC


DOWN = DeviceDaemon(A, "Backoff", "it crashed")
CASES = {
    "a mode that is not known is not set": (
        (whole(A), without_mig(T4, compute_mode=None)),
        [StartMps],
    ),
    "a mode changed by hand is set again": (
        (whole(A), running(A, compute_mode=DEFAULT)),
        [SetComputeMode],
    ),
    "a daemon that is down is its supervisor's": ((whole(A), running(A, mps=DOWN)), []),
    "another user takes another daemon": ((whole(D), running(A)), [StopMps, StartMps]),
    "so does no memory limit any more": ((whole(C), running(A)), [StopMps, StartMps]),
    "clients of a lost daemon are no obstacle": (
        (whole(A), without_mig(T4, usage=CLIENT, compute_mode=EXCLUSIVE)),
        [StartMps],
    ),
    "the mode comes back though the daemon is gone": (
        (whole(), running(A, mps=None)),
        [SetComputeMode],
    ),
    "a mode set by hand stays": ((whole(), without_mig(T4, compute_mode=EXCLUSIVE)), []),
    "a time slice that is not known is set": (
        (whole(time_slice=TimeSlice.DEFAULT), T4),
        [SetTimeSlice],
    ),
    "a time slice set by hand stays": ((whole(), without_mig(T4, time_slice=TimeSlice.LONG)), []),
}


@pytest.mark.parametrize(("change", "steps"), CASES.values(), ids=CASES)
def test_what_it_takes(change: tuple[DesiredGpu, Gpu], steps: list[type]) -> None:
    assert kinds(plan_gpu(*change)) == steps


def test_other_limits_need_no_restart() -> None:
    """The daemon takes them while it runs, and its clients with it."""
    result = plan_gpu(whole(B), running(A, clients=CLIENT))
    assert [StartMps] == kinds(result)
    (step,) = result.steps
    assert isinstance(step, StartMps)
    assert step.runs
    assert result.after.mps == replace(daemon(B, CLIENT))


@pytest.mark.parametrize("wanted", [None, C, D])
def test_a_daemon_with_clients_is_never_stopped(wanted: WantedMps | None) -> None:
    result = plan_gpu(whole(wanted), running(A, clients=CLIENT))
    assert Verdict.BLOCKED is result.verdict
    assert result.steps == ()
    (problem,) = result.problems
    assert Code.IN_USE is problem.code
    assert "pid 815 (train) of pod ml/trainer" in problem.message


def test_its_own_servers_are_no_users() -> None:
    """The driver lists a daemon's server as a process; it goes with the daemon."""
    found = running(A, mps=daemon(A, servers=(7,)), usage=Usage((User(7, "nvidia-cuda-mps"),)))
    result = plan_gpu(whole(), found)
    assert [StopMps, SetComputeMode] == kinds(result)
    assert result.before is found
    assert result.after.usage == Usage()


def test_mps_gone_brings_the_earlier_mode_back() -> None:
    result = plan_gpu(whole(), running(A))
    assert [StopMps, SetComputeMode] == kinds(result)
    assert (result.after.compute_mode, result.after.earlier_mode) == (DEFAULT, None)


@pytest.mark.parametrize("usage", [IN_USE, NOT_KNOWN])
def test_a_server_needs_the_device_for_itself(usage: Usage) -> None:
    """A user outside MPS blocks it, by name; unless modes are left alone."""
    result = plan_gpu(whole(A), replace(T4, usage=usage))
    assert Verdict.BLOCKED is result.verdict
    assert Code.IN_USE is result.problems[0].code
    assert str(usage) in result.problems[0].message
    assert result.problems[0].path == A.path
    assert [StartMps] == kinds(plan_gpu(whole(A), replace(T4, usage=usage), LEAVE))


def test_an_allocation_keeps_a_daemon_but_keeps_none_from_coming() -> None:
    """After a reboot the pods that wait for the daemon hold the device already."""
    given = Usage((User(0, source="kubelet", pod="trainer", namespace="ml"),))
    found = without_mig(T4, usage=given)
    assert kinds(plan_gpu(whole(A), found)) == [SetComputeMode, StartMps]
    blocked = plan_gpu(whole(None), running(A, usage=given))
    assert blocked.verdict is Verdict.BLOCKED
    assert "an allocation of pod ml/trainer" in blocked.problems[0].message


# --- time slices ------------------------------------------------------------------------------


def test_time_slice_and_mode() -> None:
    desired = whole(time_slice=TimeSlice.LONG)
    found = without_mig(T4, compute_mode=EXCLUSIVE, time_slice=TimeSlice.DEFAULT)
    result = plan_gpu(desired, found)
    assert [SetTimeSlice, SetComputeMode] == kinds(result)
    assert plan_gpu(desired, result.after).verdict is Verdict.IN_SYNC
    back = plan_gpu(whole(), result.after)
    assert back.after == found


@pytest.mark.parametrize("mps", [None, daemon(A)])
@pytest.mark.parametrize("mode", [None, DEFAULT])
@pytest.mark.parametrize("slice_", [None, TimeSlice.DEFAULT])
def test_the_way_back_has_the_time_slice_that_the_agent_set(
    mps: DeviceDaemon | None, mode: ComputeMode | None, slice_: TimeSlice | None
) -> None:
    """What it changed shows that: the time slice, or the compute mode without a daemon."""
    found = without_mig(
        T4, mps=mps, earlier_mode=mode, time_slice=TimeSlice.LONG, earlier_time_slice=slice_
    )
    own = slice_ is not None or (mode is not None and mps is None)
    assert layout_of(found).time_slice == (TimeSlice.LONG if own else None)


def test_a_client_is_named_once() -> None:
    """The driver and the daemon both know of it."""
    seen = Usage((User(815, "train", "process", 1 << 30),))
    (problem,) = plan_gpu(whole(), running(A, clients=CLIENT, usage=seen)).problems
    assert problem.message.count("pid 815") == 1


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
