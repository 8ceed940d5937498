"""The agent's own changes of MIG: what NVML tells of them is no news."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.health.readings import GpuEvent, GpuEventKind
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetMigMode,
    Step,
)

_ECHO = 5.0  # seconds after a step of ours in which NVML may still tell of what it changed

_CHANGES_MIG = (
    SetMigMode,
    ResetGpu,
    CreateGpuInstance,
    CreateComputeInstance,
    DestroyGpuInstance,
    DestroyComputeInstance,
)


class OwnChanges:
    """When which GPU was changed; `uptime` gives the seconds since boot."""

    def __init__(self, uptime: Callable[[], float]) -> None:
        self._uptime = uptime
        self._at_work: dict[str, tuple[float, float]] = {}  # from when to when, by GPU

    def begin(self, step: Step) -> None:
        """The step is taken now."""
        if isinstance(step, _CHANGES_MIG):
            now = self._uptime()
            began, ended = self._at_work.get(step.gpu, (now, 0.0))
            goes_on = now <= ended + _ECHO  # what was told of the last step may still be to come
            self._at_work[step.gpu] = (began if goes_on else now, float("inf"))

    def end(self, step: Step) -> None:
        """It was taken, or failed."""
        if isinstance(step, _CHANGES_MIG):
            began, _ = self._at_work.get(step.gpu, (self._uptime(), 0.0))
            self._at_work[step.gpu] = (began, self._uptime())

    def tell_of(self, event: GpuEvent) -> bool:
        """Whether the event is what a change of ours did."""
        if event.kind is not GpuEventKind.FOREIGN_MIG_CHANGE:
            return False
        began, ended = self._at_work.get(event.gpu, (float("inf"), 0.0))
        return began <= event.at <= ended + _ECHO
