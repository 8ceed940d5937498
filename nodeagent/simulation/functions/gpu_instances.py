"""GPU instances: profiles, placements, room, creation, destruction."""

from typing import Annotated, Any

import pynvml

from nodeagent.simulation.arguments import Array, Out, pointer_to, versioned
from nodeagent.simulation.boards import GpuProfile
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.devices import Device, GpuInstanceDevice
from nodeagent.simulation.functions.registry import (
    GpuIn,
    GpuInstanceIn,
    GpuInstanceOut,
    UInt,
    UIntOut,
    c_function,
)
from nodeagent.simulation.handles import Kind
from nodeagent.simulation.nvml_session import Session

ProfileInfo = Annotated[Any, Out(pynvml.c_nvmlGpuInstanceProfileInfo_t)]
ProfileInfoV2 = Annotated[Any, versioned("nvmlGpuInstanceProfileInfo_v2")]
_ASKING = (Code.NOT_SUPPORTED, Code.NO_PERMISSION)
_CREATING = (*_ASKING, Code.INSUFFICIENT_RESOURCES, Code.IN_USE)


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetGpuInstanceProfileInfo(
    session: Session, gpu: GpuIn, kind: UInt, info: ProfileInfo
) -> None:
    _fill(info, _profile_of_kind(session, gpu, kind))


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetGpuInstanceProfileInfoV(
    session: Session, gpu: GpuIn, kind: UInt, info: ProfileInfoV2
) -> None:
    profile = _profile_of_kind(session, gpu, kind)
    _fill(info, profile)
    info.name = f"MIG {profile.name}".encode()


@c_function(*_ASKING)
def nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    session: Session,
    gpu: GpuIn,
    profile_id: UInt,
    placements: Annotated[Any, Array(pynvml.c_nvmlGpuInstancePlacement_t)],
    count: UIntOut,
) -> None:
    """All that the profile has, taken or not."""
    _require_reported(session, gpu)
    session.require_privilege()
    profile = gpu.card.profile(profile_id)
    if placements is not None:
        placements.fill([{"start": p.start, "size": p.size} for p in profile.placements])
    count.value = len(profile.placements)


@c_function(*_ASKING)
def nvmlDeviceGetGpuInstanceRemainingCapacity(
    session: Session, gpu: GpuIn, profile_id: UInt, count: UIntOut
) -> None:
    _require_configurable(session, gpu)
    count.value = gpu.card.remaining(profile_id)


@c_function(*_CREATING, changes=True)
def nvmlDeviceCreateGpuInstance(
    session: Session, gpu: GpuIn, profile_id: UInt, handle: GpuInstanceOut
) -> None:
    _require_configurable(session, gpu)
    made = gpu.card.create_instance(profile_id)
    handle.give(GpuInstanceDevice(gpu.card, made))


@c_function(*_CREATING, changes=True)
def nvmlDeviceCreateGpuInstanceWithPlacement(
    session: Session,
    gpu: GpuIn,
    profile_id: UInt,
    placement: Annotated[Any, Out(pynvml.c_nvmlGpuInstancePlacement_t)],
    handle: GpuInstanceOut,
) -> None:
    _require_configurable(session, gpu)
    made = gpu.card.create_instance(profile_id, (placement.start, placement.size))
    handle.give(GpuInstanceDevice(gpu.card, made))


@c_function(*_ASKING, Code.IN_USE, changes=True)
def nvmlGpuInstanceDestroy(session: Session, view: GpuInstanceIn) -> None:
    session.require_privilege()
    view.card.destroy_instance(view.instance)


@c_function(*_ASKING)
def nvmlDeviceGetGpuInstances(
    session: Session,
    gpu: GpuIn,
    profile_id: UInt,
    instances: Annotated[Any, Array(pynvml.c_nvmlGpuInstance_t)],
    count: UIntOut,
) -> None:
    """The array must have room for all that the profile allows."""
    _require_configurable(session, gpu)
    profile = gpu.card.profile(profile_id)
    if instances is None:
        raise Refused(Code.INVALID_ARGUMENT)
    instances.demand(profile.max_instances)
    found = sorted(gpu.card.state.instances, key=lambda i: i.id)
    devices = [GpuInstanceDevice(gpu.card, i) for i in found if i.profile == profile.id]
    instances.write_handles(session.give(device) for device in devices)
    count.value = len(devices)


@c_function(*_ASKING, Code.NOT_FOUND)
def nvmlDeviceGetGpuInstanceById(
    session: Session, gpu: GpuIn, instance_id: UInt, handle: GpuInstanceOut
) -> None:
    _require_configurable(session, gpu)
    handle.give(GpuInstanceDevice(gpu.card, gpu.card.instance(instance_id)))


@c_function()
def nvmlGpuInstanceGetInfo(
    session: Session, view: GpuInstanceIn, info: Annotated[Any, Out(pynvml.c_nvmlGpuInstanceInfo_t)]
) -> None:
    instance = view.instance
    info.device = pointer_to(session.give(Device(view.card)), Kind.GPU)
    info.id, info.profileId = instance.id, instance.profile
    info.placement.start, info.placement.size = instance.start, instance.size


def _profile_of_kind(session: Session, gpu: Device, kind: int) -> GpuProfile:
    _require_reported(session, gpu)
    newest = max(profile.kind for profile in gpu.card.board.profiles)
    if kind > max(newest, pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT - 1):
        raise Refused(Code.INVALID_ARGUMENT)
    profile = gpu.card.board.profile_of_kind(kind)
    if profile is None:
        raise Refused(Code.NOT_SUPPORTED)
    return profile


def _require_reported(session: Session, gpu: Device) -> None:
    gpu.card.require_mig_capable()
    if session.node.switches.profiles_need_mig:
        gpu.card.require_mig()


def _require_configurable(session: Session, gpu: Device) -> None:
    gpu.card.require_mig()
    session.require_privilege()


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
