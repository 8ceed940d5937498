"""Which function takes which step, and what the step is called in sentences."""

from __future__ import annotations

from typing import assert_never

from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.steps.change import Change, otherwise
from nodeagent.gpu.steps.compute_mode import set_compute_mode
from nodeagent.gpu.steps.creation import create_compute_instance, create_gpu_instance
from nodeagent.gpu.steps.destruction import destroy_compute_instance, destroy_gpu_instance
from nodeagent.gpu.steps.mig_mode import set_mig_mode
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuStep,
    ResetGpu,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
)


def take(change: Change, step: GpuStep) -> None:
    """Take the step, in the GPU's thread, and read it back; raises DriverError."""
    insist_on_gpu(change.card, step.gpu)
    match step:
        case SetMigMode():
            set_mig_mode(change, step)
        case DestroyGpuInstance():
            destroy_gpu_instance(change, step)
        case DestroyComputeInstance():
            destroy_compute_instance(change, step)
        case CreateGpuInstance():
            create_gpu_instance(change, step)
        case CreateComputeInstance():
            create_compute_instance(change, step)
        case SetComputeMode():
            set_compute_mode(change, step)
        case ResetGpu() | SetTimeSlice():
            raise TypeError("what nvidia-smi does is no matter of the GPU's thread")
        case _:
            assert_never(step)


def insist_on_gpu(card: GpuDevice, uuid: str) -> None:
    """Indices may have moved since the step was planned: a GPU vanished, NVML was restarted."""
    found = card.identity().uuid
    if found != uuid:
        raise otherwise(f"GPU {card.index} is not {uuid} any more but {found}")


def takes_away(step: GpuStep) -> bool:
    """Whether somebody could lose a device by it."""
    match step:
        case DestroyGpuInstance() | DestroyComputeInstance() | SetMigMode():
            return True
        case _:
            return False


def name_of(step: GpuStep) -> str:
    """As in `creating 3g.40gb at 4:4`."""
    match step:
        case SetMigMode():
            return "changing MIG mode"
        case DestroyGpuInstance() | DestroyComputeInstance():
            return f"destroying {step.profile} at {step.placement}"
        case CreateGpuInstance() | CreateComputeInstance():
            return f"creating {step.profile} at {step.placement}"
        case SetComputeMode():
            return "setting the compute mode"
        case SetTimeSlice():
            return "setting the time slice"
        case ResetGpu():
            return "the reset"
        case _:
            assert_never(step)
