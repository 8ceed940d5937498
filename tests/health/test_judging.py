"""Drivers that do not answer, readings that do not count, and findings that do not flap."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.health.readings import Answer, LinkReading, Silence
from nodeagent.health.state import Trail
from nodeagent.health.table import ROWS
from tests.health.rig import GPU, Node, gpu

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
    node.read(gpu(nvlinks=(LinkReading(0, up=False),)))
    assert node.causes() == set()
    node.read(gpu(nvlinks=(LinkReading(0, up=True),)))
    node.read(gpu(nvlinks=(LinkReading(0, up=False),), mig=True))
    assert node.causes() == set()
    node.read(gpu(nvlinks=(LinkReading(0, up=False),), mig=False))
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


def test_causes_are_words_of_the_interface() -> None:
    """They are camelCase and one each, since dashboards and scripts read them."""
    causes = [row.cause for row in ROWS]
    assert len(set(causes)) == len(causes)
    assert all(cause.isidentifier() and cause[0].islower() for cause in causes)


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
