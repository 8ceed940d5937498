"""Reports that come twice or late, repairs that do not help, and what outranks what."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.health.findings import Action, End, Severity, rank, worst
from nodeagent.health.kernel_log import pci_address
from nodeagent.health.readings import (
    Answer,
    GpuEventKind,
    InstanceReading,
    NvLink,
    Silence,
    Source,
    XidEvent,
)
from nodeagent.health.state import Trail
from nodeagent.health.table import ROWS
from nodeagent.plan.observed import Placement
from tests.health.rig import GPU, Node, gpu

LOG = Source.KERNEL_LOG
LEFT, RIGHT = Placement(0, 4), Placement(4, 4)


def _counts(node: Node) -> dict[int, int]:
    return {count.xid: count.count for count in node.state.xids}


def _ends(node: Node) -> list[End]:
    assert node.last is not None
    return [ended.end for ended in node.last.ended]


# --- two sources ----------------------------------------------------------------------------------


def _known() -> Node:
    node = Node()
    node.read(gpu(instances=(InstanceReading(1, LEFT), InstanceReading(2, RIGHT))))
    return node


@pytest.mark.parametrize("first", Source)
def test_an_xid_of_both_sources_counts_once(first: Source) -> None:
    """Either source may be first; the finding has NVML's instance and the kernel log's process."""
    node = _known()
    reports: dict[Source, dict[str, Any]] = {
        Source.NVML: {"instance": 2},
        LOG: {"pid": 4711, "process": "python", "message": "MMU Fault"},
    }
    second = LOG if first is Source.NVML else Source.NVML
    node.xid(31, source=first, **reports[first])
    evaluation = node.xid(31, source=second, **reports[second])
    assert evaluation.xids == ()
    assert _counts(node) == {31: 1}
    finding = node.one("xidApplication")
    assert (finding.count, finding.pid, finding.place.instance) == (1, 4711, 2)
    assert "MMU Fault" in finding.evidence


def test_each_word_of_one_source_takes_one_of_the_other() -> None:
    """Three errors that both sources tell are three; a fourth of one source is one more."""
    node = _known()
    for source in (LOG, Source.NVML):
        for _ in range(3):
            node.xid(31, source=source, after=0.1)
    assert _counts(node) == {31: 3}
    node.xid(31, source=LOG, after=0.1)
    assert _counts(node) == {31: 4}
    assert node.one("xidApplication").count == 4


def test_far_apart_or_elsewhere_is_another_one() -> None:
    """The same number counts again later, or in another GPU instance."""
    node = _known()
    node.xid(31, source=LOG, instance=1)
    node.xid(31, instance=2)
    node.xid(31, source=LOG, instance=2, after=60.0)
    assert sum(count.count for count in node.state.xids) == 3


def test_a_gpu_falls_off_the_bus_once() -> None:
    """However many lines and sources say so."""
    node = _known()
    for _ in range(3):
        node.xid(79, source=LOG, after=0.1)
    node.xid(79, after=0.1)
    assert _counts(node) == {79: 1}


def test_the_kernel_log_read_again_reports_nothing() -> None:
    """An agent that starts anew may read the log from its beginning; after a reboot it is new."""
    node = _known()
    node.xid(31, source=LOG, sequence=7)
    node.xid(31, source=LOG, sequence=7, after=100.0)
    assert _counts(node) == {31: 1}
    node.reboot()
    node.read(gpu())
    node.xid(31, source=LOG, sequence=3)
    assert _counts(node) == {31: 2}


def test_an_address_that_no_gpu_has() -> None:
    """It is counted and reported for the node, with the address."""
    node = _known()
    node.read(xids=(XidEvent(79, node.now, LOG, pci="0000:99:00"),))
    finding = node.one("fallenOffBus")
    assert finding.place.gpu == ""
    assert "0000:99:00" in finding.evidence


@pytest.mark.parametrize("text", ["00000000:1A:00.0", "0000:1a:00", "PCI:0000:1a:00.0"])
def test_addresses_are_alike(text: str) -> None:
    """NVML and the kernel write the same address differently."""
    assert pci_address(text) == (0, 0x1A, 0)


# --- instances ------------------------------------------------------------------------------------


def test_a_sick_instance_is_sick_alone() -> None:
    """Errors that an instance counts are not the GPU's as well; those beyond them are."""
    node = _known()
    sick = (InstanceReading(1, LEFT, 0), InstanceReading(2, RIGHT, 3))
    node.read(gpu(instances=sick, ecc_uncorrected=3))
    finding = node.one("eccUncorrected")
    assert (finding.place.instance, finding.place.placement) == (2, RIGHT)
    node.read(gpu(instances=sick, ecc_uncorrected=4))
    assert {f.place.instance for f in node.state.findings} == {None, 2}


