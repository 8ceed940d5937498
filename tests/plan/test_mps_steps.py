"""The rules of MPS and time slices of whole GPUs one by one, as a person would state them."""

from __future__ import annotations

import pytest

from nodeagent.plan.observed import DeviceDaemon, Gpu
from nodeagent.plan.plan import Policy, Verdict
from nodeagent.plan.planner import plan_gpu
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import TimeSlice, WantedMps
from nodeagent.plan.steps import SetComputeMode, SetTimeSlice, StartMps, StopMps
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from tests.plan.cards import IN_USE, NOT_KNOWN
from tests.plan.daemons import (
    CLIENT,
    DEFAULT,
    EXCLUSIVE,
    T4,
    A,
    B,
    C,
    D,
    daemon,
    daemons_of,
    kinds,
    running,
    whole,
    without_mig,
)

LEAVE = Policy(exclusive_mps=False)


# --- a whole GPU ------------------------------------------------------------------------------


def test_a_gpu_gets_its_mode_then_its_daemon() -> None:
    """First EXCLUSIVE_PROCESS, then the daemon, on the GPU's own UUID."""
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
    """With the policy off, only the daemon is started, whatever the mode is."""
    assert [StartMps] == kinds(plan_gpu(whole(A), T4, LEAVE))
    assert plan_gpu(whole(A), without_mig(T4, mps=daemon(A)), LEAVE).verdict is Verdict.IN_SYNC


def test_a_mode_that_is_not_known_is_not_set() -> None:
    """What cannot be read back is not planned, for it would be planned for ever."""
    assert [StartMps] == kinds(plan_gpu(whole(A), without_mig(T4, compute_mode=None)))


def test_a_mode_changed_past_the_agent_is_set_again() -> None:
    """The daemon stays; clients that miss it would run past it otherwise."""
    assert [SetComputeMode] == kinds(plan_gpu(whole(A), running(A, compute_mode=DEFAULT)))


def test_an_equal_daemon_needs_nothing_whatever_its_state() -> None:
    """One that is down is the business of who supervises it."""
    down = DeviceDaemon(A, "Backoff", "it crashed")
    assert plan_gpu(whole(A), running(A, mps=down)).verdict is Verdict.IN_SYNC


def test_other_limits_need_no_restart() -> None:
    """The daemon takes them while it runs, and its clients with it."""
    result = plan_gpu(whole(B), running(A, clients=CLIENT))
    assert [StartMps] == kinds(result)
    (step,) = result.steps
    assert isinstance(step, StartMps)
    assert step.runs
    assert result.after.mps == replace(daemon(B, CLIENT))


@pytest.mark.parametrize("wanted", [C, D])
def test_a_restart_where_it_must_be(wanted: WantedMps) -> None:
    """Another user, or no memory limit any more; the mode stays as it is."""
    result = plan_gpu(whole(wanted), running(A))
    assert [StopMps, StartMps] == kinds(result)
    assert daemons_of(result.after) == [wanted]


@pytest.mark.parametrize("wanted", [None, C, D])
def test_a_daemon_with_clients_is_never_stopped(wanted: WantedMps | None) -> None:
    """Blocked, and each client is named with pid, command and pod."""
    result = plan_gpu(whole(wanted), running(A, clients=CLIENT))
    assert Verdict.BLOCKED is result.verdict
    assert result.steps == ()
    (problem,) = result.problems
    assert Code.IN_USE is problem.code
    assert "pid 815 (train) of pod ml/trainer" in problem.message


@pytest.mark.parametrize(
    "found",
    [
        running(A, clients=NOT_KNOWN),
        running(A, usage=NOT_KNOWN),
        running(A, usage=Usage((User(4, "x", "mps"),))),
        running(A, usage=IN_USE),
    ],
)
def test_not_knowing_is_in_use(found: Gpu) -> None:
    """Unknown clients, unknown users and users of any kind all keep the daemon."""
    assert plan_gpu(whole(), found).verdict is Verdict.BLOCKED


def test_its_own_servers_are_no_users() -> None:
    """The driver lists a daemon's server as a process; it goes with the daemon."""
    found = running(A, mps=daemon(A, servers=(7,)), usage=Usage((User(7, "nvidia-cuda-mps"),)))
    result = plan_gpu(whole(), found)
    assert [StopMps, SetComputeMode] == kinds(result)
    assert result.before is found
    assert result.after.usage == Usage()


