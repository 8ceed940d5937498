"""Plain words for what is observed and done, alike in problems, events, logs and tables."""

from __future__ import annotations

from typing import assert_never

from nodeagent.planning.observed import Access, Gpu, GpuInstance, User
from nodeagent.planning.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetMigMode,
    Step,
)


def gpu_words(gpu: Gpu) -> str:
    """`GPU 3`; the UUID stands beside it wherever it matters."""
    return f"GPU {gpu.index}"


def step_words(step: Step) -> str:
    """A step as a command: `create 3g.40gb at 4`."""
    match step:
        case SetMigMode(enabled=enabled):
            return "enable MIG mode" if enabled else "disable MIG mode"
        case ResetGpu():
            return "reset the GPU"
        case DestroyGpuInstance() | DestroyComputeInstance():
            return f"destroy {step.profile} at {step.placement.start}"
        case CreateGpuInstance() | CreateComputeInstance():
            return f"create {step.profile} at {step.placement.start}"
        case _:
            assert_never(step)


def layout_words(gpu: Gpu) -> str:
    """A GPU's layout in one line: `1g.10gb at 0, 1; 3g.40gb at 4`."""
    if gpu.access is not Access.OK:
        return "a layout that is not known"
    if gpu.mig is None:
        return "no MIG"
    if gpu.mig.current != gpu.mig.pending:
        return f"MIG {'on' if gpu.mig.current else 'off'}, waiting for a GPU reset to change"
    if not gpu.mig.current:
        return "MIG off"
    starts: dict[str, list[int]] = {}
    for instance in sorted(gpu.instances, key=lambda i: i.placement):
        starts.setdefault(_instance_words(instance), []).append(instance.placement.start)
    alike = (f"{what} at {', '.join(map(str, where))}" for what, where in starts.items())
    return "; ".join(alike) or "no instances"


def _instance_words(instance: GpuInstance) -> str:
    if not instance.compute:
        return f"half-made {instance.profile}"
    return "+".join(device.profile for device in instance.compute)


def user_words(gpu: Gpu, instance: int | None = None) -> str:
    """Who uses the GPU, or only the GPU instance of this id, by name; empty when nobody is."""
    return ", ".join(dict.fromkeys(map(str, users(gpu, instance))))


def users(gpu: Gpu, instance: int | None = None) -> tuple[User, ...]:
    """Everyone known to use the GPU, or only the GPU instance of this id."""
    inside = [
        device.usage.processes
        for gpu_instance in gpu.instances
        if instance is None or gpu_instance.id == instance
        for device in gpu_instance.compute
    ]
    outside = [gpu.usage.processes] if instance is None else []
    return tuple(user for processes in (*outside, *inside) for user in processes)
