"""How readings are judged over time: silence, holds and rates, repairs, the driver's word."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.health.findings import Action, End, Severity
from nodeagent.health.readings import Answer, InstanceReading, LinkReading, Silence
from nodeagent.health.state import Trail
from nodeagent.plan.observed import Gpu, ObservedNode
from tests.health.rig import ADDRESS, EPOCH, GPU, LEFT, LOG, RIGHT, Node, ends, gpu, known

# --- the driver that does not answer --------------------------------------------------------------


@pytest.mark.parametrize(("age", "severity"), [(599.0, "unknown"), (600.0, "unhealthy")])
def test_a_hanging_driver_needs_a_reboot_in_the_end(node: Node, age: float, severity: str) -> None:
    node.read(gpu(answer=Answer(Silence.HANGS, last=node.now + 1 - age, reason="no answer in 9 s")))
    assert node.one("gpuHangs").severity.value == severity
    assert node.one("gpuHangs").evidence.startswith("no answer in 9 s; the last answer is")


def test_a_gpu_that_answers_now_and_then() -> None:
    node, reported = Node(), []
    for second in range(60):
        node.read(gpu(answer=Answer(Silence.FAILS if second % 2 and second < 40 else None)))
        assert node.last is not None
        reported += [f.cause for f in node.last.raised] + [e.end.name for e in node.last.ended]
    assert reported == ["gpuUnknown", "GONE"]


def test_what_was_found_stays_while_the_driver_hangs(node: Node) -> None:
    """Not knowing is no recovery."""
    node.read(gpu(ecc_uncorrected=1))
    node.read(gpu(answer=Answer(Silence.HANGS)), after=60.0)
    assert node.causes() == {"eccUncorrected", "gpuHangs"}


def test_a_gpu_that_was_never_listed(node: Node) -> None:
    """The PCI bus knows of one more than NVML does."""
    for _ in range(2):
        node.read(
            listed_addresses=("00000000:1A:00.0",),
            pci_addresses=("0000:1a:00.0", "0000:1b:00.0"),
            after=30.0,
        )
    finding = node.one("gpuMissing")
    assert finding.place.gpu == ""
    assert finding.evidence.endswith("0000:1b:00.0")


def test_a_wait_for_events_that_fails_in_passing(node: Node) -> None:
    """As when the event set of a lost GPU is made anew; reported after ten seconds of it."""
    node.read(listener=Answer(Silence.FAILS, last=node.now), after=9.0)
    assert node.causes() == set()
    node.read(listener=Answer(Silence.FAILS, last=node.now - 9.0), after=1.0)
    assert node.causes() == {"eventsUnheard"}
    node.read(listener=Answer(last=node.now), after=1.0)
    assert node.causes() == set()


def test_a_driver_that_is_not_there_does_not_hang(node: Node) -> None:
    """It is one cause at a time, for the node and for GPUs that were known."""
    node.read(gpu(answer=Answer()), answer=Answer())
    gone = Answer(Silence.NO_LIBRARY)
    node.read(gpu(answer=gone), answer=gone)
    assert node.causes() == {"driverMissing", "gpuUnknown"}
    node.read(answer=Answer(Silence.HANGS))
    assert node.causes() == {"driverHangs", "gpuUnknown"}


# --- details --------------------------------------------------------------------------------------


def test_an_idle_link_is_not_judged(node: Node) -> None:
    """Its generation and width fall to save power: neither raised nor ended."""
    narrow = gpu(pcie_generation=1, pcie_generation_max=5, under_load=False)
    for _ in range(10):
        node.read(narrow, after=10.0)
    assert node.causes() == set()


def test_a_link_that_was_never_up_is_not_missed(node: Node) -> None:
    """Boards without a bridge have links that are down, and MIG mode uses none."""
    node.read(gpu(nvlinks=(LinkReading(0, up=False),)))
    assert node.causes() == set()
    node.read(gpu(nvlinks=(LinkReading(0, up=True),)))
    node.read(gpu(nvlinks=(LinkReading(0, up=False),), mig=True))
    assert node.causes() == set()
    node.read(gpu(nvlinks=(LinkReading(0, up=False),), mig=False))
    assert node.causes() == set()


def test_a_clock_that_jumps(node: Node) -> None:
    hot = gpu(temperature=95, slowdown_temperature=90)
    node.read(hot)
    node.read(hot, after=-500.0)
    assert node.causes() == set()
    node.now += 500.0
    node.read(hot, after=31.0)
    assert node.causes() == {"tooHot"}
    node.reboot()
    assert node.state.at is not None
    assert node.state.at.uptime == node.now, "which begins anew with the boot"


def test_a_cool_moment_is_no_end(node: Node) -> None:
    for degrees, expected in ((90, False), (90, True), (86, True), (87, True), (86, True)):
        node.read(gpu(temperature=degrees, slowdown_temperature=90), after=30.0)
        assert bool(node.causes()) is expected
    node.read(gpu(temperature=86, slowdown_temperature=90), after=29.0)
    assert node.causes() == {"tooHot"}
    node.read(gpu(temperature=86, slowdown_temperature=90), after=1.0)
    assert node.causes() == set()


def test_a_counter_that_starts_anew_has_no_rate() -> None:
    """A trail begins again when its counter goes back, and is short however often it is read."""
    trail = Trail()
    for second in range(1000):
        trail = trail.grown(float(second), float(second * 3), 60.0)
    assert len(trail.samples) <= 14
    assert trail.rate(60.0) == pytest.approx(3.0)
    assert trail.grown(1000.0, 1.0, 60.0).rate(60.0) is None
    for gap, rate in ((60.0, 3.0), (60.1, None)):  # read as seldom as once in a window, or less
        assert Trail(((0.0, 0.0),)).grown(gap, gap * 3, 60.0).rate(60.0) == rate


# --- properties -----------------------------------------------------------------------------------


_DEGREES = st.lists(st.integers(80, 95), min_size=1, max_size=120)


@given(_DEGREES, st.integers(1, 20))
@settings(max_examples=60)
def test_no_finding_flaps(degrees: list[int], step: int) -> None:
    """Between a beginning and the next end, and the other way round, lies the hold of 30 s."""
    node = Node()
    turns = []
    for value in degrees:
        read = gpu(temperature=value, slowdown_temperature=90)
        evaluation = node.read(read, after=float(step))
        turns += [node.now for _ in (*evaluation.raised, *evaluation.ended)]
    gaps = [later - earlier for earlier, later in pairwise(turns)]
    assert all(gap >= 30.0 for gap in gaps)


@given(st.lists(st.floats(0, 1), min_size=30, max_size=80))
@settings(max_examples=40)
def test_rates_do_not_flap(shares: list[float]) -> None:
    node = Node()
    count, last = 0.0, 0.0
    for share in shares:
        count += share * 40
        evaluation = node.read(gpu(pcie_replays=int(count), pcie_generation_max=5, pcie_width=16),
                              after=30.0)  # fmt: skip
        rate = (node.state.gpus[GPU].trails["replays"].rate(600.0) or 0.0) * 60 / 16
        if evaluation.raised:
            assert rate >= 1.92
            last = rate
        if evaluation.ended:
            assert rate < 1.92 * 0.5 < last


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


@pytest.mark.parametrize(
    ("now", "instance", "severity"),
    [
        ({}, 2, Severity.UNHEALTHY),  # not read: the whole GPU is not under suspicion
        ({"instances": ()}, None, Severity.DEGRADED),  # gone: its count stays in the GPU's
    ],
)
def test_errors_of_an_instance_that_is_not_read(
    now: dict[str, Any], instance: int | None, severity: Severity
) -> None:
    """An instance that is gone does not leave the GPU fenced."""
    node, sick = known(), (InstanceReading(1, LEFT, 0), InstanceReading(2, RIGHT, 3))
    node.read(gpu(mig=True, instances=sick, ecc_uncorrected=3))
    node.read(gpu(mig=True, ecc_uncorrected=3, **now))
    finding = node.one("eccUncorrected")
    assert (finding.place.instance, finding.severity) == (instance, severity)


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


def test_an_energy_counter_that_went_back_is_a_reset(node: Node) -> None:
    """Only a reset, or a driver loaded anew, turns it back."""
    node.read(gpu(energy=1000))
    node.xid(95)
    node.read(gpu(energy=2000))
    assert node.causes() == {"xidReset"}
    node.read(gpu(energy=5))
    assert ends(node) == [End.RESET]


def test_a_reset_that_did_not_help_is_no_end(node: Node) -> None:
    sick = gpu(ecc_uncorrected=1)
    node.read(sick)
    since = node.one("eccUncorrected").since
    evaluation = node.read(sick, resets=frozenset({GPU}))
    assert (evaluation.raised, evaluation.ended) == ((), ())
    assert node.one("eccUncorrected").since == since


@pytest.mark.parametrize(("address", "replaced"), [(ADDRESS, True), ("00000000:1B:00.0", False)])
def test_a_gpu_that_another_one_is_in_the_place_of(
    node: Node, address: str, replaced: bool
) -> None:
    node.read(gpu())
    node.xid(95)
    node.read(gpu(uuid="GPU-2", pci_bus_id=address), known=frozenset({"GPU-2"}))
    assert node.ended == ([("xidReset", End.REPLACED)] if replaced else [])
    assert (GPU in node.state.gpus) is not replaced


@pytest.mark.parametrize("end", [End.RESET, End.CLEARED])
def test_what_ended_has_to_last_anew(node: Node, end: End) -> None:
    """It was there before, and is found again only if it stays for as long as at first."""
    narrow = gpu(pcie_width=8, pcie_width_max=16, under_load=True)
    for _ in range(2):
        node.read(narrow, after=60.0)
    if end is End.RESET:
        node.read(gpu(), resets=frozenset({GPU}))
    else:
        node.read(gpu(), cleared=frozenset({node.one("pcieLink").key}))
    assert ends(node) == [end]
    for seconds, causes in ((1.0, set[str]()), (60.0, {"pcieLink"})):
        node.read(narrow, after=seconds)
        assert node.causes() == causes


@pytest.mark.parametrize(
    ("field", "mine", "usual", "causes"),
    [
        ("power_limit", 700_000, 350_000, {"powerLimitUnlike"}),
        ("pcie_width_max", 8, 16, {"pcieUnlike"}),
        ("pcie_width_max", 16, 8, set()),  # more of it is no fault
    ],
)
def test_most_gpus_are_right(field: str, mine: int, usual: int, causes: set[str]) -> None:
    node, figures = Node(), {"GPU-2": usual, "GPU-3": usual, GPU: mine}
    node.observed = ObservedNode(tuple(Gpu(n, uuid, "H100") for n, uuid in enumerate(figures)))
    for _ in range(4):
        read = ({"uuid": uuid, field: figure} for uuid, figure in figures.items())
        node.read(*(gpu(complete=True, pcie_generation_max=5, **one) for one in read), after=30.0)
    assert [(f.cause, f.place.gpu) for f in node.state.findings] == [(c, GPU) for c in causes]


def test_a_repair_that_helps_twice_and_not_for_long(node: Node) -> None:
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


@pytest.mark.parametrize(
    ("ahead", "after", "action"),
    [
        (0.0, 8 * 86400.0, Action.RESET_GPU),
        (4 * 365 * 86400.0, 8 * 86400.0, Action.RESET_GPU),  # the clock was set to right
        (60.0, 60.0, Action.INSPECT_HARDWARE),  # ... and to what it was a moment ago
    ],
)
def test_repairs_are_forgotten_after_a_week(ahead: float, after: float, action: Action) -> None:
    """A clock that is set back keeps them no longer: a repair of the future counts as of now."""
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


def test_a_clock_that_is_set_after_the_boot_forgets_no_repair(node: Node) -> None:
    """Without a battery it begins in 1970, and is right a minute later."""
    node.xid(95, source=LOG)
    node.reboot()
    node.ahead = -EPOCH
    node.reboot()
    node.ahead = 0.0
    node.read(after=60.0)
    assert len(node.state.repairs) == 1


def test_a_support_case_that_comes_back(node: Node) -> None:
    node.read(gpu())
    node.xid(123)
    assert node.one("xidSupport").action is Action.NONE
    evaluation = node.xid(123, after=60.0)
    assert node.one("xidSupport").action is Action.INSPECT_HARDWARE
    assert [f.cause for f in evaluation.changed] == ["xidSupport"]


# --- the driver's word ----------------------------------------------------------------------------


def test_the_driver_asks_for_no_recovery(node: Node) -> None:
    node.xid(95)
    node.read(gpu(recovery_action=0), after=5.0)
    assert node.one("xidReset").severity is Severity.UNHEALTHY
    node.read(gpu(recovery_action=0), after=10.0)
    finding = node.one("xidReset")
    assert (finding.severity, finding.action) == (Severity.HEALTHY, Action.RESTART_APPLICATION)
    node.read(gpu(recovery_action=0), after=600.0)
    assert ends(node) == [End.LAPSED]


def test_the_driver_asks_for_more(node: Node) -> None:
    node.xid(95)
    node.read(gpu(recovery_action=2), after=10.0)
    assert node.one("xidReset").action is Action.REBOOT
    assert node.one("recoveryAction").action is Action.REBOOT


def test_a_silent_driver_does_not_correct(node: Node) -> None:
    """What it said before the XID is not a word on it."""
    node.read(gpu(recovery_action=0))
    node.xid(95)
    node.read(gpu(answer=Answer(Silence.HANGS)), after=60.0)
    assert node.one("xidReset").severity is Severity.UNHEALTHY


def test_the_kernel_log_reports_the_recovery_action() -> None:
    node = known()
    evaluation = node.xid(154, source=LOG, recovery=2)
    assert [e.xid for e in evaluation.xids] == [154]
    assert node.one("recoveryAction").action is Action.REBOOT


def test_contained_errors_degrade(node: Node) -> None:
    """Uncorrected errors after which the driver asks for nothing leave the GPU in use."""
    node.read(gpu(ecc_uncorrected=1, recovery_action=0))
    assert node.one("eccUncorrected").severity is Severity.DEGRADED
