"""What arrives at a C function from pynvml, checked as no C function can, and made plain.

An argument is declared once with the function. `take` looks at what was passed and raises
SimulatorMisuse where C would crash or misread; `resolve` runs later, when the library is known
to be initialised, and may refuse with an NVML code. Results are written to what the caller
passed by reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pynvml

from nodeagent.simulation.codes import Code, Refused, SimulatorMisuse
from nodeagent.simulation.devices import Device
from nodeagent.simulation.handles import Handle, Kind
from nodeagent.simulation.nvml_session import Session

_ByRef = type(ctypes.byref(ctypes.c_int()))
_NUMBERS = (ctypes.c_uint, ctypes.c_int, ctypes.c_ulonglong, ctypes.c_longlong)

HANDLE_TYPES = {
    Kind.GPU: pynvml.c_nvmlDevice_t,
    Kind.MIG_DEVICE: pynvml.c_nvmlDevice_t,
    Kind.GPU_INSTANCE: pynvml.c_nvmlGpuInstance_t,
    Kind.COMPUTE_INSTANCE: pynvml.c_nvmlComputeInstance_t,
    Kind.EVENT_SET: pynvml.c_nvmlEventSet_t,
    Kind.SYSTEM_EVENT_SET: pynvml.c_nvmlSystemEventSet_t,
    Kind.GPM_SAMPLE: pynvml.c_nvmlGpmSample_t,
}


class Argument:
    """One parameter of a C function. `late`: whether `resolve` has work to do."""

    late = False

    def take(self, given: Any, where: str) -> Any:
        raise NotImplementedError

    def resolve(self, session: Session, taken: Any) -> Any:
        return taken


class Number(Argument):
    """An integer by value, as a Python int or as a ctypes integer."""

    def take(self, given: Any, where: str) -> int:
        if isinstance(given, int):
            if not -(1 << 31) <= given < 1 << 32:
                raise SimulatorMisuse(f"{where}: {given} does not fit a C int")
            return given & 0xFFFF_FFFF
        if isinstance(given, _NUMBERS):
            return int(given.value)
        raise SimulatorMisuse(f"{where}: expected a number, got {_name(given)}")


class Text(Argument):
    """A `const char *`; None for NULL."""

    def take(self, given: Any, where: str) -> str | None:
        if isinstance(given, ctypes.c_char_p):
            given = given.value
        if given is None:
            return None
        if isinstance(given, bytes):
            return given.decode("utf-8", errors="replace")
        raise SimulatorMisuse(f"{where}: expected a char *, got {_name(given)}")


class Buffer(Argument):
    """A `char *` to write to. The size that follows it is a `Number`."""

    def take(self, given: Any, where: str) -> Any:
        if given is not None and getattr(type(given), "_type_", None) is not ctypes.c_char:
            raise SimulatorMisuse(f"{where}: expected a char buffer, got {_name(given)}")
        return given


class Out(Argument):
    """`byref(x)` or `pointer(x)` of exactly this type, to write to or to read from.

    With `version` the structure's own version is checked, as the library does. Where C accepts
    structures of several versions, `kind` maps each type to its version.
    """

    late = True

    def __init__(self, kind: Any, version: int | None = None) -> None:
        self.versions = kind if isinstance(kind, Mapping) else {kind: version}

    def take(self, given: Any, where: str) -> Any:
        if given is None:
            return None
        target = _referenced(given)
        if target is None or type(target) not in self.versions:
            wanted = " or ".join(kind.__name__ for kind in self.versions)
            raise SimulatorMisuse(f"{where}: expected a reference to {wanted}, got {_name(given)}")
        return target

    def resolve(self, session: Session, taken: Any) -> Any:
        if taken is None:
            raise Refused(Code.INVALID_ARGUMENT)
        version = self.versions[type(taken)]
        if version is not None and taken.version != version:
            raise Refused(Code.ARGUMENT_VERSION_MISMATCH)
        return taken


def versioned(name: str) -> Out:
    """A reference to pynvml's structure of this name and version, such as `nvmlMemory_v2`."""
    return Out(getattr(pynvml, f"c_{name}_t"), getattr(pynvml, name))


