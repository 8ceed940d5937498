"""How a C function is declared: as a Python function of its name, with its parameters.

    @c_function(Code.NOT_SUPPORTED)
    def nvmlDeviceGetMinorNumber(session: Session, gpu: WholeGpuIn, number: UIntOut) -> None:
        number.value = gpu.card.index

The annotations say what C's caller passes, so the modules that declare functions do without
`from __future__ import annotations`. The arguments arrive checked and plain: a handle as what it
stands for, a reference as what it leads to. Returning is NVML_SUCCESS, `Refused` any other code.
"""

from collections.abc import Callable, Mapping
from ctypes import c_int, c_uint, c_ulonglong
from typing import Annotated, Any

from msgspec import Struct

from nodeagent.simulation import devices, nvml_session
from nodeagent.simulation.arguments import (
    Argument,
    Buffer,
    HandleIn,
    HandleOut,
    HandleWriter,
    Number,
    Out,
    Text,
)
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.handles import Kind

_WHOLE_GPU = HandleIn(Kind.GPU, otherwise=Code.NOT_SUPPORTED)

DeviceIn = Annotated[devices.Device, HandleIn(Kind.GPU, Kind.MIG_DEVICE)]
GpuIn = Annotated[devices.Device, HandleIn(Kind.GPU)]
WholeGpuIn = Annotated[devices.Device, _WHOLE_GPU]
MigDeviceIn = Annotated[devices.MigDevice, HandleIn(Kind.MIG_DEVICE)]
GpuInstanceIn = Annotated[devices.GpuInstanceDevice, HandleIn(Kind.GPU_INSTANCE)]
ComputeInstanceIn = Annotated[devices.ComputeInstanceDevice, HandleIn(Kind.COMPUTE_INSTANCE)]
EventSetIn = Annotated[nvml_session.EventSet, HandleIn(Kind.EVENT_SET)]
GpmSampleIn = Annotated[nvml_session.GpmSample, HandleIn(Kind.GPM_SAMPLE)]

GpuOut = Annotated[HandleWriter, HandleOut(Kind.GPU)]
MigDeviceOut = Annotated[HandleWriter, HandleOut(Kind.MIG_DEVICE)]
GpuInstanceOut = Annotated[HandleWriter, HandleOut(Kind.GPU_INSTANCE)]
ComputeInstanceOut = Annotated[HandleWriter, HandleOut(Kind.COMPUTE_INSTANCE)]
EventSetOut = Annotated[HandleWriter, HandleOut(Kind.EVENT_SET)]
GpmSampleOut = Annotated[HandleWriter, HandleOut(Kind.GPM_SAMPLE)]

UInt = Annotated[int, Number()]
String = Annotated[str | None, Text()]
BufferOut = Annotated[Any, Buffer()]
IntOut = Annotated[c_int, Out(c_int)]
UIntOut = Annotated[c_uint, Out(c_uint)]
ULongOut = Annotated[c_ulonglong, Out(c_ulonglong)]

Body = Callable[..., Any]


class Function(Struct, frozen=True):
    """`changes`: it may change the node. `opens`: it works before nvmlInit. `raw`: it takes its
    arguments as they are and answers something else than a code. `errors`: codes that its
    documentation names beside the general ones.
    """

    name: str
    arguments: tuple[Argument, ...]
    body: Body
    changes: bool = False
    opens: bool = False
    raw: bool = False
    errors: tuple[Code, ...] = ()


FUNCTIONS: dict[str, Function] = {}

# Every call but initialisation may answer these.
GENERAL_ERRORS = (Code.UNINITIALIZED, Code.INVALID_ARGUMENT, Code.GPU_IS_LOST, Code.UNKNOWN)


def c_function(
    *errors: Code, name: str = "", changes: bool = False, opens: bool = False, raw: bool = False
) -> Callable[[Body], Body]:
    """Declare a C function, by another `name` than the body's where one body serves several."""

    def declare(body: Body) -> Body:
        declared = [kind for key, kind in body.__annotations__.items() if key != "return"]
        arguments = tuple(kind.__metadata__[0] for kind in declared[1:])
        _add(Function(name or body.__name__, arguments, body, changes, opens, raw, errors))
        return body

    return declare


Result = tuple[Out, Mapping[str, str]]  # a parameter, and the figure for each of its members


def number(figure: str, kind: Any = c_uint) -> Result:
    """A parameter that is one number."""
    return Out(kind), {"value": figure}


def c_reading(
    name: str, *results: Result, since: tuple[int, int] = (0, 0), instances: bool = True
) -> None:
    """Declare a C function that returns figures of a whole GPU's sensors.

    Only cards from the compute capability `since` on have them, and without `instances` they are
    not reported while a GPU in MIG mode has some.
    """

    def read(session: nvml_session.Session, gpu: devices.Device, *targets: Any) -> None:
        gpu.card.require_capability(since)
        if gpu.card.state.instances and not instances:
            raise Refused(Code.NOT_SUPPORTED)
        for target, (_, figures) in zip(targets, results, strict=True):
            for member, figure in figures.items():
                setattr(target, member, gpu.card.sensors.integer(figure))

    arguments = (_WHOLE_GPU, *(out for out, _ in results))
    _add(Function(name, arguments, read, errors=(Code.NOT_SUPPORTED,)))


def _add(function: Function) -> None:
    if function.name in FUNCTIONS:
        raise ValueError(f"{function.name} is declared twice")
    FUNCTIONS[function.name] = function


def documented_errors(name: str) -> tuple[Code, ...]:
    """The error codes that a C function may answer; KeyError when there is no such function."""
    function = FUNCTIONS[name]
    if function.opens:
        return function.errors
    outs = [argument for argument in function.arguments if isinstance(argument, Out)]
    versioned = [Code.ARGUMENT_VERSION_MISMATCH for out in outs if any(out.versions.values())]
    return tuple(dict.fromkeys([*GENERAL_ERRORS, *function.errors, *versioned]))
