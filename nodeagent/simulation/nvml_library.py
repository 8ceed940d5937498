"""The object that stands in place of the library pynvml has loaded.

pynvml asks it for C functions by name. Each is an object that checks its arguments, shows the
faults that were asked for, holds the node still and calls the function's body in `functions/`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

from nodeagent.simulation.arguments import HandleIn
from nodeagent.simulation.boards import Overrides
from nodeagent.simulation.codes import Code, Refused, SimulatorMisuse
from nodeagent.simulation.faults import Fault
from nodeagent.simulation.functions import FUNCTIONS
from nodeagent.simulation.functions.registry import Function
from nodeagent.simulation.journal import Call
from nodeagent.simulation.node import SimulatedNode
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.switches import Switches


class SimulatedLibrary:
    """`libnvidia-ml.so.1` of a simulated node, for one process.

    `latency` in seconds for every call, or by C name with `*` for all others.
    """

    def __init__(
        self,
        node: SimulatedNode,
        *,
        latency: float | Mapping[str, float] = 0.0,
        privileged: bool = True,
    ) -> None:
        self.session = Session(node, privileged=privileged)
        self._latency = latency if isinstance(latency, Mapping) else {"*": latency}
        self._functions: dict[str, CFunction] = {}

    @property
    def node(self) -> SimulatedNode:
        return self.session.node

    def __getattr__(self, name: str) -> CFunction:
        """A C function, as `ctypes.CDLL` gives it; AttributeError when there is none."""
        if name not in FUNCTIONS or name in self.node.switches.missing_functions:
            raise AttributeError(f"{name}: undefined symbol in the simulated library")
        if name not in self._functions:
            latency = self._latency.get(name, self._latency.get("*", 0.0))
            self._functions[name] = CFunction(self.session, FUNCTIONS[name], latency)
        return self._functions[name]


class CFunction:
    """One C function. pynvml may set attributes such as `restype`, as on those of ctypes."""

    def __init__(self, session: Session, function: Function, latency: float) -> None:
        self.__name__ = function.name
        self._session = session
        self._node = session.node
        self._function = function
        self._latency = latency
        self._handles = [
            (i, argument)
            for i, argument in enumerate(function.arguments)
            if isinstance(argument, HandleIn)
        ]
        self._late = [i for i, argument in enumerate(function.arguments) if argument.late]

    def __call__(self, *given: Any) -> Any:
        function, journal = self._function, self._node.journal
        if function.raw:
            return function.body(self._session, *given)
        started, number = time.monotonic(), journal.begin()
        values, gpu = self._take(given)
        taken = tuple(values)  # as they were given: resolving them changes the list
        code = self._answer(values, gpu, number)
        seconds = time.monotonic() - started
        journal.record(
            Call(number, function.name, taken, code, gpu, started, seconds, threading.get_ident())
        )
        return code

    def _take(self, given: tuple[Any, ...]) -> tuple[list[Any], int | None]:
        """The arguments made plain, and the GPU that the call is about."""
        function, gpu = self._function, None
        if len(given) != len(function.arguments):
            raise SimulatorMisuse(
                f"{function.name} takes {len(function.arguments)} arguments, got {len(given)}"
            )
        name = function.name
        values = [
            argument.take(one, name)
            for argument, one in zip(function.arguments, given, strict=True)
        ]
        for index, argument in self._handles:
            handle = values[index] = argument.handle(self._session, values[index], name)
            if handle is not None and gpu is None and handle.gpu >= 0:
                gpu = handle.gpu
        return values, gpu

    def _answer(self, values: list[Any], gpu: int | None, number: int) -> int:
        store, function = self._node.store, self._function
        with store.lock:  # as node.looks(), which costs as much as all the rest
            store.catch_up()
            faulty = store.state.faults
            hit = bool(faulty) and any(f.concerns(function.name, gpu, number) for f in faulty)
            if not (hit or self._latency or function.changes):
                return self._enter(values)
        faults = self._strike(gpu, number) if hit else []
        delay = self._latency + sum(fault.delay for fault in faults)
        if delay > 0:
            time.sleep(delay)
        for fault in faults:
            if fault.hang:
                self._hang(fault)
        failing = next((fault for fault in faults if fault.error), None)
        if failing is not None and not failing.applied:
            return failing.error
        with self._node.changes() if function.changes else self._node.looks():
            code = self._enter(values)
        return code if failing is None else failing.error

    def _enter(self, values: list[Any]) -> int:
        """The call itself, with the node held still."""
        function = self._function
        try:
            if not function.opens:
                self._session.require_open()
            for index in self._late:
                values[index] = function.arguments[index].resolve(self._session, values[index])
            function.body(self._session, *values)
        except Refused as refusal:
            return int(refusal.code)
        return int(Code.SUCCESS)

    def _strike(self, gpu: int | None, number: int) -> list[Fault]:
        """The faults that hit this call. Counting them is a change that other processes see."""
        node, name = self._node, self._function.name
        with node.changes():
            concerned = [f for f in node.faults if f.concerns(name, gpu, number)]
            hits = [fault for fault in concerned if fault.strike()]
            node.state.faults = [f for f in node.faults if not f.spent]
            return hits

    def _hang(self, fault: Fault) -> None:
        """Stay in the driver until the fault is cleared or the node closed."""
        node, store = self._node, self._node.store
        with store.changing:
            while not store.closed and any(f.number == fault.number for f in node.faults):
                store.wait(None)


@contextmanager
def installed(library: object) -> Iterator[None]:
    """Within it, pynvml talks to `library`, and is afterwards as it was found. It keeps the library
    in a global, caches every function of it for ever, counts its own initialisations and keeps
    error texts that the library gave it. Not for two threads at once.
    """
    before, count = pynvml.nvmlLib, pynvml._nvmlLib_refcount
    texts = pynvml.NVMLError._errcode_to_string
    kept = dict(texts)
    pynvml.nvmlLib, pynvml._nvmlLib_refcount = library, 0
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield
    finally:
        pynvml.nvmlLib, pynvml._nvmlLib_refcount = before, count
        pynvml._nvmlGetFunctionPointer_cache.clear()
        for code in [code for code in texts if code not in kept]:
            del texts[code]


@contextmanager
def simulated(
    boards: str | None = None,
    *,
    state: Path | None = None,
    switches: Switches | None = None,
    overrides: Overrides | None = None,
    mirrored: bool | Collection[int] = False,
    latency: float | Mapping[str, float] = 0.0,
    privileged: bool = True,
) -> Iterator[SimulatedNode]:
    """Within it, pynvml talks to a simulated node, whose arguments are those of `SimulatedNode`.

    `latency` in seconds is spent in every call, or by C name (`*` for all others).
    `privileged` False is a user who may not configure MIG. Raises UsageError and NodeagentError.
    """
    with SimulatedNode(
        boards, state=state, switches=switches, overrides=overrides, mirrored=mirrored
    ) as node:
        library = SimulatedLibrary(node, latency=latency, privileged=privileged)
        with installed(library):
            yield node
