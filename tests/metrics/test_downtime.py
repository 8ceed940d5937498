"""What a change took of each memory slice, by its steps."""

from __future__ import annotations

import pytest

from nodeagent.metrics.agent_samples import downtime
from nodeagent.plan.observed import Gpu, Placement
from nodeagent.plan.plan import GpuOutcome, GpuPlan, StepReport, StepResult
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.plan.steps import (
    CreateGpuInstance,
    DestroyGpuInstance,
    SetMigMode,
    StartMps,
    Step,
    StopMps,
)

GPU = Gpu(0, "GPU-0")
MPS = WantedMps(Sharing((Share("s", 1, None, None),), "report"), Account(1000, 1000))


def _destroy(start: int, size: int) -> Step:
    return DestroyGpuInstance("GPU-0", start, "p", Placement(start, size), (), "")


def _create(start: int, size: int) -> Step:
    return CreateGpuInstance("GPU-0", 0, "p", Placement(start, size), (1,), "")


Taken = tuple[Step, float]


def _outcome(*steps: Taken, restored: tuple[Taken, ...] = ()) -> GpuOutcome:
    def reports(taken: tuple[Taken, ...]) -> tuple[StepReport, ...]:
        return tuple(StepReport(step, StepResult.DONE, seconds) for step, seconds in taken)

    return GpuOutcome(GpuPlan.in_sync(GPU), reports(steps), GPU, restored=reports(restored))


def test_a_slice_is_out_of_use_until_something_is_made_on_it() -> None:
    """From the beginning of its destruction; one that stays free counts to the end of the steps."""
    destroyed = (_destroy(0, 2), 1.0), (_destroy(4, 1), 0.5)
    taken = (*destroyed, (_create(0, 1), 2.0), (_create(1, 1), 1.0))
    found = downtime(_outcome(*taken))
    assert found == {0: 3.5, 1: 4.5, 4: 3.5}


def test_slices_that_were_not_touched_lose_nothing() -> None:
    """New ones on free slices, and a GPU's mode, take nothing from anybody."""
    assert downtime(_outcome((SetMigMode("GPU-0", True, ""), 1.0), (_create(0, 1), 1.0))) == {}


def test_a_way_back_counts() -> None:
    """What was restored is in use again when that is done, and not before."""
    found = downtime(_outcome((_destroy(0, 1), 1.0), restored=((_create(0, 1), 0.25),)))
    assert found == {0: pytest.approx(1.25)}


def test_mps_is_part_of_it() -> None:
    """A slice whose daemon has to be started is in use when that serves."""
    stop = StopMps("GPU-0", "MIG-1", "", "p", Placement(0, 1))
    start = StartMps("GPU-0", "", MPS, "", "p", Placement(0, 1))
    found = downtime(
        _outcome((stop, 0.5), (_destroy(0, 1), 1.0), (_create(0, 1), 1.0), (start, 2.0))
    )
    assert found == {0: 4.5}


def test_steps_that_were_not_taken_take_nothing() -> None:
    """A step that was left out has no time and no consequence."""
    left = StepReport(_destroy(0, 1), StepResult.SKIPPED)
    assert downtime(GpuOutcome(GpuPlan.in_sync(GPU), (left,), GPU)) == {}