def test_errors_of_an_unknown_instance() -> None:
    """While the instances could not be read, the whole GPU is not under suspicion."""
    node = _known()
    sick = (InstanceReading(1, LEFT, 0), InstanceReading(2, RIGHT, 3))
    errors = 3
    node.read(gpu(mig=True, instances=sick, ecc_uncorrected=errors))
    node.read(gpu(mig=True, ecc_uncorrected=errors))
    assert node.one("eccUncorrected").place.instance == 2


def test_errors_of_an_instance_that_is_gone_leave_the_gpu_in_use() -> None:
    """Its count went with it and stays in the GPU's: the GPU is degraded and is not fenced."""
    node = _known()
    errors = 3
    node.read(gpu(mig=True, instances=(InstanceReading(2, RIGHT, 3),), ecc_uncorrected=errors))
    node.read(gpu(mig=True, instances=(), ecc_uncorrected=errors))
    finding = node.one("eccUncorrected")
    assert (finding.place.instance, finding.severity) == (None, Severity.DEGRADED)


def test_an_application_error_goes_with_its_instance() -> None:
    """Gone, or replaced by another one of the same id; what needs a reset stays with the slices."""
    node = _known()
    node.xid(31, instance=2)
    node.xid(95, instance=2)
    node.read(gpu(instances=(InstanceReading(2, LEFT),)))
    assert _ends(node) == [End.INSTANCE_GONE]
    assert node.one("xidReset").place.placement == RIGHT


def test_what_was_measured_of_an_instance_goes_with_it() -> None:
    """No reading can end it any more."""
    node = _known()
    node.read(gpu(instances=(InstanceReading(2, RIGHT, 3),)))
    node.read(gpu(instances=()))
    assert _ends(node) == [End.INSTANCE_GONE]


# --- resets, reboots, repairs ---------------------------------------------------------------------


def test_an_energy_counter_that_went_back_is_a_reset() -> None:
    """Only a reset, or a driver loaded anew, turns it back."""
    node = Node()
    node.read(gpu(energy=1000))
    node.xid(95)
    node.read(gpu(energy=2000))
    assert node.causes() == {"xidReset"}
    node.read(gpu(energy=5))
    assert _ends(node) == [End.RESET]


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
    assert _ends(node) == [End.LAPSED]


def test_the_driver_asks_for_more() -> None:
    """A reset by the table is a reboot where the driver says so."""
    node = Node()
    node.xid(95)
    node.read(gpu(recovery_action=2), after=10.0)
    assert node.one("xidReset").action is Action.REBOOT
    assert node.one("recoveryAction").action is Action.REBOOT


def test_a_silent_driver_does_not_correct() -> None:
    """What it said before the XID is no word on it."""
    node = Node()
    node.read(gpu(recovery_action=0))
    node.xid(95)
    node.read(gpu(answer=Answer(Silence.HANGS)), after=60.0)
    assert node.one("xidReset").severity is Severity.UNHEALTHY


def test_the_kernel_log_reports_the_recovery_action() -> None:
    """XID 154 announces it where the driver has no field for it."""
    node = _known()
    evaluation = node.xid(154, source=LOG, recovery=2)
    assert [e.xid for e in evaluation.xids] == [154]
    assert node.one("recoveryAction").action is Action.REBOOT


def test_contained_errors_degrade() -> None:
    """Uncorrected errors after which the driver asks for nothing leave the GPU in use."""
    node = Node()
    node.read(gpu(ecc_uncorrected=1, recovery_action=0))
    assert node.one("eccUncorrected").severity is Severity.DEGRADED


# --- the driver that does not answer --------------------------------------------------------------


