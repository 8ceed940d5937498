"""What is advised for loads of known needs, and that it holds them."""

import pytest

from nodeagent.metrics.agent_samples import advice_samples
from nodeagent.plan.observed import Gpu
from nodeagent.structs import replace
from nodeagent.use.advice import Advice, advise, most_first
from nodeagent.use.records import Grant, Holder, Measured, Records, Spread, Use
from tests.plan.cards import card

GIB = 1 << 30
DAY = 86400.0
H100, A100, T4 = card("h100-80gb"), card("a100-40gb"), card("t4")


def steady(value: float, seconds: float) -> Spread:
    return Spread(value, value, value, seconds)


def use(
    gpu: Gpu,
    device: str,
    memory: float | None,
    sm: float | None = None,
    *,
    granted: float = 0.0,
    threads: float | None = None,
    engine: float | None = None,
    dram: float | None = None,
    held: float = 2 * DAY,
    full: float = 0.0,
) -> Use:
    """Of a steady load: GiB and percent."""
    profile = gpu.profile(device)
    size = int(granted * GIB) or (profile.memory if profile else gpu.memory)
    return Use(
        Holder("workload", "x", "team-a", "main"),
        Grant(device, gpu.name, size, threads),
        held=held,
        at_limit=full,
        memory=None if memory is None else steady(memory * GIB, held),
        sm=None if sm is None else steady(sm, held),
        engine=None if engine is None else steady(engine, held),
        dram=None if dram is None else steady(dram, held),
    )


def one(gpu: Gpu, of: Use) -> Advice:
    return advise(of, [gpu])


# What a week of samples does not come to: tests/telemetry/test_week.py has the usual loads.
LOADS = {
    "multiprocessors full": (A100, use(A100, "1g.5gb", 2, 99, engine=50), "larger 2g.10gb"),
    "a T4 that could be shared": (T4, use(T4, "gpu", 3, engine=60), "smaller share 4 GiB 75 %"),
    "by the engine, which is never less": (
        A100, use(A100, "3g.20gb", 3, engine=50), "smaller 2g.10gb"),
    "memory not measured": (H100, use(H100, "3g.40gb", None, 12), "notEnough"),
    "a card that is not there now": (H100, use(A100, "3g.20gb", 3, 3), "notEnough"),
    "a profile of other days": (H100, use(H100, "3g.39gb", 3, 3), "notEnough"),
    "full at once, however short": (H100, use(H100, "1g.10gb", 9.7, full=5, held=60),
                                    "larger 1g.20gb"),
    "the whole card is full": (H100, use(H100, "gpu", 79, full=60), "larger"),
    "a T4 that works all the time": (T4, use(T4, "gpu", 3, engine=90), "keep"),
    "nothing else has its media engines": (A100, use(A100, "1g.5gb+me", 4.9, full=9), "larger"),
    "a share with memory to spare": (
        T4, use(T4, "share", 2, 9, granted=8, threads=10), "smaller share 3 GiB 10 %"),
    "a share that fits": (T4, use(T4, "share", 6, 10, granted=8, threads=50), "keep"),
    "a share whose threads are full": (
        T4, use(T4, "share", 6, 25, granted=8, threads=25), "larger share 8 GiB 40 %"),
    "a share whose memory is full": (
        T4, use(T4, "share", 8, 5, granted=8, threads=25, full=9), "larger share 12 GiB 25 %"),
    "a share of less than a GiB": (
        T4, use(T4, "share", 0.59, 5, granted=0.6, threads=25, full=9), "larger share 1 GiB 25 %"),
    "a share that would shrink at once": (
        T4, use(T4, "share", 2.09, 5, granted=2.1, threads=25, full=9), "larger share 3 GiB 25 %"),
    "a share whose threads are full, with memory to spare": (
        T4, use(T4, "share", 2, 25, granted=8, threads=25), "larger share 3 GiB 40 %"),
    "a share of a slice": (
        H100, use(H100, "share of 3g.40gb", 30, 5, granted=30, threads=40, full=9),
        "larger share 39.5 GiB 40 %"),
    "a whole card whose multiprocessors are full": (A100, use(A100, "gpu", 30, 99), "keep"),
    "a share that was measured for half of the time": (
        T4, replace(use(T4, "share", 0, granted=8, threads=50), sm=steady(10, DAY)),
        "smaller share 1 GiB 15 %"),
    "a share of a slice that was": (
        H100, replace(use(H100, "share of 3g.40gb", 2, granted=30, threads=40), sm=steady(5, DAY)),
        "smaller share 3 GiB 40 %"),
    "a share of all": (T4, use(T4, "share", 15, granted=15, full=9, held=DAY), "larger"),
}  # fmt: skip


