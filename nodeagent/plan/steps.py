"""The closed list of things the agent can do to a GPU, each with the reason why."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.plan.observed import Placement
from nodeagent.plan.shares import ComputeMode, TimeSlice, WantedMps


@dataclass(frozen=True, slots=True)
class SetMigMode:
    """Switch MIG mode; on some cards it stays pending until a reset."""

    gpu: str
    enabled: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ResetGpu:
    """Reset a GPU that was proven idle, so that a pending MIG mode becomes current."""

    gpu: str
    reason: str


@dataclass(frozen=True, slots=True)
class DestroyGpuInstance:
    """Destroy a GPU instance with all compute instances in it (`devices`: their UUIDs)."""

    gpu: str
    instance: int
    profile: str
    placement: Placement
    devices: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class DestroyComputeInstance:
    """Destroy one compute instance; its GPU instance stays. `placement` is the latter's."""

    gpu: str
    instance: int
    compute: int
    profile: str
    placement: Placement
    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class CreateGpuInstance:
    """Create a GPU instance at a placement and fill it with compute instances.

    `compute` lists their sizes in compute slices, largest first.
    """

    gpu: str
    profile_id: int
    profile: str
    placement: Placement
    compute: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CreateComputeInstance:
    """Add a compute instance of `slices` to a GPU instance that is there already.

    `profile` is the device's name, `placement` that of the GPU instance.
    """

    gpu: str
    instance: int
    profile: str
    slices: int
    placement: Placement
    reason: str


@dataclass(frozen=True, slots=True)
class StopMps:
    """End the MPS daemon of `device`, which has no client: a GPU, or a MIG device, whose
    `profile` and `placement` (of its GPU instance) are given too.
    """

    gpu: str
    device: str
    reason: str
    profile: str = ""
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class StartMps:
    """Have an MPS daemon for a device be as `wanted`, with every limit read back.

    `device` is empty for a MIG device that an earlier step makes: it is then any of this
    `profile` in the GPU instance at `placement` that has no daemon yet. `runs` means that there is
    a daemon already, which only gets other limits or shares and is not restarted.
    """

    gpu: str
    device: str
    wanted: WantedMps
    reason: str
    profile: str = ""
    placement: Placement | None = None
    runs: bool = False


@dataclass(frozen=True, slots=True)
class SetComputeMode:
    """Set who may have a context on a device; `device`, `profile`, `placement` as in StartMps.

    What it was before is remembered, and forgotten when it is that again.
    """

    gpu: str
    device: str
    mode: ComputeMode
    reason: str
    profile: str = ""
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class SetTimeSlice:
    """Set the GPU's time-slice interval; what it was before is remembered likewise."""

    gpu: str
    time_slice: TimeSlice
    reason: str


Destruction = DestroyGpuInstance | DestroyComputeInstance
# What the driver does by itself; an MPS daemon is a process, and no matter of the driver.
GpuStep = (
    SetMigMode
    | ResetGpu
    | DestroyGpuInstance
    | DestroyComputeInstance
    | CreateGpuInstance
    | CreateComputeInstance
    | SetComputeMode
    | SetTimeSlice
)
Step = GpuStep | StopMps | StartMps