def test_mps_gone_brings_the_earlier_mode_back() -> None:
    """Also when the daemon is gone already, and only where the agent changed the mode."""
    result = plan_gpu(whole(), running(A))
    assert [StopMps, SetComputeMode] == kinds(result)
    assert (result.after.compute_mode, result.after.earlier_mode) == (DEFAULT, None)
    assert [SetComputeMode] == kinds(plan_gpu(whole(), running(A, mps=None)))
    by_hand = without_mig(T4, compute_mode=EXCLUSIVE)
    assert plan_gpu(whole(), by_hand).verdict is Verdict.IN_SYNC


@pytest.mark.parametrize("usage", [IN_USE, NOT_KNOWN])
def test_a_server_needs_the_device_for_itself(usage: Usage) -> None:
    """A user outside MPS blocks it, by name; unless modes are left alone."""
    result = plan_gpu(whole(A), replace(T4, usage=usage))
    assert Verdict.BLOCKED is result.verdict
    assert Code.IN_USE is result.problems[0].code
    assert str(usage) in result.problems[0].message
    assert [StartMps] == kinds(plan_gpu(whole(A), replace(T4, usage=usage), LEAVE))


def test_an_allocation_keeps_a_daemon_but_keeps_none_from_coming() -> None:
    """After a reboot the pods that wait for the daemon hold the device already."""
    given = Usage((User(0, source="kubelet", pod="trainer", namespace="ml"),))
    found = without_mig(T4, usage=given)
    assert kinds(plan_gpu(whole(A), found)) == [SetComputeMode, StartMps]
    blocked = plan_gpu(whole(None), running(A, usage=given))
    assert blocked.verdict is Verdict.BLOCKED
    assert "an allocation of pod ml/trainer" in blocked.problems[0].message


def test_clients_left_by_a_lost_daemon_are_no_obstacle() -> None:
    """They are clients of MPS already."""
    assert [StartMps] == kinds(
        plan_gpu(whole(A), without_mig(T4, usage=CLIENT, compute_mode=EXCLUSIVE))
    )


# --- time slices ------------------------------------------------------------------------------


def test_time_slice_and_mode() -> None:
    """The interval is set, and a mode that lets processes take turns."""
    desired = whole(time_slice=TimeSlice.LONG)
    found = without_mig(T4, compute_mode=EXCLUSIVE, time_slice=TimeSlice.DEFAULT)
    result = plan_gpu(desired, found)
    assert [SetTimeSlice, SetComputeMode] == kinds(result)
    assert plan_gpu(desired, result.after).verdict is Verdict.IN_SYNC
    back = plan_gpu(whole(), result.after)
    assert back.after == found


def test_time_slice_that_is_not_known_is_set() -> None:
    """It could be anything."""
    assert [SetTimeSlice] == kinds(plan_gpu(whole(time_slice=TimeSlice.DEFAULT), T4))


def test_time_slice_of_others_is_left_alone() -> None:
    """What the agent did not set is not set back."""
    assert plan_gpu(whole(), without_mig(T4, time_slice=TimeSlice.LONG)).steps == ()


def test_from_mps_to_time_slices_and_back() -> None:
    """The daemon goes before, the interval comes back before."""
    sliced = plan_gpu(whole(time_slice=TimeSlice.LONG), running(A, time_slice=TimeSlice.SHORT))
    assert [StopMps, SetTimeSlice, SetComputeMode] == kinds(sliced)
    again = plan_gpu(whole(A), sliced.after)
    assert [SetTimeSlice, SetComputeMode, StartMps] == kinds(again)
    assert TimeSlice.SHORT is again.after.time_slice


# --- MIG devices ------------------------------------------------------------------------------


def test_a_client_is_named_once() -> None:
    """The driver and the daemon both know of it."""
    seen = Usage((User(815, "train", "process", 1 << 30),))
    (problem,) = plan_gpu(whole(), running(A, clients=CLIENT, usage=seen)).problems
    assert problem.message.count("pid 815") == 1
