import pytest

from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.samples import MonotonicCounters, SampleSet, Slice, Subject, WholeGpu, merged
from nodeagent.metrics.sources import Number
from tests.metrics.node import gpu, pod, slices

USED = 252
WHOLE = Subject(WholeGpu(gpu(0)))


def _slice(number: int, generation: int = 0) -> Subject:
    return Subject(Slice(gpu(0), "1g.10gb", number, generation))


def test_a_series_ends_with_its_instance() -> None:
    kept, gone = slices(gpu(0), 2)
    latest = [SampleSet({USED: ((WHOLE, 9), (kept, 1), (gone, 2))})]
    assert merged(latest, {gpu(0).uuid: (kept,)}).values[USED] == ((WHOLE, 9), (kept, 1))
    assert merged(latest, {}).values[USED] == ((WHOLE, 9),)


def test_an_instance_made_anew_has_no_old_values() -> None:
    latest = [SampleSet({USED: ((_slice(7), 5),)})]
    assert merged(latest, {gpu(0).uuid: (_slice(7, generation=1),)}).values[USED] == ()


def test_values_belong_to_the_pod_of_now() -> None:
    own = Subject(_slice(8).entity, pod("mine"))
    latest = [SampleSet({USED: ((_slice(7), 5), (own, 6))})]
    now = Subject(_slice(7).entity, pod("newcomer"))
    found = merged(latest, {gpu(0).uuid: (now, _slice(8))}).values[USED]
    assert found == ((now, 5), (own, 6))


def test_gpus_are_in_the_order_of_their_indices() -> None:
    second = Subject(WholeGpu(gpu(1)))
    latest = [SampleSet({USED: ((second, 2),)}), SampleSet({USED: ((WHOLE, 1),)})]
    assert merged(latest, {}).values[USED] == ((WHOLE, 1), (second, 2))


ENERGY, POWER, BANDWIDTH = 156, 155, 449


def _run(
    counters: MonotonicCounters, readings: list[Number | None], subject: Subject = WHOLE
) -> list[Number | None]:
    """What comes of readings one after the other; None: not read."""
    found: list[Number | None] = []
    for raw in readings:
        values = {} if raw is None else {ENERGY: ((subject, raw),)}
        steady = counters.steady(SampleSet(values)).values.get(ENERGY)
        found.append(steady[0][1] if steady else None)
    return found


@pytest.mark.parametrize(
    ("readings", "reported"),
    [
        ([5, 5, 9], [5, 5, 9]),
        ([100, 130, 10, 20], [100, 130, 140, 150]),  # the driver was loaded again
        ([100, None, 120], [100, None, 120]),  # a reading failed
        ([100, None, 20, 5], [100, None, 120, 125]),  # ... and meanwhile it began anew, and again
        ([0, 0], [0, 0]),
    ],
)
def test_counters_never_fall(readings: list[Number | None], reported: list[Number | None]) -> None:
    assert _run(MonotonicCounters(catalogue().fields), readings) == reported


def test_an_instance_made_anew_goes_on_where_the_labels_were() -> None:
    counters = MonotonicCounters(catalogue().fields)
    assert _run(counters, [100], _slice(7)) == [100]
    assert _run(counters, [None], _slice(7)) == [None]
    assert _run(counters, [150], _slice(7, generation=1)) == [250]
    assert _run(counters, [10], _slice(8)) == [10]


def test_a_reader_that_begins_anew_counts_nothing_twice() -> None:
    """It counts generations from 0 on: the instance is the same, unless its counter fell."""
    counters = MonotonicCounters(catalogue().fields)
    assert _run(counters, [100], _slice(7, generation=2)) == [100]
    assert _run(counters, [120], _slice(7)) == [120]
    assert _run(counters, [10], _slice(7)) == [130]
    assert _run(counters, [50], _slice(7, generation=1)) == [180]


def test_gauges_stay_as_they_are() -> None:
    """A gauge may fall; so may the rate that dcgm-exporter calls a counter."""
    counters = MonotonicCounters(catalogue().fields)
    for raw in (300.0, 70.0):
        sample = SampleSet({POWER: ((WHOLE, raw),), BANDWIDTH: ((WHOLE, raw),)})
        assert counters.steady(sample).values == sample.values


def test_what_ended_is_kept_up_to_a_limit() -> None:
    counters = MonotonicCounters(catalogue().fields, kept=10)
    for number in range(100):
        _run(counters, [number], _slice(number))
    assert (len(counters._running), len(counters._stopped)) == (1, 10)
    assert _run(counters, [1], _slice(95)) == [96]
    assert _run(counters, [1], _slice(3)) == [1]
