"""MIG mode and MIG devices: compute instances as devices of their own."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103

from __future__ import annotations

from ctypes import c_uint
from typing import Any

import pynvml

from nodeagent.simulation.arguments import HandleOut, Number, Out
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import DEVICE, GPU, MIG_DEVICE, c_function
from nodeagent.simulation.handles import Kind
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.views import Device, MigDevice


@c_function("nvmlDeviceIsMigDeviceHandle", DEVICE, Out(c_uint), errors=(Code.NOT_SUPPORTED,))
def is_mig_device_handle(library: Session, device: Device, answer: c_uint) -> None:
    answer.value = isinstance(device, MigDevice)


@c_function("nvmlDeviceGetMaxMigDeviceCount", GPU, Out(c_uint))
def get_max_count(library: Session, gpu: Device, count: c_uint) -> None:
    """0 with MIG off or without MIG."""
    count.value = gpu.card.board.max_gpu_instances if gpu.card.state.mig else 0


@c_function(
    "nvmlDeviceGetMigDeviceHandleByIndex",
    GPU,
    Number(),
    HandleOut(Kind.MIG_DEVICE),
    errors=(Code.NOT_FOUND, Code.NOT_SUPPORTED),
)
def get_by_index(library: Session, gpu: Device, index: int, handle: Any) -> None:
    gpu.card.require_mig_capable()
    found = list(gpu.card.mig_devices())
    if index >= len(found):
        raise Refused(Code[library.node.switches.missing_mig_index])
    handle.write(library.give(MigDevice(gpu.card, *found[index])))


@c_function(
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    MIG_DEVICE,
    HandleOut(Kind.GPU),
    errors=(Code.NOT_SUPPORTED,),
)
def get_parent(library: Session, device: MigDevice, handle: Any) -> None:
    handle.write(library.give(Device(device.card)))


@c_function("nvmlDeviceGetGpuInstanceId", MIG_DEVICE, Out(c_uint), errors=(Code.NOT_SUPPORTED,))
def get_gpu_instance_id(library: Session, device: MigDevice, number: c_uint) -> None:
    number.value = device.instance.id


@c_function("nvmlDeviceGetComputeInstanceId", MIG_DEVICE, Out(c_uint), errors=(Code.NOT_SUPPORTED,))
def get_compute_instance_id(library: Session, device: MigDevice, number: c_uint) -> None:
    number.value = device.compute.id


@c_function(
    "nvmlDeviceGetAttributes_v2",
    DEVICE,
    Out(pynvml.c_nvmlDeviceAttributes),
    errors=(Code.NOT_SUPPORTED,),
)
def get_attributes(library: Session, device: Device, attributes: Any) -> None:
    """Of MIG devices only."""
    if not isinstance(device, MigDevice):
        raise Refused(Code.NOT_SUPPORTED)
    whole = device.profile
    part = device.card.compute_profile(device.instance, device.compute.profile)
    attributes.multiprocessorCount = part.multiprocessors
    attributes.sharedCopyEngineCount = whole.copy_engines
    attributes.sharedDecoderCount = whole.decoders
    attributes.sharedEncoderCount = whole.encoders
    attributes.sharedJpegCount = whole.jpeg
    attributes.sharedOfaCount = whole.ofa
    attributes.gpuInstanceSliceCount = whole.slices
    attributes.computeInstanceSliceCount = part.slices
    attributes.memorySizeMB = whole.memory_mib


# --- the MIG mode of a GPU ----------------------------------------------------------------------


@c_function("nvmlDeviceGetMigMode", GPU, Out(c_uint), Out(c_uint), errors=(Code.NOT_SUPPORTED,))
def get_mig_mode(library: Session, gpu: Device, current: c_uint, pending: c_uint) -> None:
    gpu.card.require_mig_capable()
    current.value, pending.value = gpu.card.state.mig, gpu.card.state.pending


@c_function(
    "nvmlDeviceSetMigMode",
    GPU,
    Number(),
    Out(c_uint),
    changes=True,
    errors=(Code.NOT_SUPPORTED, Code.NO_PERMISSION),
)
def set_mig_mode(library: Session, gpu: Device, mode: int, activation: c_uint) -> None:
    """The call succeeds also where the change has to wait; `activation` says why it waits."""
    gpu.card.require_mig_capable()
    library.require_privilege()
    if mode not in (0, 1):
        raise Refused(Code.INVALID_ARGUMENT)
    activation.value = gpu.card.set_mig_mode(enabled=bool(mode))