def words(advice: Advice) -> str:
    size = f"{advice.memory / GIB:g} GiB" if advice.memory else ""
    threads = "" if advice.threads is None else f"{advice.threads:g} %"
    return " ".join(filter(None, (advice.verdict, advice.advised, size, threads)))


@pytest.mark.parametrize(("gpu", "of", "expected"), LOADS.values(), ids=LOADS.keys())
def test_the_advice_for_known_needs(gpu: Gpu, of: Use, expected: str) -> None:
    assert words(one(gpu, of)) == expected


@pytest.mark.parametrize(
    ("device", "threads", "sm", "expected"),
    [
        ("1g.5gb", None, 94.9, "keep"),
        ("1g.5gb", None, 95.1, "larger 2g.10gb"),
        ("share", 5.0, 4.7, "keep"),
        ("share", 5.0, 4.8, "larger share 5 GiB 10 %"),
    ],
)
def test_what_is_full_is_seen_in_records(
    device: str, threads: float | None, sm: float, expected: str
) -> None:
    """The bins, of which percentiles are the upper edges, divide what there can be at most."""
    records, grant = Records(), Grant(device, A100.name, 5 * GIB, threads)
    for passed, busy in ((DAY, sm), (60.0, threads or 100.0)):
        measured = Measured(memory=4 * GIB, sm=busy)
        records.add((Holder("unit", "x"), grant), measured, passed=passed, active=1.0, sharing=1)
    [found] = records.uses()
    assert words(one(A100, found)) == expected


def test_the_metric_has_changes_alone_of_what_is_held_now_and_no_more_than_devices() -> None:
    names = ["x", "a", "b", "c", "gone"]
    small = use(H100, "3g.40gb", 7.5, 12)
    many = [replace(small, holder=replace(small.holder, name=name)) for name in names]
    most = replace(use(H100, "gpu", 5, 3), holder=replace(small.holder, name="z"))
    other_size = replace(many[2], grant=replace(small.grant, memory=39 * GIB))
    uses = [*many, most, other_size, use(H100, "1g.10gb", 1, 3)]
    found = most_first(one(H100, use) for use in uses)
    assert sum(one.verdict == "keep" for one in found) == 1
    held = [(name, ("main", "team-a", name, "3g.40gb")) for name in ("c", "b", "x")]
    held += [("c", ("main", "team-a", *of)) for of in (("z", "gpu"), ("x", "1g.10gb"))]
    samples = list(advice_samples(found, held))
    assert [sample.labels[2] for sample in samples] == ["z", "b", "c"]
    assert samples[0].labels[3:] == ("gpu", "smaller", "1g.10gb")


def test_a_card_that_lists_no_profiles_now_is_known_by_its_like() -> None:
    for gpus in ([H100, replace(H100, profiles=())], [replace(H100, profiles=()), H100]):
        assert advise(use(H100, "3g.40gb", 3, 8), gpus).advised == "1g.10gb"


def test_what_was_not_measured_is_said() -> None:
    assert one(A100, use(A100, "3g.20gb", 3)).why == (
        "its memory's peak is 3 GiB",
        "its activity was not measured: this is by memory alone",
        "1g.5gb has no decoder, whose use was not measured",
    )
    idle = replace(use(H100, "3g.40gb", 3, engine=8), idle_stretches=2, longest_idle=5000.0)
    assert one(H100, idle).why == (
        "its memory's peak is 3 GiB",
        "its GPU's activity at p95 is 8 %",
        "it was idle for up to 1.4 hours, 2 times for a minute or more",
    )
