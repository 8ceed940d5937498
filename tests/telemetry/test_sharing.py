"""What pods that share a device have each: the sum is the device's."""

from __future__ import annotations

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.metrics.samples import SampleSet, Subject, Value, WholeGpu
from nodeagent.telemetry.ownership import FB_USED, GPU_UTIL, Use, by_owner
from tests.telemetry.nodes import GPU, MIB

A, B = Owner("team", "a", "main"), Owner("team", "b", "main")
WHOLE = Subject(WholeGpu(GPU))
POWER = 155


def _apart(used: int, use: Use, number: int = FB_USED) -> tuple[Value, ...]:
    sample = SampleSet({number: ((WHOLE, used),), POWER: ((WHOLE, 300),)})
    found = by_owner(sample, {(GPU.uuid, None): use})
    assert found.values[POWER] == ((WHOLE, 300),)
    return found.values[number]


def test_memory_of_each_and_the_rest() -> None:
    """Whole MiB, cut down, and what is left without an owner."""
    use = Use((A, B), {A: 1000 * MIB + 5, B: 500 * MIB})
    assert _apart(1600, use) == (
        (Subject(WHOLE.entity, A.labels), 1000),
        (Subject(WHOLE.entity, B.labels), 500),
        (WHOLE, 100),
    )


def test_the_rest_is_never_below_nothing() -> None:
    """Lists of processes and the sum are not read at the very same moment."""
    assert _apart(100, Use((A, B), {A: 200 * MIB}))[-1] == (WHOLE, 0)


def test_utilization_where_it_is_told_of_processes() -> None:
    """Percent of the GPU's time."""
    use = Use((A, B), {}, {A: 40.4, B: 20.0})
    assert [value for _, value in _apart(70, use, GPU_UTIL)] == [40, 20, 10]


def test_what_cannot_be_told_apart_stays_one_value() -> None:
    """Also where there is but one owner, whose labels it then has anyway."""
    assert _apart(1600, Use((A, B))) == ((WHOLE, 1600),)
    assert _apart(1600, Use((A,), {A: MIB})) == ((WHOLE, 1600),)
