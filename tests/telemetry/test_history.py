"""The last quarter of an hour of each GPU."""

import tracemalloc
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from nodeagent.telemetry.history import COLUMNS, GpuHistories
from nodeagent.views.node_state import Reading
from nodeagent.views.shapes import as_json

MIB = 1 << 20
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def shown(histories: GpuHistories, now: float, gpu: str | None = None) -> dict[str, Any]:
    found = histories.shape(now, NOON, gpu)
    assert found is not None
    return as_json(found)


def test_columns_are_means_and_have_gaps_where_nothing_was_read() -> None:
    histories = GpuHistories(5.0)
    histories.add(1000.0, {"GPU-a": Reading(10.4, 60.0, 300.2, 5 * MIB)})
    histories.add(1005.0, {"GPU-a": Reading(11.0, None, 300.6, 8 * MIB)})
    histories.add(1020.0, {"GPU-b": Reading(temperature=40.0)})
    found = shown(histories, 1039.9)
    assert (found["interval"], found["end"]) == (10.0, "2026-11-29T12:00:00.000Z")
    keys, nothing = ("utilization", "memoryUsed", "temperature", "power"), [None] * 4
    firsts = zip(keys, (11, 6 * MIB, 60, 300), strict=True)
    assert found["gpus"] == {
        "GPU-a": {key: [first, None, None, None] for key, first in firsts},
        "GPU-b": dict.fromkeys(keys, nothing) | {"temperature": [None, None, 40, None]},
    }
    assert len(found) == 3
    assert shown(histories, 1039.9, "GPU-b")["gpus"] == {"GPU-b": found["gpus"]["GPU-b"]}


def test_a_gpu_is_forgotten_with_its_last_column() -> None:
    histories = GpuHistories(60.0)
    histories.add(0.0, {"GPU-a": Reading(1.0)})
    for minute in range(1, 181):
        histories.add(minute * 60.0, {"GPU-b": Reading(2.0)})
        assert (histories.shape(minute * 60.0, NOON, "GPU-a") is None) == (minute == 180)
    assert (histories.step, [*shown(histories, 10800.0)["gpus"]]) == (120.0, ["GPU-b"])


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 3.0, 10.0, 40.0, 880.0, 900.0, 2000.0]),
            st.sampled_from(["a", "b"]),
            st.none() | st.integers(0, 100),
        ),
        min_size=1,
        max_size=200,
    ),
    st.sampled_from([0.0, 5.0, 300.0, 901.0]),
)
@example([(0.0, "a", 1), (890.0, "a", 2)], 0.0)  # the first and the last column of the rings
@example([(0.0, "a", 1), (890.0, "a", 2), (10.0, "a", None)], 0.0)  # and the first one's place anew
def test_the_rings_hold_what_an_endless_list_would(
    samples: list[tuple[float, str, int | None]], later: float
) -> None:
    histories, now, read = GpuHistories(5.0), 7.0, dict[tuple[str, int], list[int]]()
    for passed, gpu, percent in samples:
        now += passed
        histories.add(now, {gpu: Reading(percent)})
        if percent is not None:
            read.setdefault((gpu, int(now // 10)), []).append(percent)
    now += later
    for gpu, found in shown(histories, now)["gpus"].items():
        newest = int(now // 10)
        oldest = int((7.0 + samples[0][0]) // 10)
        columns = range(max(oldest, newest - COLUMNS + 1), newest + 1)
        assert len(found["utilization"]) == len(columns)
        for column, value in zip(columns, found["utilization"], strict=True):
            of_column = read.get((gpu, column))
            assert (value is None) == (of_column is None)
            if of_column:
                assert abs(value - sum(of_column) / len(of_column)) < 0.51


def test_sixteen_gpus_take_less_than_40_kib() -> None:
    histories = GpuHistories(5.0)
    tracemalloc.start()
    for second in range(0, 2000, 5):
        reading = Reading(second / 20, 61.0, 345.6, (5000 + second) * MIB)
        histories.add(second, {f"GPU-{number:032d}": reading for number in range(16)})
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 16 * 4 * 4 * COLUMNS < taken < 40 << 10
