"""Compute instances inside a GPU instance."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103

from __future__ import annotations

from ctypes import c_uint
from typing import Any

import pynvml

from nodeagent.simulation.arguments import Array, HandleOut, Number, Out, pointer_to
from nodeagent.simulation.boards import ComputeProfile, GpuProfile
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import COMPUTE_INSTANCE, GPU_INSTANCE, c_function
from nodeagent.simulation.handles import Kind
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.views import ComputeInstanceView, Device, GpuInstanceView

_ASKING = (Code.NOT_SUPPORTED, Code.NO_PERMISSION)
_CREATING = (*_ASKING, Code.INSUFFICIENT_RESOURCES, Code.IN_USE)


@c_function(
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    GPU_INSTANCE,
    Number(),
    Number(),
    Out(pynvml.c_nvmlComputeInstanceProfileInfo_t),
    errors=_ASKING,
)
def get_profile_info(
    library: Session, view: GpuInstanceView, kind: int, engines: int, info: Any
) -> None:
    _fill(info, view.profile, _profile_of_kind(view, kind, engines))


@c_function(
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    GPU_INSTANCE,
    Number(),
    Number(),
    Out(pynvml.c_nvmlComputeInstanceProfileInfo_v2_t, pynvml.nvmlComputeInstanceProfileInfo_v2),
    errors=(*_ASKING, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_profile_info_v2(
    library: Session, view: GpuInstanceView, kind: int, engines: int, info: Any
) -> None:
    profile = _profile_of_kind(view, kind, engines)
    _fill(info, view.profile, profile)
    info.name = f"MIG {view.profile.compute_name(profile)}".encode()


@c_function(
    "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
    GPU_INSTANCE,
    Number(),
    Array(pynvml.c_nvmlComputeInstancePlacement_t),
    Out(c_uint),
    errors=_ASKING,
)
def get_possible_placements(
    library: Session, view: GpuInstanceView, profile_id: int, placements: Any, count: c_uint
) -> None:
    """All that the profile has, taken or not."""
    library.require_privilege()
    slots = view.card.compute_profile(view.instance, profile_id).placements
    if placements is not None:
        placements.demand(len(slots))
        for index, (start, size) in enumerate(slots):
            placements[index].start, placements[index].size = start, size
    count.value = len(slots)


@c_function(
    "nvmlGpuInstanceGetComputeInstanceRemainingCapacity",
    GPU_INSTANCE,
    Number(),
    Out(c_uint),
    errors=_ASKING,
)
def get_remaining_capacity(
    library: Session, view: GpuInstanceView, profile_id: int, count: c_uint
) -> None:
    library.require_privilege()
    count.value = view.card.compute_remaining(view.instance, profile_id)


@c_function(
    "nvmlGpuInstanceCreateComputeInstance",
    GPU_INSTANCE,
    Number(),
    HandleOut(Kind.COMPUTE_INSTANCE),
    changes=True,
    errors=_CREATING,
)
def create(library: Session, view: GpuInstanceView, profile_id: int, handle: Any) -> None:
    library.require_privilege()
    made = view.card.create_compute(view.instance, profile_id)
    handle.write(library.give(ComputeInstanceView(view.card, view.instance, made)))


@c_function(
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    GPU_INSTANCE,
    Number(),
    Out(pynvml.c_nvmlComputeInstancePlacement_t),
    HandleOut(Kind.COMPUTE_INSTANCE),
    changes=True,
    errors=_CREATING,
)
def create_with_placement(
    library: Session, view: GpuInstanceView, profile_id: int, placement: Any, handle: Any
) -> None:
    library.require_privilege()
    slot = (placement.start, placement.size)
    made = view.card.create_compute(view.instance, profile_id, slot)
    handle.write(library.give(ComputeInstanceView(view.card, view.instance, made)))


@c_function(
    "nvmlComputeInstanceDestroy",
    COMPUTE_INSTANCE,
    changes=True,
    errors=(*_ASKING, Code.IN_USE),
)
def destroy(library: Session, view: ComputeInstanceView) -> None:
    library.require_privilege()
    view.card.destroy_compute(view.instance, view.compute)


@c_function(
    "nvmlGpuInstanceGetComputeInstances",
    GPU_INSTANCE,
    Number(),
    Array(pynvml.c_nvmlComputeInstance_t),
    Out(c_uint),
    errors=_ASKING,
)
def get_instances(
    library: Session, view: GpuInstanceView, profile_id: int, instances: Any, count: c_uint
) -> None:
    """The array must have room for all that the profile allows."""
    library.require_privilege()
    profile = view.card.compute_profile(view.instance, profile_id)
    if instances is None:
        raise Refused(Code.INVALID_ARGUMENT)
    instances.demand(profile.max_instances)
    found = view.card.compute_instances_of(view.instance, profile_id)
    for index, compute in enumerate(found):
        token = library.give(ComputeInstanceView(view.card, view.instance, compute))
        instances.write_handle(index, token)
    count.value = len(found)


@c_function(
    "nvmlGpuInstanceGetComputeInstanceById",
    GPU_INSTANCE,
    Number(),
    HandleOut(Kind.COMPUTE_INSTANCE),
    errors=(*_ASKING, Code.NOT_FOUND),
)
def get_by_id(library: Session, view: GpuInstanceView, compute_id: int, handle: Any) -> None:
    library.require_privilege()
    compute = view.card.compute_instance(view.instance, compute_id)
    handle.write(library.give(ComputeInstanceView(view.card, view.instance, compute)))


@c_function(
    "nvmlComputeInstanceGetInfo_v2", COMPUTE_INSTANCE, Out(pynvml.c_nvmlComputeInstanceInfo_t)
)
@c_function("nvmlComputeInstanceGetInfo", COMPUTE_INSTANCE, Out(pynvml.c_nvmlComputeInstanceInfo_t))
def get_info(library: Session, view: ComputeInstanceView, info: Any) -> None:
    compute, parent = view.compute, GpuInstanceView(view.card, view.instance)
    info.device = pointer_to(library.give(Device(view.card)), Kind.GPU)
    info.gpuInstance = pointer_to(library.give(parent), Kind.GPU_INSTANCE)
    info.id, info.profileId = compute.id, compute.profile
    info.placement.start, info.placement.size = compute.start, compute.size


def _profile_of_kind(view: GpuInstanceView, kind: int, engines: int) -> ComputeProfile:
    """NVML's enumeration of compute profiles is also their id."""
    if kind >= pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT:
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
    info.sharedCopyEngineCount = whole.copy_engines
    info.sharedDecoderCount = whole.decoders
    info.sharedEncoderCount = whole.encoders
    info.sharedJpegCount = whole.jpeg
    info.sharedOfaCount = whole.ofa
