"""For how long a change kept each memory slice of a GPU from being used.

A slice is out of use from the step that stops or destroys what lies on it until something there
can be used again: its instance is made and, where one is wanted, its MPS daemon serves. A slice
that nothing is made on is merely free when the GPU's steps are over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodeagent.plan.observed import Placement
from nodeagent.plan.plan import GpuOutcome, StepReport, StepResult
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    StartMps,
    StopMps,
)

_TAKES = (DestroyGpuInstance, DestroyComputeInstance, StopMps)
_GIVES = (CreateGpuInstance, CreateComputeInstance, StartMps)


def out_of_use(gpu: GpuOutcome) -> Mapping[int, float]:
    """Seconds by the number of the memory slice; nothing for those that stayed in use."""
    began: dict[int, float] = {}
    until: dict[int, float] = {}
    now = 0.0
    for report in _taken(gpu):
        for slot in _slots(report, _TAKES):
            began.setdefault(slot, now)
            until.pop(slot, None)
        now += report.seconds
        for slot in _slots(report, _GIVES):
            if slot in began:
                until[slot] = now  # the last of them counts: an instance, then its daemon
    return {slot: until.get(slot, now) - since for slot, since in began.items()}


def _taken(gpu: GpuOutcome) -> Iterator[StepReport]:
    for report in (*gpu.steps, *gpu.restored):
        if report.result is not StepResult.SKIPPED:
            yield report


def _slots(report: StepReport, kinds: tuple[type, ...]) -> range:
    step = report.step
    place: Placement | None = getattr(step, "placement", None) if isinstance(step, kinds) else None
    return range(place.start, place.start + place.size) if place else range(0)
