"""Instances that go, resets and repairs that help or do not, and what the driver asks for."""

from __future__ import annotations

import pytest

from nodeagent.health.findings import Action, End, Severity
from nodeagent.health.readings import Answer, InstanceReading, Silence
from tests.health.rig import EPOCH, GPU, LEFT, LOG, RIGHT, Node, ends, gpu, known

# --- instances ------------------------------------------------------------------------------------


def test_a_sick_instance_is_sick_alone() -> None:
    """Errors that an instance counts are not the GPU's as well; those beyond them are."""
    node = known()
    sick = (InstanceReading(1, LEFT, 0), InstanceReading(2, RIGHT, 3))
    node.read(gpu(instances=sick, ecc_uncorrected=3))
    finding = node.one("eccUncorrected")
    assert (finding.place.instance, finding.place.placement) == (2, RIGHT)
    node.read(gpu(instances=sick, ecc_uncorrected=4))
    assert {f.place.instance for f in node.state.findings} == {None, 2}


def test_errors_of_an_unknown_instance() -> None:
    """While the instances could not be read, the whole GPU is not under suspicion."""
    node = known()
    sick = (InstanceReading(1, LEFT, 0), InstanceReading(2, RIGHT, 3))
    errors = 3
    node.read(gpu(mig=True, instances=sick, ecc_uncorrected=errors))
    node.read(gpu(mig=True, ecc_uncorrected=errors))
    assert node.one("eccUncorrected").place.instance == 2


def test_errors_of_an_instance_that_is_gone_leave_the_gpu_in_use() -> None:
    """Its count went with it and stays in the GPU's: the GPU is degraded and is not fenced."""
    node = known()
    errors = 3
    node.read(gpu(mig=True, instances=(InstanceReading(2, RIGHT, 3),), ecc_uncorrected=errors))
    node.read(gpu(mig=True, instances=(), ecc_uncorrected=errors))
    finding = node.one("eccUncorrected")
    assert (finding.place.instance, finding.severity) == (None, Severity.DEGRADED)


def test_an_application_error_goes_with_its_instance() -> None:
    """Gone, or replaced by another one of the same id; what needs a reset stays with the slices."""
    node = known()
    node.xid(31, instance=2)
    node.xid(95, instance=2)
    node.read(gpu(instances=(InstanceReading(2, LEFT),)))
    assert ends(node) == [End.INSTANCE_GONE]
    assert node.one("xidReset").place.placement == RIGHT


def test_what_was_measured_of_an_instance_goes_with_it() -> None:
    """No reading can end it any more."""
    node = known()
    node.read(gpu(instances=(InstanceReading(2, RIGHT, 3),)))
    node.read(gpu(instances=()))
    assert ends(node) == [End.INSTANCE_GONE]


# --- resets, reboots, repairs ---------------------------------------------------------------------


def test_an_energy_counter_that_went_back_is_a_reset() -> None:
    """Only a reset, or a driver loaded anew, turns it back."""
    node = Node()
    node.read(gpu(energy=1000))
    node.xid(95)
    node.read(gpu(energy=2000))
    assert node.causes() == {"xidReset"}
    node.read(gpu(energy=5))
    assert ends(node) == [End.RESET]


def test_a_reset_that_did_not_help_is_no_end() -> None:
    """What the same reading still shows goes on, as old as it is."""
    node = Node()
    sick = gpu(ecc_uncorrected=1)
    node.read(sick)
    since = node.one("eccUncorrected").since
    evaluation = node.read(sick, resets=frozenset({GPU}))
    assert (evaluation.raised, evaluation.ended) == ((), ())
    assert node.one("eccUncorrected").since == since


def test_a_repair_that_helps_twice_and_not_for_long() -> None:
    """After the second reset or reboot for the same XID the hardware is to be inspected."""
    node = Node()
    node.read(gpu())
    for reboot in (False, True):
        node.xid(95, after=60.0)
        assert node.one("xidReset").action is Action.RESET_GPU
        if reboot:
            node.reboot()
        node.read(gpu(), resets=frozenset() if reboot else frozenset({GPU}))
    node.xid(95, after=60.0)
    finding = node.one("xidReset")
    assert finding.action is Action.INSPECT_HARDWARE
    assert "2 resets or reboots" in finding.evidence


