"""Opening and closing the library, versions, error texts; settings of a GPU that are kept."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103

from __future__ import annotations

from ctypes import c_int, c_uint
from typing import Any

import pynvml

from nodeagent.simulation.arguments import Buffer, Number, Out, write_text
from nodeagent.simulation.codes import TEXTS, Code, Refused
from nodeagent.simulation.functions.registry import DEVICE, GPU_ONLY, c_function
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.state import CardState, ComputeInstance
from nodeagent.simulation.views import Device, MigDevice

_INIT_ERRORS = (Code.DRIVER_NOT_LOADED, Code.NO_PERMISSION, Code.UNKNOWN)


@c_function("nvmlInitWithFlags", Number(), opens=True, errors=_INIT_ERRORS)
def init_with_flags(library: Session, flags: int) -> None:
    library.open()


@c_function("nvmlInit_v2", opens=True, errors=_INIT_ERRORS)
def init(library: Session) -> None:
    library.open()


@c_function("nvmlShutdown", errors=(Code.UNINITIALIZED, Code.UNKNOWN))
def shutdown(library: Session) -> None:
    library.shut()


@c_function("nvmlErrorString", Number(), raw=True)
def error_string(library: Session, result: Any) -> bytes:
    code = int(getattr(result, "value", result))
    known = code in set(Code)
    return TEXTS.get(Code(code), Code(code).name).encode() if known else b"Unknown Error"


@c_function("nvmlSystemGetDriverVersion", Buffer(), Number(), errors=(Code.INSUFFICIENT_SIZE,))
def get_driver_version(library: Session, buffer: Any, size: int) -> None:
    write_text(buffer, size, library.node.switches.driver_version)


@c_function("nvmlSystemGetNVMLVersion", Buffer(), Number(), errors=(Code.INSUFFICIENT_SIZE,))
def get_nvml_version(library: Session, buffer: Any, size: int) -> None:
    cuda_major = library.node.switches.cuda_version // 1000
    write_text(buffer, size, f"{cuda_major}.{library.node.switches.driver_version}")


@c_function("nvmlSystemGetCudaDriverVersion", Out(c_int), errors=(Code.NOT_SUPPORTED,))
def get_cuda_version(library: Session, version: c_int) -> None:
    version.value = library.node.switches.cuda_version


@c_function("nvmlSystemGetCudaDriverVersion_v2", Out(c_int), errors=(Code.NOT_SUPPORTED,))
def get_cuda_version_v2(library: Session, version: c_int) -> None:
    version.value = library.node.switches.cuda_version


@c_function("nvmlSystemGetProcessName", Number(), Buffer(), Number(), errors=(Code.NOT_FOUND,))
def get_process_name(library: Session, pid: int, buffer: Any, size: int) -> None:
    """Cut to the buffer, as NVML does with long names."""
    for card in library.node.cards:
        for process in card.state.processes:
            if process.pid == pid:
                write_text(
                    buffer, size, process.command.encode()[: size - 1].decode("utf-8", "ignore")
                )
                return
    raise Refused(Code.NOT_FOUND)


# --- settings ----------------------------------------------------------------------------------


_SETTING = (Code.NOT_SUPPORTED, Code.NO_PERMISSION)
_COMPUTE_MODES = (
    pynvml.NVML_COMPUTEMODE_DEFAULT,
    pynvml.NVML_COMPUTEMODE_PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
)


@c_function("nvmlDeviceGetPersistenceMode", GPU_ONLY, Out(c_uint), errors=(Code.NOT_SUPPORTED,))
def get_persistence_mode(library: Session, gpu: Device, mode: c_uint) -> None:
    mode.value = gpu.card.state.persistence


@c_function("nvmlDeviceSetPersistenceMode", GPU_ONLY, Number(), changes=True, errors=_SETTING)
def set_persistence_mode(library: Session, gpu: Device, mode: int) -> None:
    library.require_privilege()
    if mode not in (0, 1):
        raise Refused(Code.INVALID_ARGUMENT)
    gpu.card.state.persistence = bool(mode)
    library.node.changed()


@c_function("nvmlDeviceGetComputeMode", DEVICE, Out(c_uint), errors=(Code.NOT_SUPPORTED,))
def get_compute_mode(library: Session, device: Device, mode: c_uint) -> None:
    """Of a GPU in MIG mode only each MIG device has one."""
    answer = library.node.switches.compute_mode_of_mig_parent
    if _is_mig_parent(device):
        if answer != "DEFAULT":
            raise Refused(Code[answer])
        mode.value = pynvml.NVML_COMPUTEMODE_DEFAULT
        return
    mode.value = _holder_of_mode(library, device).compute_mode


@c_function("nvmlDeviceSetComputeMode", DEVICE, Number(), changes=True, errors=_SETTING)
def set_compute_mode(library: Session, device: Device, mode: int) -> None:
    """At once; who has a context already keeps it."""
    if _is_mig_parent(device):
        answer = library.node.switches.compute_mode_of_mig_parent
        raise Refused(Code.NOT_SUPPORTED if answer == "DEFAULT" else Code[answer])
    holder = _holder_of_mode(library, device)
    library.require_privilege()
    if mode not in _COMPUTE_MODES:
        known = mode < pynvml.NVML_COMPUTEMODE_COUNT
        raise Refused(Code.NOT_SUPPORTED if known else Code.INVALID_ARGUMENT)
    holder.compute_mode = mode
    library.node.changed(device.card.index)


@c_function("nvmlDeviceGetAccountingMode", GPU_ONLY, Out(c_uint), errors=(Code.NOT_SUPPORTED,))
def get_accounting_mode(library: Session, gpu: Device, mode: c_uint) -> None:
    """Switching MIG on switches accounting off."""
    mode.value = gpu.card.state.accounting and not gpu.card.state.mig


@c_function("nvmlDeviceSetAccountingMode", GPU_ONLY, Number(), changes=True, errors=_SETTING)
def set_accounting_mode(library: Session, gpu: Device, mode: int) -> None:
    """Cannot be changed while MIG is on."""
    library.require_privilege()
    if gpu.card.state.mig:
        raise Refused(Code.NOT_SUPPORTED)
    if mode not in (0, 1):
        raise Refused(Code.INVALID_ARGUMENT)
    gpu.card.state.accounting = bool(mode)
    library.node.changed()


def _is_mig_parent(device: Device) -> bool:
    return device.card.state.mig and not isinstance(device, MigDevice)


def _holder_of_mode(library: Session, device: Device) -> CardState | ComputeInstance:
    if not isinstance(device, MigDevice):
        return device.card.state
    if not library.node.switches.mig_compute_modes:
        raise Refused(Code.NOT_SUPPORTED)
    return device.compute
