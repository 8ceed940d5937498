"""MIG mode and MIG devices: compute instances as devices of their own."""

from typing import Annotated, Any

import pynvml

from nodeagent.simulation.arguments import Out
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.devices import MigDevice
from nodeagent.simulation.functions.compute_instances import fill_shared_engines
from nodeagent.simulation.functions.registry import (
    DeviceIn,
    GpuIn,
    MigDeviceIn,
    MigDeviceOut,
    UInt,
    UIntOut,
    c_function,
)
from nodeagent.simulation.nvml_session import Session


@c_function()
def nvmlDeviceGetMaxMigDeviceCount(session: Session, gpu: GpuIn, count: UIntOut) -> None:
    """0 with MIG off or without MIG."""
    count.value = gpu.card.board.max_gpu_instances if gpu.card.state.mig else 0


@c_function(Code.NOT_FOUND, Code.NOT_SUPPORTED)
def nvmlDeviceGetMigDeviceHandleByIndex(
    session: Session, gpu: GpuIn, index: UInt, handle: MigDeviceOut
) -> None:
    gpu.card.require_mig_capable()
    found = list(gpu.card.mig_devices())
    if index >= len(found):
        raise Refused(Code.NOT_FOUND)
    handle.give(MigDevice(gpu.card, *found[index]))


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetGpuInstanceId(session: Session, device: MigDeviceIn, number: UIntOut) -> None:
    number.value = device.instance.id


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetComputeInstanceId(session: Session, device: MigDeviceIn, number: UIntOut) -> None:
    number.value = device.compute.id


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetAttributes_v2(
    session: Session,
    device: DeviceIn,
    attributes: Annotated[Any, Out(pynvml.c_nvmlDeviceAttributes)],
) -> None:
    """Of MIG devices only."""
    if not isinstance(device, MigDevice):
        raise Refused(Code.NOT_SUPPORTED)
    whole = device.profile
    part = device.compute_profile
    attributes.multiprocessorCount = part.multiprocessors
    fill_shared_engines(attributes, whole)
    attributes.gpuInstanceSliceCount = whole.slices
    attributes.computeInstanceSliceCount = part.slices
    attributes.memorySizeMB = whole.memory_mib


# --- the MIG mode of a GPU ----------------------------------------------------------------------


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetMigMode(session: Session, gpu: GpuIn, current: UIntOut, pending: UIntOut) -> None:
    gpu.card.require_mig_capable()
    current.value, pending.value = gpu.card.state.mig, gpu.card.state.pending


@c_function(Code.NOT_SUPPORTED, Code.NO_PERMISSION, changes=True)
def nvmlDeviceSetMigMode(session: Session, gpu: GpuIn, mode: UInt, activation: UIntOut) -> None:
    """The call succeeds also where the change has to wait; `activation` says why it waits."""
    gpu.card.require_mig_capable()
    session.require_privilege()
    if mode not in (0, 1):
        raise Refused(Code.INVALID_ARGUMENT)
    activation.value = gpu.card.set_mig_mode(enabled=bool(mode))
