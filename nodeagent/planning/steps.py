"""The closed list of things the agent can do to a GPU, each with the reason why."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.planning.observed import Placement


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


Step = (
    SetMigMode
    | ResetGpu
    | DestroyGpuInstance
    | DestroyComputeInstance
    | CreateGpuInstance
    | CreateComputeInstance
)
