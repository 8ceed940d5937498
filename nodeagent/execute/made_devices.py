"""Which of the MIG devices made by earlier steps a later step is for.

The planner knows only their places. A device that was there before is never taken for a new one,
so that no device gets a daemon or a compute mode meant for another. One that is made where
one was destroyed may have its UUID, and is new all the same.
"""

from __future__ import annotations

from dataclasses import replace

from nodeagent.plan.observed import Gpu
from nodeagent.plan.steps import (
    DestroyComputeInstance,
    DestroyGpuInstance,
    SetComputeMode,
    SetTimeSlice,
    StartMps,
    Step,
)


class MadeDevices:
    """The devices made since `before`, in the course of one GPU's steps.

    `seen` is the GPU as it was read back after the last change of its devices; None when there
    was a change since.
    """

    def __init__(self, before: Gpu) -> None:
        self.seen: Gpu | None = None
        self._before = {c.uuid for i in before.instances for c in i.compute}
        self._provided: set[str] = set()  # those which have had their daemon, or cannot
        self._unfit: set[str] = set()

    def named(self, step: StartMps | SetComputeMode) -> StartMps | SetComputeMode:
        """The step with its device's UUID, or as it is when there is none."""
        for instance in self.seen.instances if self.seen else ():
            for device in sorted(instance.compute, key=lambda c: c.id):
                kind = (instance.placement, device.profile) == (step.placement, step.profile)
                if kind and device.uuid not in self._before | self._provided:
                    return replace(step, device=device.uuid)
        return step

    def is_unfit(self, step: StartMps) -> bool:
        """Whether the step's device did not get the compute mode that its daemon needs."""
        unfit = step.device in self._unfit
        if unfit:
            self._provided.add(step.device)
        return unfit

    def provide(self, step: StartMps) -> None:
        """The step's daemon is about to be started; its device is none for another."""
        self._provided.add(step.device)

    def note(self, step: Step) -> None:
        """A step was done."""
        match step:
            case DestroyGpuInstance(devices=devices):
                self._before.difference_update(devices)
                self.seen = None
            case DestroyComputeInstance(device=device):
                self._before.discard(device)
                self.seen = None
            case StartMps() | SetComputeMode() | SetTimeSlice():
                pass
            case _:
                self.seen = None

    def note_failure(self, step: Step) -> None:
        """A step failed that the others go on without."""
        if isinstance(step, SetComputeMode):
            self._unfit.add(step.device)
