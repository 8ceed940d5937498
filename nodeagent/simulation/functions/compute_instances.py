"""Compute instances inside a GPU instance."""

from typing import Annotated, Any

import pynvml

from nodeagent.simulation.arguments import Array, Out, pointer_to, versioned
from nodeagent.simulation.boards import ComputeProfile, GpuProfile
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.devices import ComputeInstanceDevice, Device, GpuInstanceDevice
from nodeagent.simulation.functions.registry import (
    ComputeInstanceIn,
    ComputeInstanceOut,
    GpuInstanceIn,
    UInt,
    UIntOut,
    c_function,
)
from nodeagent.simulation.handles import Kind
from nodeagent.simulation.nvml_session import Session

_ASKING = (Code.NOT_SUPPORTED, Code.NO_PERMISSION)
_CREATING = (*_ASKING, Code.INSUFFICIENT_RESOURCES, Code.IN_USE)


@c_function(*_ASKING)
def nvmlGpuInstanceGetComputeInstanceProfileInfo(
    session: Session,
    view: GpuInstanceIn,
    kind: UInt,
    engines: UInt,
    info: Annotated[Any, Out(pynvml.c_nvmlComputeInstanceProfileInfo_t)],
) -> None:
    _fill(info, view.profile, _profile_of_kind(view, kind, engines))


@c_function(*_ASKING)
def nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    session: Session,
    view: GpuInstanceIn,
    kind: UInt,
    engines: UInt,
    info: Annotated[Any, versioned("nvmlComputeInstanceProfileInfo_v2")],
) -> None:
    profile = _profile_of_kind(view, kind, engines)
    _fill(info, view.profile, profile)
    info.name = f"MIG {view.profile.compute_name(profile)}".encode()


@c_function(*_ASKING)
def nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    session: Session,
    view: GpuInstanceIn,
    profile_id: UInt,
    placements: Annotated[Any, Array(pynvml.c_nvmlComputeInstancePlacement_t)],
    count: UIntOut,
) -> None:
    """All that the profile has, taken or not."""
    session.require_privilege()
    places = view.card.compute_profile(view.instance, profile_id).placements
    if placements is not None:
        placements.fill([{"start": p.start, "size": p.size} for p in places])
    count.value = len(places)


@c_function(*_CREATING, changes=True)
def nvmlGpuInstanceCreateComputeInstance(
    session: Session, view: GpuInstanceIn, profile_id: UInt, handle: ComputeInstanceOut
) -> None:
    session.require_privilege()
    made = view.card.create_compute(view.instance, profile_id)
    handle.give(ComputeInstanceDevice(view.card, view.instance, made))


@c_function(*_CREATING, changes=True)
def nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    session: Session,
    view: GpuInstanceIn,
    profile_id: UInt,
    placement: Annotated[Any, Out(pynvml.c_nvmlComputeInstancePlacement_t)],
    handle: ComputeInstanceOut,
) -> None:
    session.require_privilege()
    slot = (placement.start, placement.size)
    made = view.card.create_compute(view.instance, profile_id, slot)
    handle.give(ComputeInstanceDevice(view.card, view.instance, made))


@c_function(*_ASKING, Code.IN_USE, changes=True)
def nvmlComputeInstanceDestroy(session: Session, view: ComputeInstanceIn) -> None:
    session.require_privilege()
    view.card.destroy_compute(view.instance, view.compute)


@c_function(*_ASKING)
def nvmlGpuInstanceGetComputeInstances(
    session: Session,
    view: GpuInstanceIn,
    profile_id: UInt,
    instances: Annotated[Any, Array(pynvml.c_nvmlComputeInstance_t)],
    count: UIntOut,
) -> None:
    """The array must have room for all that the profile allows."""
    session.require_privilege()
    profile = view.card.compute_profile(view.instance, profile_id)
    if instances is None:
        raise Refused(Code.INVALID_ARGUMENT)
    instances.demand(profile.max_instances)
    found = sorted(view.instance.compute, key=lambda c: c.id)
    devices = [
        ComputeInstanceDevice(view.card, view.instance, c) for c in found if c.profile == profile.id
    ]
    instances.write_handles(session.give(device) for device in devices)
    count.value = len(devices)


@c_function(*_ASKING, Code.NOT_FOUND)
def nvmlGpuInstanceGetComputeInstanceById(
    session: Session, view: GpuInstanceIn, compute_id: UInt, handle: ComputeInstanceOut
) -> None:
    session.require_privilege()
    compute = view.card.compute_instance(view.instance, compute_id)
    handle.give(ComputeInstanceDevice(view.card, view.instance, compute))


@c_function(name="nvmlComputeInstanceGetInfo_v2")
@c_function()
def nvmlComputeInstanceGetInfo(
    session: Session,
    view: ComputeInstanceIn,
    info: Annotated[Any, Out(pynvml.c_nvmlComputeInstanceInfo_t)],
) -> None:
    compute, parent = view.compute, GpuInstanceDevice(view.card, view.instance)
    info.device = pointer_to(session.give(Device(view.card)), Kind.GPU)
    info.gpuInstance = pointer_to(session.give(parent), Kind.GPU_INSTANCE)
    info.id, info.profileId = compute.id, compute.profile
    info.placement.start, info.placement.size = compute.start, compute.size


def _profile_of_kind(view: GpuInstanceDevice, kind: int, engines: int) -> ComputeProfile:
    """NVML's enumeration of compute profiles is also their id."""
    newest = max(profile.id for profile in view.profile.compute)
    if kind > max(newest, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT - 1):
        raise Refused(Code.INVALID_ARGUMENT)
    if engines >= pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT:
        raise Refused(Code.INVALID_ARGUMENT)
    profile = view.profile.compute_profile(kind)
    if profile is None:
        raise Refused(Code.NOT_SUPPORTED)
    return profile


def _fill(info: Any, whole: GpuProfile, profile: ComputeProfile) -> None:
    info.id = profile.id
    info.sliceCount = profile.slices
    info.instanceCount = profile.max_instances
    info.multiprocessorCount = profile.multiprocessors
    fill_shared_engines(info, whole)


def fill_shared_engines(info: Any, whole: GpuProfile) -> None:
    """Those of the GPU instance, which its compute instances share."""
    info.sharedCopyEngineCount = whole.copy_engines
    info.sharedDecoderCount = whole.decoders
    info.sharedEncoderCount = whole.encoders
    info.sharedJpegCount = whole.jpeg
    info.sharedOfaCount = whole.ofa
