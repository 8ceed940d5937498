"""Who uses a device: NVML's three process lists, in the two forms that drivers have."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:

from __future__ import annotations

from ctypes import c_uint
from typing import Any

import pynvml

from nodeagent.simulation.arguments import Array, Out
from nodeagent.simulation.card import ids_of
from nodeagent.simulation.codes import Code, Refused, SimulatorMisuse
from nodeagent.simulation.functions.registry import DEVICE, c_function
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.state import Process, ProcessKind
from nodeagent.simulation.views import Device, MigDevice

_LISTS = {
    "nvmlDeviceGetComputeRunningProcesses": ProcessKind.COMPUTE,
    "nvmlDeviceGetGraphicsRunningProcesses": ProcessKind.GRAPHICS,
    "nvmlDeviceGetMPSComputeRunningProcesses": ProcessKind.MPS,
}
_UNKNOWN_MEMORY = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value


def _declare(name: str, kind: ProcessKind) -> None:
    @c_function(
        name,
        DEVICE,
        Out(c_uint),
        Array(pynvml.c_nvmlProcessInfo_v2_t),
        errors=(Code.INSUFFICIENT_SIZE, Code.NO_PERMISSION, Code.NOT_SUPPORTED),
    )
    def get_processes(library: Session, device: Device, count: c_uint, infos: Any) -> None:
        """`count` goes in as the room and comes out as the number there is."""
        if device.card.state.mig and not isinstance(device, MigDevice):
            library.require_privilege()
        found = [p for p in _users(device) if p.kind is kind]
        room, count.value = (count.value if infos is not None else 0), len(found)
        if infos is not None and infos.room is not None and infos.room < room:
            raise SimulatorMisuse(f"{name}: the array has {infos.room} elements, not {room}")
        if room < len(found):
            raise Refused(Code.INSUFFICIENT_SIZE)
        for index, process in enumerate(found):
            infos[index].pid = process.pid
            memory = process.memory
            infos[index].usedGpuMemory = _UNKNOWN_MEMORY if memory is None else memory
            infos[index].gpuInstanceId, infos[index].computeInstanceId = ids_of(process)


def _users(device: Device) -> list[Process]:
    if isinstance(device, MigDevice):
        return device.card.processes(device.instance.id, device.compute.id)
    return device.card.processes()


for _name, _kind in _LISTS.items():
    for _version in ("_v2", "_v3"):  # the same structure in both
        _declare(_name + _version, _kind)
