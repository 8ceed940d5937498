"""Opening and closing the library, versions, error texts."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103

from __future__ import annotations

from ctypes import c_int
from typing import Any

from nodeagent.simulation.arguments import Buffer, Number, Out, write_text
from nodeagent.simulation.codes import TEXTS, Code, Refused
from nodeagent.simulation.functions.registry import c_function
from nodeagent.simulation.nvml_session import Session

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
