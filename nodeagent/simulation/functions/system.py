"""Opening and closing the session, versions, error texts; settings of a GPU that are kept."""

import pynvml

from nodeagent.simulation.arguments import write_text
from nodeagent.simulation.codes import TEXTS, Code, Refused
from nodeagent.simulation.devices import Device, MigDevice
from nodeagent.simulation.functions.registry import (
    BufferOut,
    DeviceIn,
    IntOut,
    UInt,
    UIntOut,
    WholeGpuIn,
    c_function,
)
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.state import CardState, ComputeInstance

_INIT_ERRORS = (Code.DRIVER_NOT_LOADED, Code.NO_PERMISSION, Code.UNKNOWN)


@c_function(*_INIT_ERRORS, opens=True)
def nvmlInitWithFlags(session: Session, flags: UInt) -> None:
    session.open()


@c_function(*_INIT_ERRORS, opens=True)
def nvmlInit_v2(session: Session) -> None:
    session.open()


@c_function(Code.UNINITIALIZED, Code.UNKNOWN)
def nvmlShutdown(session: Session) -> None:
    session.shut()


@c_function(raw=True)
def nvmlErrorString(session: Session, result: UInt) -> bytes:
    code = int(getattr(result, "value", result))
    known = code in set(Code)
    return TEXTS.get(Code(code), Code(code).name).encode() if known else b"Unknown Error"


@c_function(Code.INSUFFICIENT_SIZE)
def nvmlSystemGetDriverVersion(session: Session, buffer: BufferOut, size: UInt) -> None:
    write_text(buffer, size, session.node.switches.driver_version)


@c_function(Code.INSUFFICIENT_SIZE)
def nvmlSystemGetNVMLVersion(session: Session, buffer: BufferOut, size: UInt) -> None:
    cuda_major = session.node.switches.cuda_version // 1000
    write_text(buffer, size, f"{cuda_major}.{session.node.switches.driver_version}")


@c_function(Code.NOT_SUPPORTED, name="nvmlSystemGetCudaDriverVersion_v2")
@c_function(Code.NOT_SUPPORTED)
def nvmlSystemGetCudaDriverVersion(session: Session, version: IntOut) -> None:
    version.value = session.node.switches.cuda_version


@c_function(Code.NOT_FOUND)
def nvmlSystemGetProcessName(session: Session, pid: UInt, buffer: BufferOut, size: UInt) -> None:
    """Cut to the buffer, as NVML does with long names."""
    for card in session.node.cards:
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


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetPersistenceMode(session: Session, gpu: WholeGpuIn, mode: UIntOut) -> None:
    mode.value = gpu.card.state.persistence


@c_function(*_SETTING, changes=True)
def nvmlDeviceSetPersistenceMode(session: Session, gpu: WholeGpuIn, mode: UInt) -> None:
    session.require_privilege()
    if mode not in (0, 1):
        raise Refused(Code.INVALID_ARGUMENT)
    gpu.card.state.persistence = bool(mode)


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetComputeMode(session: Session, device: DeviceIn, mode: UIntOut) -> None:
    """Of a GPU in MIG mode only each MIG device has one."""
    answer = session.node.switches.compute_mode_of_mig_parent
    if _is_mig_parent(device):
        if answer != "DEFAULT":
            raise Refused(Code[answer])
        mode.value = pynvml.NVML_COMPUTEMODE_DEFAULT
        return
    mode.value = _holder_of_mode(session, device).compute_mode


@c_function(*_SETTING, changes=True)
def nvmlDeviceSetComputeMode(session: Session, device: DeviceIn, mode: UInt) -> None:
    """At once; who has a context already keeps it."""
    if _is_mig_parent(device):
        answer = session.node.switches.compute_mode_of_mig_parent
        raise Refused(Code.NOT_SUPPORTED if answer == "DEFAULT" else Code[answer])
    holder = _holder_of_mode(session, device)
    session.require_privilege()
    if mode not in _COMPUTE_MODES:
        known = mode < pynvml.NVML_COMPUTEMODE_COUNT
        raise Refused(Code.NOT_SUPPORTED if known else Code.INVALID_ARGUMENT)
    holder.compute_mode = mode


def _is_mig_parent(device: Device) -> bool:
    return device.card.state.mig and not isinstance(device, MigDevice)


def _holder_of_mode(session: Session, device: Device) -> CardState | ComputeInstance:
    if not isinstance(device, MigDevice):
        return device.card.state
    if not session.node.switches.mig_compute_modes:
        raise Refused(Code.NOT_SUPPORTED)
    return device.compute
