"""What a step makes of a GPU, as far as that is certain beforehand.

Used for the picture after a plan, and by tests that cut plans short. The hardware is always read
back instead of believing this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import assert_never

from nodeagent.planning.observed import ComputeInstance, Gpu, GpuInstance, MigMode
from nodeagent.planning.profiles import device_name
from nodeagent.planning.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetMigMode,
    Step,
)

_Change = Callable[[tuple[ComputeInstance, ...]], tuple[ComputeInstance, ...]]


def after(gpu: Gpu, steps: Iterable[Step]) -> Gpu:
    """The GPU once `steps` are done. Ids not yet given by the driver are negative, UUIDs empty."""
    for step in steps:
        gpu = _after(gpu, step)
    return gpu


def _after(gpu: Gpu, step: Step) -> Gpu:
    match step:
        case SetMigMode(enabled=enabled):
            return _after_mode(gpu, enabled=enabled)
        case ResetGpu():
            pending = gpu.mig.pending if gpu.mig else False
            return replace(gpu, mig=MigMode(pending, pending), instances=())
        case DestroyGpuInstance(instance=gone):
            return replace(gpu, instances=tuple(i for i in gpu.instances if i.id != gone))
        case DestroyComputeInstance(instance=instance, compute=gone):
            return _edit(gpu, instance, lambda present: tuple(c for c in present if c.id != gone))
        case CreateGpuInstance():
            return replace(gpu, instances=(*gpu.instances, _created(gpu, step)))
        case CreateComputeInstance(instance=instance, profile=profile, slices=slices):
            return _edit(
                gpu,
                instance,
                lambda present: (*present, ComputeInstance(_free_id(present), profile, slices, "")),
            )
        case _:
            assert_never(step)


def _after_mode(gpu: Gpu, *, enabled: bool) -> Gpu:
    current = gpu.mig.current if gpu.mig else False
    if gpu.mode_change_needs_reset:
        return replace(gpu, mig=MigMode(current, enabled))
    instances = gpu.instances if enabled else ()
    return replace(gpu, mig=MigMode(enabled, enabled), instances=instances)


def _created(gpu: Gpu, step: CreateGpuInstance) -> GpuInstance:
    profile = gpu.profile(step.profile)
    whole = profile.slices if profile else max(step.compute, default=0)
    compute = tuple(
        ComputeInstance(i, device_name(step.profile, whole, slices), slices, "")
        for i, slices in enumerate(step.compute)
    )
    return GpuInstance(
        -1 - step.placement.start, step.profile_id, step.profile, step.placement, compute
    )


def _edit(gpu: Gpu, instance: int, change: _Change) -> Gpu:
    return replace(
        gpu,
        instances=tuple(
            replace(i, compute=change(i.compute)) if i.id == instance else i for i in gpu.instances
        ),
    )


def _free_id(present: tuple[ComputeInstance, ...]) -> int:
    taken = {c.id for c in present}
    return next(i for i in range(len(taken) + 1) if i not in taken)
