"""Finding devices, and what they are called."""

from typing import Annotated, Any

import pynvml

from nodeagent.simulation.arguments import Out, write_text
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.devices import Device, MigDevice
from nodeagent.simulation.functions.registry import (
    BufferOut,
    DeviceIn,
    GpuIn,
    GpuOut,
    IntOut,
    String,
    UInt,
    UIntOut,
    ULongOut,
    WholeGpuIn,
    c_function,
)
from nodeagent.simulation.nvml_session import Session

_NAMED = (Code.NOT_SUPPORTED, Code.INSUFFICIENT_SIZE)


@c_function()
def nvmlDeviceGetCount_v2(session: Session, count: UIntOut) -> None:
    count.value = len(session.node.cards)


@c_function(Code.NO_PERMISSION, Code.INSUFFICIENT_POWER, Code.IRQ_ISSUE)
def nvmlDeviceGetHandleByIndex_v2(session: Session, index: UInt, handle: GpuOut) -> None:
    if index >= len(session.node.cards):
        raise Refused(Code.INVALID_ARGUMENT)
    handle.give(_working(session.node.cards[index]))


@c_function(Code.NOT_FOUND)
def nvmlDeviceGetHandleByUUID(session: Session, uuid: String, handle: GpuOut) -> None:
    if not uuid:
        raise Refused(Code.INVALID_ARGUMENT)
    for card in session.node.cards:
        if uuid.lower() == card.identity.uuid.lower():
            handle.give(_working(card))
            return
        for instance, compute in card.mig_devices():
            device = MigDevice(card, instance, compute)
            if uuid.lower() == device.uuid.lower():
                _working(card)
                handle.give(device)
                return
    raise Refused(Code.NOT_FOUND)


@c_function(*_NAMED)
def nvmlDeviceGetName(session: Session, device: DeviceIn, buffer: BufferOut, size: UInt) -> None:
    name = device.card.board.product
    if isinstance(device, MigDevice):
        name += f" MIG {device.profile.compute_name(device.compute_profile)}"
    write_text(buffer, size, name)


@c_function(*_NAMED)
def nvmlDeviceGetUUID(session: Session, device: DeviceIn, buffer: BufferOut, size: UInt) -> None:
    uuid = device.uuid if isinstance(device, MigDevice) else device.card.identity.uuid
    write_text(buffer, size, uuid)


@c_function()
def nvmlDeviceGetIndex(session: Session, device: DeviceIn, index: UIntOut) -> None:
    """Of a MIG device its index on its GPU."""
    if isinstance(device, MigDevice):
        serials = [compute.serial for _, compute in device.card.mig_devices()]
        index.value = serials.index(device.compute.serial)
    else:
        index.value = device.card.index


@c_function(*_NAMED)
def nvmlDeviceGetSerial(
    session: Session, device: WholeGpuIn, buffer: BufferOut, size: UInt
) -> None:
    write_text(buffer, size, device.card.identity.serial_number)


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetMinorNumber(session: Session, device: WholeGpuIn, minor: UIntOut) -> None:
    minor.value = device.card.index


@c_function()
def nvmlDeviceGetPciInfo_v3(
    session: Session, device: WholeGpuIn, info: Annotated[Any, Out(pynvml.nvmlPciInfo_t)]
) -> None:
    card = device.card
    info.domain = card.identity.pci_domain
    info.bus = card.identity.pci_bus
    info.device = 0
    info.pciDeviceId = card.board.pci_device_id
    info.pciSubSystemId = card.board.pci_subsystem_id
    info.busId = card.identity.pci_bus_id.encode()
    info.busIdLegacy = card.identity.pci_bus_id[4:].encode()


@c_function()
def nvmlDeviceGetCudaComputeCapability(
    session: Session, device: DeviceIn, major: IntOut, minor: IntOut
) -> None:
    major.value, minor.value = device.card.board.compute_capability


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetVirtualizationMode(session: Session, device: GpuIn, mode: ULongOut) -> None:
    mode.value = pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE
    if session.node.switches.passthrough:
        mode.value = pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH


def _working(card: Card) -> Device:
    """Raises Refused for a GPU that fell off the bus."""
    if card.state.failure:
        raise Refused(Code(card.state.failure))
    return Device(card)