@pytest.mark.parametrize(("age", "severity"), [(599.0, "unknown"), (600.0, "unhealthy")])
def test_a_hanging_driver_needs_a_reboot_in_the_end(age: float, severity: str) -> None:
    """At first nothing is known; after ten minutes without an answer it is unhealthy."""
    node = Node()
    node.read(gpu(answer=Answer(Silence.HANGS, last=node.now + 1 - age)))
    assert node.one("gpuHangs").severity.value == severity


def test_a_gpu_that_answers_now_and_then() -> None:
    """It is reported once, and its end once, when it has answered for a while."""
    node, reported = Node(), []
    for second in range(60):
        node.read(gpu(answer=Answer(Silence.FAILS if second % 2 and second < 40 else None)))
        assert node.last is not None
        reported += [f.cause for f in node.last.raised] + [e.end.name for e in node.last.ended]
    assert reported == ["gpuUnknown", "GONE"]


def test_what_was_found_stays_while_the_driver_hangs() -> None:
    """Not knowing is no recovery."""
    node = Node()
    node.read(gpu(ecc_uncorrected=1))
    node.read(gpu(answer=Answer(Silence.HANGS)), after=60.0)
    assert node.causes() == {"eccUncorrected", "gpuHangs"}


def test_a_gpu_that_was_never_listed() -> None:
    """The PCI bus knows of one more than NVML does."""
    node = Node()
    for _ in range(2):
        node.read(
            listed_addresses=("00000000:1A:00.0",),
            pci_addresses=("0000:1a:00.0", "0000:1b:00.0"),
            after=30.0,
        )
    finding = node.one("gpuMissing")
    assert finding.place.gpu == ""
    assert finding.evidence.endswith("0000:1b:00.0")


# --- details --------------------------------------------------------------------------------------


def test_an_idle_link_is_not_judged() -> None:
    """Its generation and width fall to save power: neither raised nor ended."""
    node = Node()
    narrow = gpu(pcie_generation=1, pcie_generation_max=5, under_load=False)
    for _ in range(10):
        node.read(narrow, after=10.0)
    assert node.causes() == set()


def test_a_link_that_was_never_up_is_not_missed() -> None:
    """Boards without a bridge have links that are down, and MIG mode uses none."""
    node = Node()
    node.read(gpu(nvlinks=(NvLink(0, up=False),)))
    assert node.causes() == set()
    node.read(gpu(nvlinks=(NvLink(0, up=True),)))
    node.read(gpu(nvlinks=(NvLink(0, up=False),), mig=True))
    assert node.causes() == set()
    node.read(gpu(nvlinks=(NvLink(0, up=False),), mig=False))
    assert node.causes() == set()


def test_a_fatal_nvlink_error() -> None:
    """The kernel log says that it is fatal, after NVML reported it without."""
    node = _known()
    node.xid(149)
    assert node.one("xidNvlink").severity is Severity.DEGRADED
    node.xid(149, source=LOG, fatal=True, detail=4)
    finding = node.one("xidNvlink")
    assert (finding.severity, finding.action) == (Severity.UNHEALTHY, Action.RESET_GPU)
    node.read(gpu(), after=90000.0)
    assert node.causes() == {"xidNvlink"}


def test_a_known_nuisance_is_only_counted() -> None:
    """An XID of the class information makes no finding."""
    node = Node()
    evaluation = node.xid(43)
    assert _counts(node) == {43: 1}
    assert [e.xid for e in evaluation.xids] == [43]
    assert node.causes() == set()


def test_a_clock_that_jumps() -> None:
    """Neither a late reading nor a changed time of day ends or raises anything."""
    node = Node()
    hot = gpu(temperature=95, slowdown_temperature=90)
    node.read(hot)
    node.read(hot, after=-500.0)
    assert node.causes() == set()
    node.now += 500.0
    node.read(hot, after=31.0)
    assert node.causes() == {"tooHot"}


def test_a_cool_moment_is_no_end() -> None:
    """It has to stay cool for 30 seconds, and warming up in between begins them anew."""
    node = Node()
    for degrees, expected in ((95, False), (95, True), (80, True), (95, True), (80, True)):
        node.read(gpu(temperature=degrees, slowdown_temperature=90), after=30.0)
        assert bool(node.causes()) is expected
    node.read(gpu(temperature=80, slowdown_temperature=90), after=29.0)
    assert node.causes() == {"tooHot"}
    node.read(gpu(temperature=80, slowdown_temperature=90), after=1.0)
    assert node.causes() == set()


