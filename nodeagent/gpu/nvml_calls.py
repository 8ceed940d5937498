"""NVML's calls for readings, by the names that pynvml has for them.

As in `nvml`: structures go in by reference only, and errors come out as the agent's own. Batches
are read out of their memory at once, since an access to a field of a pynvml structure costs as
much as a call.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from ctypes import Structure, byref
from typing import TYPE_CHECKING, Any, Final

import pynvml

from nodeagent.gpu.nvml import Device, call
from nodeagent.gpu.nvml_errors import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
)

if TYPE_CHECKING:  # commands that read no metrics start without what it imports
    from nodeagent.metrics.sources import Number

# What a driver or a GPU does not have, or not for this user: it will not have it later either.
ABSENT: Final = frozenset(
    {NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, NO_PERMISSION}
)
NO_DATA: Final = 21

# fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value: 40 bytes
_FIELD = struct.Struct("<IIqqII8s")
_VALUES: Final = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: struct.Struct("<d"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: struct.Struct("<I4x"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: struct.Struct("<Q"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: struct.Struct("<Q"),
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: struct.Struct("<q"),
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: struct.Struct("<i4x"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: struct.Struct("<H6x"),
}

FieldId = tuple[int, int]  # fieldId and scopeId


def constant(name: str) -> int:
    """The number of a name; KeyError for one that this pynvml does not know."""
    value = vars(pynvml)[name]
    # NVML_P2P_CAPS_INDEX_READ is a tuple by a slip of the pen.
    return int(value[0] if isinstance(value, tuple) else value)


def filled(function: str, structure: str, device: Device) -> Any:
    """The structure that a call fills in."""
    answer = getattr(pynvml, structure)()
    call(function, device, byref(answer))
    return answer


def member(answer: Any, item: str) -> Any:
    """An attribute of a structure, or a position (in digits) of a tuple, as it is.

    `a.b` is b of every element of a.
    """
    if item.isdigit():
        return answer[int(item)]
    name, dot, rest = item.partition(".")
    # pynvml's own access decodes bytes, which those that are numbers need not survive.
    found = Structure.__getattribute__(answer, name)
    return tuple(member(part, rest) for part in found) if dot else found


def number(value: Any) -> Number | tuple[Number, ...]:
    """A value as numbers; a char of C is one. Raises TypeError for what is none."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, bytes):  # a char with the value 0 comes as one byte too
        return value[0] if value else 0
    if isinstance(value, tuple | list):
        return tuple(_single(number(part)) for part in value)
    raise TypeError(f"{value!r} is not a number")


def _single(value: Number | tuple[Number, ...]) -> Number:
    if isinstance(value, tuple):
        raise TypeError(f"{value!r} is not a single number")
    return value


# --- field values ---------------------------------------------------------------------------------


def field_values(
    device: Device, wanted: Sequence[FieldId]
) -> Iterator[tuple[FieldId, int, Number]]:
    """Yield each field's id, its return code and its value (0 where the code is not 0).

    One call for all of them.
    """
    values = call("nvmlDeviceGetFieldValues", device, wanted)
    for number_, scope, _, _, kind, code, raw in _FIELD.iter_unpack(memoryview(values).cast("B")):
        unpack = _VALUES.get(kind)
        if code or unpack is None:
            yield (number_, scope), code or NOT_SUPPORTED, 0
        else:
            yield (number_, scope), 0, unpack.unpack(raw)[0]


# --- ports ----------------------------------------------------------------------------------------


def port_counters(device: Device, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, Number]]:
    """The return code and value of each (counter, port); for root only."""
    counters = (pynvml.c_nvmlPRMCounter_v1_t * len(wanted))()
    for entry, (counter, port) in zip(counters, wanted, strict=True):
        entry.counterId, entry.inputValue.localPort = counter, port
    listed = pynvml.c_nvmlPRMCounterList_v1_t(len(wanted), counters)
    call("nvmlDeviceReadPRMCounters_v1", device, listed)
    return [_port_value(entry.outputValue) for entry in counters]


def _port_value(output: Any) -> tuple[int, Number]:
    unpack = _VALUES.get(output.outputType)
    if output.status or unpack is None:
        return int(output.status) or NOT_SUPPORTED, 0
    return 0, unpack.unpack(bytes(output.outputValue))[0]
