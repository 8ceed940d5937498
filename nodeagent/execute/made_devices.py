"""Which of the MIG devices made by earlier steps a later step is for.

The planner knows only their places. A device that was there before is never taken for a new one,
so that no device gets a daemon or a compute mode meant for another. One that is made where
one was destroyed may have its UUID, and is new all the same.
"""

from __future__ import annotations

from nodeagent.plan.observed import Gpu
from nodeagent.plan.steps import (
    DestroyComputeInstance,
    DestroyGpuInstance,
    SetComputeMode,
    SetTimeSlice,
    StartMps,
    Step,
)
from nodeagent.structs import replace


class MadeDevices:
    """The devices made since `before`, in the course of one GPU's steps.

    `seen` is the GPU as it was read back after the last change of its devices; None when there
    was a change since.
    """

    def __init__(self, before: Gpu) -> None:
        self.seen: Gpu | None = None
        self._before = {device.uuid for device in before.devices()}
        self._provided: set[str] = set()  # those which have had their daemon, or cannot
        self._unfit: set[str] = set()  # whose compute mode could not be set

    def named(self, step: StartMps | SetComputeMode) -> StartMps | SetComputeMode:
        """The step with its device's UUID, or as it is when there is none."""
        for device in self.seen.devices() if self.seen else ():
            kind = (device.placement, device.profile) == (step.placement, step.profile)
            if kind and device.uuid not in self._before | self._provided:
                return replace(step, device=device.uuid)
        return step

    def provide(self, step: StartMps) -> bool:
        """The step's device is none for another daemon; whether it is fit for this one."""
        self._provided.add(step.device)
        return step.device not in self._unfit

    def note(self, step: Step) -> None:
        """A step was done."""
        if isinstance(step, DestroyGpuInstance):
            self._before.difference_update(step.devices)
        elif isinstance(step, DestroyComputeInstance):
            self._before.discard(step.device)
        if not isinstance(step, StartMps | SetComputeMode | SetTimeSlice):
            self.seen = None

    def note_failure(self, step: Step) -> None:
        """A step failed that the others go on without."""
        if isinstance(step, SetComputeMode):
            self._unfit.add(step.device)
