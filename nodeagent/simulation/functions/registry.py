"""How a C function is declared.

    @c_function("nvmlDeviceGetMinorNumber", GPU, Out(c_uint))
    def get_minor_number(library, gpu, number):
        number.value = gpu.card.index

The arguments arrive checked and plain: a handle as what it stands for, a reference as what it
leads to. Returning is NVML_SUCCESS, `Refused` any other code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nodeagent.simulation.arguments import Argument, HandleIn
from nodeagent.simulation.codes import Code
from nodeagent.simulation.handles import Kind

Body = Callable[..., Any]

DEVICE = HandleIn(Kind.GPU, Kind.MIG_DEVICE)
GPU = HandleIn(Kind.GPU)
GPU_ONLY = HandleIn(Kind.GPU, otherwise=Code.NOT_SUPPORTED)  # sensors of the whole card
MIG_DEVICE = HandleIn(Kind.MIG_DEVICE)
GPU_INSTANCE = HandleIn(Kind.GPU_INSTANCE)
COMPUTE_INSTANCE = HandleIn(Kind.COMPUTE_INSTANCE)
EVENT_SET = HandleIn(Kind.EVENT_SET)
GPM_SAMPLE = HandleIn(Kind.GPM_SAMPLE)


@dataclass(frozen=True, slots=True)
class Function:
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
    name: str,
    *arguments: Argument,
    changes: bool = False,
    opens: bool = False,
    raw: bool = False,
    errors: tuple[Code, ...] = (),
) -> Callable[[Body], Body]:
    """Declare a C function by its name in the library."""

    def declare(body: Body) -> Body:
        if name in FUNCTIONS:
            raise ValueError(f"{name} is declared twice")
        FUNCTIONS[name] = Function(name, arguments, body, changes, opens, raw, errors)
        return body

    return declare


def documented_errors(name: str) -> tuple[Code, ...]:
    """The error codes that a C function may answer; KeyError when there is no such function."""
    function = FUNCTIONS[name]
    if function.opens:
        return function.errors
    return (*GENERAL_ERRORS, *(code for code in function.errors if code not in GENERAL_ERRORS))