def test_a_counter_that_starts_anew_has_no_rate() -> None:
    """A trail begins again when its counter goes back, and is short however often it is read."""
    trail = Trail()
    for second in range(1000):
        trail = trail.grown(float(second), float(second * 3), 60.0)
    assert len(trail.samples) <= 14
    assert trail.rate(60.0) == pytest.approx(3.0)
    assert trail.grown(1000.0, 1.0, 60.0).rate(60.0) is None


# --- properties -----------------------------------------------------------------------------------

_DEGREES = st.lists(st.integers(80, 95), min_size=1, max_size=120)


@given(_DEGREES, st.integers(1, 20))
@settings(max_examples=60, deadline=None)
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
@settings(max_examples=40, deadline=None)
def test_rates_do_not_flap(shares: list[float]) -> None:
    """Replays around their limit: between a beginning and an end the rate fell by half."""
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


_EVENTS = st.lists(
    st.tuples(st.sampled_from([13, 43, 63, 79, 95, 123, 149, 154, 700]), st.sampled_from(Source),
              st.floats(0, 30), st.sampled_from([None, 1, 2])),
    max_size=25,
)  # fmt: skip


@given(_EVENTS)
@settings(max_examples=60, deadline=None)
def test_counters_only_grow(events: list[tuple[int, Source, float, int | None]]) -> None:
    """Whatever is reported, a count of XIDs never falls, and each source's words suffice for it."""
    node = _known()
    before: dict[tuple[int, int | None], int] = {}
    for number, source, after, instance in events:
        node.xid(number, source=source, after=after, instance=instance)
        counts = {(c.xid, c.instance): c.count for c in node.state.xids}
        assert all(counts[key] >= value for key, value in before.items())
        before = counts
    for number in {e[0] for e in events}:
        reported = [sum(1 for e in events if e[:2] == (number, s)) for s in Source]
        counted = sum(count for (xid, _), count in before.items() if xid == number)
        assert counted <= sum(reported)
        if number != 79:
            assert counted >= max(reported)


@given(_EVENTS, st.lists(st.sampled_from(GpuEventKind), max_size=5))
@settings(max_examples=40, deadline=None)
def test_one_more_fault_is_never_better(
    events: list[tuple[int, Source, float, int | None]], more: list[GpuEventKind]
) -> None:
    """The status of a node to which more happened is at least as bad."""
    node, worse = _known(), _known()
    for number, source, after, instance in events:
        node.xid(number, source=source, after=after, instance=instance)
        worse.xid(number, source=source, after=after, instance=instance)
    for kind in more:
        node.read(gpu())
        worse.event(kind)
    statuses = [worst(f.severity for f in n.state.findings) for n in (node, worse)]
    assert rank(statuses[1]) >= rank(statuses[0])


def test_causes_are_words_of_the_interface() -> None:
    """They are camelCase and one each, since dashboards and scripts read them."""
    causes = [row.cause for row in ROWS]
    assert len(set(causes)) == len(causes)
    assert all(cause.isidentifier() and cause[0].islower() for cause in causes)


def test_a_wait_for_events_that_fails_in_passing() -> None:
    """As when the event set of a lost GPU is made anew; reported after ten seconds of it."""
    node = Node()
    node.read(listener=Answer(Silence.FAILS, last=node.now), after=9.0)
    assert node.causes() == set()
    node.read(listener=Answer(Silence.FAILS, last=node.now - 9.0), after=1.0)
    assert node.causes() == {"eventsUnheard"}
    node.read(listener=Answer(last=node.now), after=1.0)
    assert node.causes() == set()


def test_a_driver_that_is_not_there_does_not_hang() -> None:
    """It is one cause at a time, for the node and for GPUs that were known."""
    node = Node()
    node.read(gpu(answer=Answer()), answer=Answer())
    gone = Answer(Silence.NO_LIBRARY)
    node.read(gpu(answer=gone), answer=gone)
    assert node.causes() == {"driverMissing", "gpuUnknown"}
    node.read(answer=Answer(Silence.HANGS))
    assert node.causes() == {"driverHangs", "gpuUnknown"}
