"""What `nvml` takes and gives instead of pynvml's untyped pointers and structures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NewType

from nodeagent.plan.observed import Engines, Placement

# Opaque pointers. A MIG device has a device handle of its own.
Device = NewType("Device", object)
GpuInstanceHandle = NewType("GpuInstanceHandle", object)
ComputeInstanceHandle = NewType("ComputeInstanceHandle", object)


@dataclass(frozen=True, slots=True)
class PciAddress:
    """`device_id` and `subsystem_id` are 32 bits, device high and vendor low."""

    bus_id: str
    device_id: int
    subsystem_id: int


@dataclass(frozen=True, slots=True)
class ProfileFigures:
    """What NVML says of a GPU instance profile. `name` is empty from older drivers."""

    id: int
    slices: int
    max_count: int
    multiprocessors: int
    memory: int  # bytes
    engines: Engines
    name: str


@dataclass(frozen=True, slots=True)
class ComputeFigures:
    """What NVML says of a compute instance profile."""

    id: int
    slices: int
    max_count: int
    multiprocessors: int


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """Where an existing GPU or compute instance lies, and of which profile it is."""

    id: int
    profile_id: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a device; the ids are None outside MIG. `memory` in bytes."""

    pid: int
    memory: int | None
    gpu_instance: int | None
    compute_instance: int | None


class LinkEnd(Enum):
    """What is at the other end of an NVLink."""

    GPU = "gpu"
    SWITCH = "switch"
    OTHER = "other"