class HandleIn(Argument):
    """A handle by value, of one of the kinds."""

    late = True

    def __init__(self, *kinds: Kind, otherwise: Code = Code.INVALID_ARGUMENT) -> None:
        self._kinds = kinds
        self._type = HANDLE_TYPES[kinds[0]]
        self._otherwise = otherwise

    def take(self, given: Any, where: str) -> int:
        if type(given) is not self._type:
            raise SimulatorMisuse(
                f"{where}: expected a handle of type {self._type.__name__}, got {_name(given)}"
            )
        return ctypes.c_void_p.from_buffer(given).value or 0

    def handle(self, session: Session, taken: int, where: str) -> Handle | None:
        """None for NULL."""
        if not taken:
            return None
        handle = session.handles.take(taken, where)
        if HANDLE_TYPES[handle.kind] is not self._type:
            raise SimulatorMisuse(f"{where}: the handle is one of a {handle.kind.value}")
        return handle

    def resolve(self, session: Session, taken: Handle | None) -> Any:
        if taken is None:
            raise Refused(Code.INVALID_ARGUMENT)
        if taken.kind not in self._kinds:
            session.look_up(taken)  # a stale or lost one says so first
            raise Refused(self._otherwise)
        return session.look_up(taken)


class HandleOut(Out):
    """`byref(handle)`, to write a handle to."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(HANDLE_TYPES[kind])

    def resolve(self, session: Session, taken: Any) -> HandleWriter:
        return HandleWriter(super().resolve(session, taken), session)


class HandleWriter:
    """Where a handle is written to."""

    def __init__(self, target: Any, session: Session) -> None:
        self._target = target
        self._session = session

    def give(self, device: Device) -> None:
        self.write(self._session.give(device))

    def write(self, token: int) -> None:
        ctypes.c_void_p.from_buffer(self._target).value = token


class Array(Argument):
    """An array of structures or handles of this type to write to, or None for the count alone.

    The array itself, `byref(array)` and a pointer to its first element are the same to C. Only
    of a bare pointer the room is not known.
    """

    def __init__(self, element: Any) -> None:
        self._element = element

    def take(self, given: Any, where: str) -> ArrayWriter | None:
        if given is None:
            return None
        target = given if isinstance(given, ctypes.Array) else _referenced(given)
        if isinstance(target, ctypes.Array) and target._type_ is self._element:
            return ArrayWriter(target, len(target), where)
        if type(target) is self._element and isinstance(given, _ByRef):
            return ArrayWriter((self._element * 1).from_buffer(target), 1, where)
        if type(target) is self._element:
            return ArrayWriter(given, None, where)
        raise SimulatorMisuse(
            f"{where}: expected an array of {self._element.__name__}, got {_name(given)}"
        )


class ArrayWriter:
    """Where several results are written to; a real library would write past the end."""

    def __init__(self, target: Any, room: int | None, where: str) -> None:
        self._target = target
        self._where = where
        self.room = room

    def demand(self, count: int) -> None:
        """Raises SimulatorMisuse when `count` elements may not fit."""
        if self.room is not None and self.room < count:
            raise SimulatorMisuse(
                f"{self._where}: the array has room for {self.room}, the call may write {count}"
            )

    def __getitem__(self, index: int) -> Any:
        return self._target[index]

    def write(self, index: int, number: int) -> None:
        self._target[index] = number

    def fill(self, rows: Sequence[Mapping[str, int]]) -> None:
        """With structures that have these members."""
        self.demand(len(rows))
        for index, row in enumerate(rows):
            for name, value in row.items():
                setattr(self._target[index], name, value)

    def write_handles(self, tokens: Iterable[int]) -> None:
        for index, token in enumerate(tokens):
            self._target[index] = ctypes.cast(token, type(self._target[index]))


def pointer_to(token: int, kind: Kind) -> Any:
    """A handle as a member of a structure."""
    return ctypes.cast(token, HANDLE_TYPES[kind])


def write_text(buffer: Any, size: int, text: str) -> None:
    """A string result with its size check; raises Refused and SimulatorMisuse."""
    encoded = text.encode()
    if buffer is None:
        raise Refused(Code.INVALID_ARGUMENT)
    if size > len(buffer):
        raise SimulatorMisuse(f"the buffer has {len(buffer)} bytes, its caller says {size}")
    if size < len(encoded) + 1:
        raise Refused(Code.INSUFFICIENT_SIZE)
    buffer.value = encoded


def _referenced(given: Any) -> Any:
    """What a reference leads to, None when it is no reference."""
    if isinstance(given, _ByRef):
        return given._obj  # type: ignore[attr-defined]  # the target, which ctypes keeps there
    if isinstance(given, ctypes._Pointer):
        try:
            return given.contents
        except ValueError:  # NULL
            return None
    return None


def _name(given: Any) -> str:
    if isinstance(given, _ByRef):
        return f"a reference to {type(_referenced(given)).__name__}"
    if isinstance(given, ctypes.Structure):
        return f"a {type(given).__name__} by value"
    return type(given).__name__
