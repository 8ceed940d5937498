"""Modes of a device that can be set: persistence, compute mode."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103

from __future__ import annotations

from ctypes import c_uint

import pynvml

from nodeagent.simulation.arguments import Number, Out
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import DEVICE, GPU_ONLY, c_function
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.state import CardState, ComputeInstance
from nodeagent.simulation.views import Device, MigDevice

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