def test_repairs_are_forgotten() -> None:
    """After a week they do not count any more."""
    node = Node()
    node.read(gpu())
    for _ in range(2):
        node.xid(95)
        node.read(resets=frozenset({GPU}))
    node.read(gpu(), after=8 * 86400.0)
    node.xid(95)
    assert node.one("xidReset").action is Action.RESET_GPU


@pytest.mark.parametrize(
    ("ahead", "after", "action"),
    [
        (4 * 365 * 86400.0, 8 * 86400.0, Action.RESET_GPU),  # the clock was set to right
        (60.0, 60.0, Action.INSPECT_HARDWARE),  # ... and to what it was a moment ago
    ],
)
def test_a_clock_that_is_set_back_keeps_repairs_no_longer(
    ahead: float, after: float, action: Action
) -> None:
    """A repair of the future, as the clock is now, counts as one of now."""
    node = Node(ahead=ahead)
    node.read(gpu())
    for _ in range(2):
        node.xid(95)
        node.read(resets=frozenset({GPU}))
    node.ahead = 0.0
    node.read(gpu())
    node.read(gpu(), after=after)
    node.xid(95)
    assert node.one("xidReset").action is action


def test_a_clock_that_is_set_after_the_boot_forgets_no_repair() -> None:
    """Without a battery it begins in 1970, and is right a minute later."""
    node = Node()
    node.xid(95, source=LOG)
    node.reboot()
    node.ahead = -EPOCH
    node.reboot()
    node.ahead = 0.0
    node.read(after=60.0)
    assert len(node.state.repairs) == 1


def test_a_support_case_that_comes_back() -> None:
    """What has no defined action is to be inspected when it is seen again."""
    node = Node()
    node.read(gpu())
    node.xid(123)
    assert node.one("xidSupport").action is Action.NONE
    evaluation = node.xid(123, after=60.0)
    assert node.one("xidSupport").action is Action.INSPECT_HARDWARE
    assert [f.cause for f in evaluation.changed] == ["xidSupport"]


# --- the driver's word ----------------------------------------------------------------------------


def test_the_driver_asks_for_no_recovery() -> None:
    """Ten seconds later its word counts: the GPU is well, and the finding lapses."""
    node = Node()
    node.xid(95)
    node.read(gpu(recovery_action=0), after=5.0)
    assert node.one("xidReset").severity is Severity.UNHEALTHY
    node.read(gpu(recovery_action=0), after=10.0)
    finding = node.one("xidReset")
    assert (finding.severity, finding.action) == (Severity.HEALTHY, Action.RESTART_APPLICATION)
    node.read(gpu(recovery_action=0), after=600.0)
    assert ends(node) == [End.LAPSED]


def test_the_driver_asks_for_more() -> None:
    """A reset by the table is a reboot where the driver says so."""
    node = Node()
    node.xid(95)
    node.read(gpu(recovery_action=2), after=10.0)
    assert node.one("xidReset").action is Action.REBOOT
    assert node.one("recoveryAction").action is Action.REBOOT


def test_a_silent_driver_does_not_correct() -> None:
    """What it said before the XID is not a word on it."""
    node = Node()
    node.read(gpu(recovery_action=0))
    node.xid(95)
    node.read(gpu(answer=Answer(Silence.HANGS)), after=60.0)
    assert node.one("xidReset").severity is Severity.UNHEALTHY


def test_the_kernel_log_reports_the_recovery_action() -> None:
    """XID 154 announces it where the driver has no field for it."""
    node = known()
    evaluation = node.xid(154, source=LOG, recovery=2)
    assert [e.xid for e in evaluation.xids] == [154]
    assert node.one("recoveryAction").action is Action.REBOOT


def test_contained_errors_degrade() -> None:
    """Uncorrected errors after which the driver asks for nothing leave the GPU in use."""
    node = Node()
    node.read(gpu(ecc_uncorrected=1, recovery_action=0))
    assert node.one("eccUncorrected").severity is Severity.DEGRADED
