"""GPU instances: profiles, placements, room, creation, destruction."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: D103

from __future__ import annotations

from ctypes import c_uint
from typing import Any

import pynvml

from nodeagent.simulation.arguments import Array, HandleOut, Number, Out, pointer_to
from nodeagent.simulation.boards import GpuProfile
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import GPU, GPU_INSTANCE, c_function
from nodeagent.simulation.handles import Kind
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.views import Device, GpuInstanceView

_ASKING = (Code.NOT_SUPPORTED, Code.NO_PERMISSION)
_CREATING = (*_ASKING, Code.INSUFFICIENT_RESOURCES, Code.IN_USE)


@c_function(
    "nvmlDeviceGetGpuInstanceProfileInfo",
    GPU,
    Number(),
    Out(pynvml.c_nvmlGpuInstanceProfileInfo_t),
    errors=(Code.NOT_SUPPORTED,),
)
def get_profile_info(library: Session, gpu: Device, kind: int, info: Any) -> None:
    _fill(info, _profile_of_kind(library, gpu, kind))


@c_function(
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    GPU,
    Number(),
    Out(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t, pynvml.nvmlGpuInstanceProfileInfo_v2),
    errors=(Code.NOT_SUPPORTED, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_profile_info_v2(library: Session, gpu: Device, kind: int, info: Any) -> None:
    profile = _profile_of_kind(library, gpu, kind)
    _fill(info, profile)
    info.name = f"MIG {profile.name}".encode()


@c_function(
    "nvmlDeviceGetGpuInstanceProfileInfoByIdV",
    GPU,
    Number(),
    Out(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t, pynvml.nvmlGpuInstanceProfileInfo_v2),
    errors=(Code.NOT_SUPPORTED, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_profile_info_by_id(library: Session, gpu: Device, profile_id: int, info: Any) -> None:
    _require_told(library, gpu)
    profile = gpu.card.profile(profile_id)
    _fill(info, profile)
    info.name = f"MIG {profile.name}".encode()


@c_function(
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    GPU,
    Number(),
    Array(pynvml.c_nvmlGpuInstancePlacement_t),
    Out(c_uint),
    errors=_ASKING,
)
def get_possible_placements(
    library: Session, gpu: Device, profile_id: int, placements: Any, count: c_uint
) -> None:
    """All that the profile has, taken or not."""
    _require_told(library, gpu)
    library.require_privilege()
    profile = gpu.card.profile(profile_id)
    if placements is not None:
        placements.demand(len(profile.placements))
        for index, placement in enumerate(profile.placements):
            placements[index].start = placement.start
            placements[index].size = placement.size
    count.value = len(profile.placements)


@c_function("nvmlDeviceGetGpuInstanceRemainingCapacity", GPU, Number(), Out(c_uint), errors=_ASKING)
def get_remaining_capacity(library: Session, gpu: Device, profile_id: int, count: c_uint) -> None:
    _require_configurable(library, gpu)
    count.value = gpu.card.remaining(profile_id)


@c_function(
    "nvmlDeviceCreateGpuInstance",
    GPU,
    Number(),
    HandleOut(Kind.GPU_INSTANCE),
    changes=True,
    errors=_CREATING,
)
def create(library: Session, gpu: Device, profile_id: int, handle: Any) -> None:
    _require_configurable(library, gpu)
    made = gpu.card.create_instance(profile_id)
    handle.write(library.give(GpuInstanceView(gpu.card, made)))


@c_function(
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    GPU,
    Number(),
    Out(pynvml.c_nvmlGpuInstancePlacement_t),
    HandleOut(Kind.GPU_INSTANCE),
    changes=True,
    errors=_CREATING,
)
def create_with_placement(
    library: Session, gpu: Device, profile_id: int, placement: Any, handle: Any
) -> None:
    _require_configurable(library, gpu)
    made = gpu.card.create_instance(profile_id, (placement.start, placement.size))
    handle.write(library.give(GpuInstanceView(gpu.card, made)))


@c_function(
    "nvmlGpuInstanceDestroy",
    GPU_INSTANCE,
    changes=True,
    errors=(*_ASKING, Code.IN_USE),
)
def destroy(library: Session, view: GpuInstanceView) -> None:
    library.require_privilege()
    view.card.destroy_instance(view.instance)


@c_function(
    "nvmlDeviceGetGpuInstances",
    GPU,
    Number(),
    Array(pynvml.c_nvmlGpuInstance_t),
    Out(c_uint),
    errors=_ASKING,
)
def get_instances(
    library: Session, gpu: Device, profile_id: int, instances: Any, count: c_uint
) -> None:
    """The array must have room for all that the profile allows."""
    _require_configurable(library, gpu)
    profile = gpu.card.profile(profile_id)
    if instances is None:
        raise Refused(Code.INVALID_ARGUMENT)
    instances.demand(profile.max_instances)
    found = gpu.card.instances_of(profile_id)
    for index, instance in enumerate(found):
        instances.write_handle(index, library.give(GpuInstanceView(gpu.card, instance)))
    count.value = len(found)


@c_function(
    "nvmlDeviceGetGpuInstanceById",
    GPU,
    Number(),
    HandleOut(Kind.GPU_INSTANCE),
    errors=(*_ASKING, Code.NOT_FOUND),
)
def get_by_id(library: Session, gpu: Device, instance_id: int, handle: Any) -> None:
    _require_configurable(library, gpu)
    handle.write(library.give(GpuInstanceView(gpu.card, gpu.card.instance(instance_id))))


@c_function("nvmlGpuInstanceGetInfo", GPU_INSTANCE, Out(pynvml.c_nvmlGpuInstanceInfo_t))
def get_info(library: Session, view: GpuInstanceView, info: Any) -> None:
    instance = view.instance
    info.device = pointer_to(library.give(Device(view.card)), Kind.GPU)
    info.id, info.profileId = instance.id, instance.profile
    info.placement.start, info.placement.size = instance.start, instance.size


def _profile_of_kind(library: Session, gpu: Device, kind: int) -> GpuProfile:
    _require_told(library, gpu)
    if kind >= pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT:
        raise Refused(Code.INVALID_ARGUMENT)
    profile = gpu.card.board.profile_of_kind(kind)
    if profile is None:
        raise Refused(Code.NOT_SUPPORTED)
    return profile


def _require_told(library: Session, gpu: Device) -> None:
    _require_no_guest(library)
    gpu.card.require_mig_capable()
    if library.node.switches.profiles_need_mig:
        gpu.card.require_mig()


def _require_configurable(library: Session, gpu: Device) -> None:
    _require_no_guest(library)
    gpu.card.require_mig()
    library.require_privilege()


def _require_no_guest(library: Session) -> None:
    if library.node.switches.vgpu_guest:
        raise Refused(Code.NOT_SUPPORTED)


def _fill(info: Any, profile: GpuProfile) -> None:
    info.id = profile.id
    info.isP2pSupported = 0
    info.sliceCount = profile.slices
    info.instanceCount = profile.max_instances
    info.multiprocessorCount = profile.multiprocessors
    info.copyEngineCount = profile.copy_engines
    info.decoderCount = profile.decoders
    info.encoderCount = profile.encoders
    info.jpegCount = profile.jpeg
    info.ofaCount = profile.ofa
    info.memorySizeMB = profile.memory_mib
