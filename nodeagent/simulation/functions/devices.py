"""Finding devices, and what they are called."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103

from __future__ import annotations

from ctypes import c_int, c_uint, c_ulonglong
from typing import Any

import pynvml

from nodeagent.simulation.arguments import Buffer, HandleOut, Number, Out, Text, write_text
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import DEVICE, GPU, GPU_ONLY, c_function
from nodeagent.simulation.handles import Kind
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.views import Device, MigDevice

_ARCHITECTURES = {
    "Turing": pynvml.NVML_DEVICE_ARCH_TURING,
    "Ampere": pynvml.NVML_DEVICE_ARCH_AMPERE,
    "Ada": pynvml.NVML_DEVICE_ARCH_ADA,
    "Hopper": pynvml.NVML_DEVICE_ARCH_HOPPER,
    "Blackwell": pynvml.NVML_DEVICE_ARCH_BLACKWELL,
}
_NAMED = (Code.NOT_SUPPORTED, Code.INSUFFICIENT_SIZE)


@c_function("nvmlDeviceGetCount_v2", Out(c_uint))
def get_count(library: Session, count: c_uint) -> None:
    count.value = len(library.node.cards)


@c_function(
    "nvmlDeviceGetHandleByIndex_v2",
    Number(),
    HandleOut(Kind.GPU),
    errors=(Code.NO_PERMISSION, Code.INSUFFICIENT_POWER, Code.IRQ_ISSUE),
)
def get_handle_by_index(library: Session, index: int, handle: Any) -> None:
    if index >= len(library.node.cards):
        raise Refused(Code.INVALID_ARGUMENT)
    handle.write(library.give(_working(library.node.cards[index])))


@c_function("nvmlDeviceGetHandleByUUID", Text(), HandleOut(Kind.GPU), errors=(Code.NOT_FOUND,))
def get_handle_by_uuid(library: Session, uuid: str | None, handle: Any) -> None:
    if not uuid:
        raise Refused(Code.INVALID_ARGUMENT)
    for card in library.node.cards:
        if uuid.lower() == card.identity.uuid.lower():
            handle.write(library.give(_working(card)))
            return
        for instance, compute in card.mig_devices():
            device = MigDevice(card, instance, compute)
            if uuid.lower() == device.uuid.lower():
                _working(card)
                handle.write(library.give(device))
                return
    raise Refused(Code.NOT_FOUND)


@c_function(
    "nvmlDeviceGetHandleByPciBusId_v2", Text(), HandleOut(Kind.GPU), errors=(Code.NOT_FOUND,)
)
def get_handle_by_pci_bus_id(library: Session, address: str | None, handle: Any) -> None:
    if not address:
        raise Refused(Code.INVALID_ARGUMENT)
    *domain, bus, slot = ["", *address.upper().split(":")]
    wanted = f"{''.join(domain).zfill(8)}:{bus}:{slot}"
    for card in library.node.cards:
        if wanted == card.identity.pci_bus_id:
            handle.write(library.give(_working(card)))
            return
    raise Refused(Code.NOT_FOUND)


@c_function("nvmlDeviceGetName", DEVICE, Buffer(), Number(), errors=_NAMED)
def get_name(library: Session, device: Device, buffer: Any, size: int) -> None:
    name = device.card.board.product
    if isinstance(device, MigDevice):
        kind = device.card.compute_profile(device.instance, device.compute.profile)
        name += f" MIG {device.profile.compute_name(kind)}"
    write_text(buffer, size, name)


@c_function("nvmlDeviceGetUUID", DEVICE, Buffer(), Number(), errors=_NAMED)
def get_uuid(library: Session, device: Device, buffer: Any, size: int) -> None:
    uuid = device.uuid if isinstance(device, MigDevice) else device.card.identity.uuid
    write_text(buffer, size, uuid)


@c_function("nvmlDeviceGetIndex", DEVICE, Out(c_uint))
def get_index(library: Session, device: Device, index: c_uint) -> None:
    """Of a MIG device its index on its GPU."""
    if isinstance(device, MigDevice):
        serials = [compute.serial for _, compute in device.card.mig_devices()]
        index.value = serials.index(device.compute.serial)
    else:
        index.value = device.card.index


@c_function("nvmlDeviceGetSerial", GPU_ONLY, Buffer(), Number(), errors=_NAMED)
def get_serial(library: Session, device: Device, buffer: Any, size: int) -> None:
    write_text(buffer, size, device.card.identity.serial_number)


@c_function("nvmlDeviceGetPdi", GPU_ONLY, Out(pynvml.c_nvmlPdi_t), errors=(Code.NOT_SUPPORTED,))
def get_pdi(library: Session, device: Device, pdi: Any) -> None:
    pdi.value = device.card.identity.pdi


@c_function("nvmlDeviceGetMinorNumber", GPU_ONLY, Out(c_uint), errors=(Code.NOT_SUPPORTED,))
def get_minor_number(library: Session, device: Device, minor: c_uint) -> None:
    minor.value = device.card.index


@c_function("nvmlDeviceGetPciInfo_v3", GPU_ONLY, Out(pynvml.nvmlPciInfo_t))
def get_pci_info(library: Session, device: Device, info: Any) -> None:
    card = device.card
    info.domain = card.identity.pci_domain
    info.bus = card.identity.pci_bus
    info.device = 0
    info.pciDeviceId = card.board.pci_device_id
    info.pciSubSystemId = card.board.pci_subsystem_id
    info.busId = card.identity.pci_bus_id.encode()
    info.busIdLegacy = card.identity.pci_bus_id[4:].encode()


@c_function("nvmlDeviceGetCudaComputeCapability", DEVICE, Out(c_int), Out(c_int))
def get_compute_capability(library: Session, device: Device, major: c_int, minor: c_int) -> None:
    major.value, minor.value = device.card.board.compute_capability


@c_function("nvmlDeviceGetArchitecture", DEVICE, Out(c_uint))
def get_architecture(library: Session, device: Device, architecture: c_uint) -> None:
    family = device.card.board.architecture.split()[0]
    architecture.value = _ARCHITECTURES.get(family, pynvml.NVML_DEVICE_ARCH_UNKNOWN)


@c_function("nvmlDeviceGetVirtualizationMode", GPU, Out(c_ulonglong), errors=(Code.NOT_SUPPORTED,))
def get_virtualization_mode(library: Session, device: Device, mode: c_ulonglong) -> None:
    switches = library.node.switches
    mode.value = pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE
    if switches.vgpu_guest:
        mode.value = pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU
    elif switches.passthrough:
        mode.value = pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH


@c_function("nvmlDeviceGetNumGpuCores", GPU_ONLY, Out(c_uint), errors=(Code.NOT_SUPPORTED,))
def get_core_count(library: Session, gpu: Device, cores: c_uint) -> None:
    """None with MIG on. 64 cores a multiprocessor up to compute capability 8.0, else 128."""
    if gpu.card.state.mig:
        raise Refused(Code.NOT_SUPPORTED)
    board = gpu.card.board
    each = 64 if board.compute_capability <= (8, 0) else 128
    cores.value = board.multiprocessors * each


def _working(card: Card) -> Device:
    """Raises Refused for a GPU that fell off the bus."""
    if card.state.failure:
        raise Refused(Code(card.state.failure))
    return Device(card)
