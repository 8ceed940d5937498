"""The object that stands in place of the library pynvml has loaded.

pynvml asks it for C functions by name. Each is an object that checks its arguments, shows the
faults that were asked for, holds the node still and calls the function's body in `functions/`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from nodeagent.simulation.arguments import HandleIn
from nodeagent.simulation.codes import Code, Refused, SimulatorMisuse
from nodeagent.simulation.faults import Fault
from nodeagent.simulation.functions import FUNCTIONS
from nodeagent.simulation.functions.registry import Function
from nodeagent.simulation.handles import Handle, Handles, Kind
from nodeagent.simulation.node import SimulatedNode
from nodeagent.simulation.owned_objects import EventSet, GpmSample, OwnedObjects
from nodeagent.simulation.views import Device, locate


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
        self.node = node
        self.privileged = privileged
        self.handles = Handles()
        self.event_sets = OwnedObjects(EventSet)
        self.system_event_sets = OwnedObjects(EventSet)
        self.gpm_samples = OwnedObjects(GpmSample)
        self.session = 0
        self.initialised = 0  # how often, as NVML counts
        self._latency = latency if isinstance(latency, Mapping) else {"*": latency}
        self._epoch = node.epoch
        self._functions: dict[str, CFunction] = {}

    def __getattr__(self, name: str) -> CFunction:
        """A C function, as `ctypes.CDLL` gives it; AttributeError when there is none."""
        if name not in FUNCTIONS or name in self.node.switches.missing_functions:
            raise AttributeError(f"{name}: undefined symbol in the simulated library")
        if name not in self._functions:
            self._functions[name] = CFunction(self, FUNCTIONS[name])
        return self._functions[name]

    # --- for the functions' bodies ----------------------------------------------------------

    def open(self) -> None:
        """One nvmlInit."""
        if self.node.closed:
            raise Refused(Code.DRIVER_NOT_LOADED)
        if self.node.driver_failure:
            raise Refused(Code(self.node.driver_failure))
        if not self.initialised:
            self.session += 1
            self._epoch = self.node.epoch
            self.node.session_opened()
        self.initialised += 1

    def shut(self) -> None:
        """One nvmlShutdown; the last one makes all handles stale."""
        self.initialised -= 1
        if not self.initialised:
            self._forget_objects()
            self.node.session_closed()

    def give(self, view: Device) -> int:
        """The handle of a device or an instance."""
        return self.handles.give(
            view.kind, self.session, view.card.index, view.instance_id, view.serial
        )

    def look_up(self, handle: Handle) -> Any:
        """What a handle stands for now; raises Refused when it is stale or the GPU is lost."""
        found: Any
        if handle.gpu < 0:
            found = self._objects(handle.kind).get(handle)
        else:
            card = self.node.cards[handle.gpu] if handle.gpu < len(self.node.cards) else None
            if card is not None and card.state.failure:
                raise Refused(Code(card.state.failure))
            found = None if card is None else locate(card, handle)
        if found is None or handle.session != self.session:
            raise Refused(Code[self.node.switches.stale_handles])
        return found

    def _objects(self, kind: Kind) -> OwnedObjects[EventSet] | OwnedObjects[GpmSample]:
        """Where objects are that belong to no GPU."""
        match kind:
            case Kind.GPM_SAMPLE:
                return self.gpm_samples
            case Kind.SYSTEM_EVENT_SET:
                return self.system_event_sets
            case _:
                return self.event_sets

    def _forget_objects(self) -> None:
        self.event_sets.clear()
        self.system_event_sets.clear()
        self.gpm_samples.clear()

    def require_privilege(self) -> None:
        """Raises Refused (NO_PERMISSION) for an ordinary user."""
        if not self.privileged:
            raise Refused(Code.NO_PERMISSION)

    # --- for the functions themselves -------------------------------------------------------

    def latency_of(self, name: str) -> float:
        return self._latency.get(name, self._latency.get("*", 0.0))

    def require_open(self) -> None:
        """Raises Refused while the library is not initialised or the driver is away."""
        if self.initialised and self._epoch != self.node.epoch:
            self.initialised = 0
            self._forget_objects()
        if self.node.closed or not self.initialised:
            raise Refused(Code.UNINITIALIZED)
        if self.node.driver_failure:
            raise Refused(Code(self.node.driver_failure))


class CFunction:
    """One C function. pynvml may set attributes such as `restype`, as on those of ctypes."""

    def __init__(self, library: SimulatedLibrary, function: Function) -> None:
        self.__name__ = function.name
        self._library = library
        self._function = function
        self._late = [i for i, argument in enumerate(function.arguments) if argument.late]

    def __call__(self, *given: Any) -> Any:
        function, library = self._function, self._library
        if function.raw:
            return function.body(library, *given)
        started, number = time.monotonic(), library.node.journal.begin()
        values, gpu = self._take(given)
        taken = tuple(values)  # as they were given: resolving them changes the list
        code = self._answer(values, gpu, number)
        seconds = time.monotonic() - started
        library.node.journal.record(
            number, function.name, taken, code, gpu, started, seconds, threading.get_ident()
        )
        return code

    def _take(self, given: tuple[Any, ...]) -> tuple[list[Any], int | None]:
        """The arguments made plain, and the GPU that the call is about."""
        function, gpu = self._function, None
        if len(given) != len(function.arguments):
            raise SimulatorMisuse(
                f"{function.name} takes {len(function.arguments)} arguments, got {len(given)}"
            )
        values: list[Any] = []
        for argument, one in zip(function.arguments, given, strict=True):
            value = argument.take(one, function.name)
            if isinstance(argument, HandleIn):
                value = argument.handle(self._library, value, function.name)
                if value is not None and gpu is None and value.gpu >= 0:
                    gpu = value.gpu
            values.append(value)
        return values, gpu

    def _answer(self, values: list[Any], gpu: int | None, number: int) -> int:
        library, function = self._library, self._function
        delay, faults = library.latency_of(function.name), self._faults(gpu, number)
        if not faults and not delay:
            return self._run(values)
        delay += sum(fault.delay for fault in faults)
        if delay > 0:
            time.sleep(delay)
        for fault in faults:
            if fault.hang:
                self._hang(fault)
        failing = next((fault for fault in faults if fault.error), None)
        if failing is not None and not failing.applied:
            return failing.error
        code = self._run(values)
        return code if failing is None else failing.error

    def _run(self, values: list[Any]) -> int:
        function, node = self._function, self._library.node
        try:
            if function.changes:
                with node.changes():
                    self._enter(values)
            else:
                with node.changing:  # as node.looks(), which costs as much as all the rest
                    node.catch_up()
                    self._enter(values)
        except Refused as refusal:
            return int(refusal.code)
        return int(Code.SUCCESS)

    def _enter(self, values: list[Any]) -> None:
        """The call itself, with the node held still."""
        function = self._function
        if not function.opens:
            self._library.require_open()
        for index in self._late:
            values[index] = function.arguments[index].resolve(self._library, values[index])
        function.body(self._library, *values)

    def _faults(self, gpu: int | None, number: int) -> list[Fault]:
        """The faults that hit this call. Counting them is a change that other processes see."""
        node, name = self._library.node, self._function.name
        if not (node.faults or node.shared):
            return []
        with node.looks():
            if not any(f.concerns(name, gpu, number) for f in node.faults):
                return []
        with node.changes():
            concerned = [f for f in node.faults if f.concerns(name, gpu, number)]
            before = [(f.skip, f.times) for f in concerned]
            hits = [fault for fault in concerned if fault.strike()]
            if before != [(f.skip, f.times) for f in concerned]:
                node.faults = [f for f in node.faults if not f.spent]
                node.changed()
            return hits

    def _hang(self, fault: Fault) -> None:
        """Stay in the driver until the fault is cleared or the node closed."""
        node = self._library.node
        with node.changing:
            while not node.closed and any(f.number == fault.number for f in node.faults):
                node.wait(None)
