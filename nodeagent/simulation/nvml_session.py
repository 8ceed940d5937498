"""NVML as one process has it open: its handles, what it allocated, whether it may configure."""

from typing import Any

from msgspec import Struct, field

from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.devices import Device, locate
from nodeagent.simulation.handles import Handle, Handles, Kind
from nodeagent.simulation.node import SimulatedNode
from nodeagent.simulation.state import Event


class EventSet(Struct):
    """Which events of which GPUs a caller registered for, and how far it has read.

    `wanted` maps a GPU to types of events and the last event before they were registered.
    """

    wanted: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    seen: int = 0

    def register(self, gpu: int, types: int, events: list[Event]) -> None:
        last = events[-1].number if events else 0
        self.wanted.setdefault(gpu, []).append((types, last))

    def next(self, events: list[Event]) -> Event | None:
        """The oldest event that is wanted and was not given yet."""
        for event in events:
            if event.number <= self.seen:
                continue
            wanted = self.wanted.get(event.gpu, ())
            if any(event.type & types and event.number > last for types, last in wanted):
                self.seen = event.number
                return event
        return None


class GpmSample(Struct):
    """How busy a device had been when the sample was taken; empty until then.

    Of a GPU, or of the GPU instance with this serial. `busy` in seconds of full work so far, `at`
    by the node's clock.
    """

    gpu: int = -1
    serial: int = 0
    at: float = 0.0
    busy: float = 0.0


class Session:
    """The library of one process, initialised or not."""

    def __init__(self, node: SimulatedNode, *, privileged: bool = True) -> None:
        self.node = node
        self.privileged = privileged
        self.handles = Handles()
        self.allocated: dict[Handle, EventSet | GpmSample] = {}
        self.initialised = 0  # how often, as NVML counts
        self._number = 0
        self._serial = 0  # of the last that was allocated
        self._epoch = node.state.epoch

    def open(self) -> None:
        """One nvmlInit."""
        if self.node.store.closed:
            raise Refused(Code.DRIVER_NOT_LOADED)
        if self.node.state.driver_failure:
            raise Refused(Code(self.node.state.driver_failure))
        if not self.initialised:
            self._number += 1
            self._epoch = self.node.state.epoch
            self.node.store.session_opened()
        self.initialised += 1

    def shut(self) -> None:
        """One nvmlShutdown; the last one makes all handles stale."""
        self.initialised -= 1
        if not self.initialised:
            self.allocated.clear()
            if self.node.store.session_closed():
                self.node.last_session_closed()

    def give(self, device: Device) -> int:
        """The handle of a device or an instance."""
        return self.handles.give(
            Handle(device.kind, self._number, device.card.index, device.serial)
        )

    def allocate(self, kind: Kind, made: EventSet | GpmSample) -> int:
        """The handle of something new that belongs to no GPU."""
        self._serial += 1
        handle = Handle(kind, self._number, serial=self._serial)
        self.allocated[handle] = made
        return self.handles.give(handle)

    def free(self, freed: EventSet) -> None:
        """Its handle is stale from now on."""
        self.allocated = {h: made for h, made in self.allocated.items() if made is not freed}

    def look_up(self, handle: Handle) -> Any:
        """What a handle stands for now; raises Refused when it is stale or the GPU is lost."""
        found: Any = None
        if handle.gpu < 0:
            found = self.allocated.get(handle)
        elif handle.gpu < len(self.node.cards):
            card = self.node.cards[handle.gpu]
            if card.state.failure:
                raise Refused(Code(card.state.failure))
            found = locate(card, handle)
        if found is None or handle.session != self._number:
            raise Refused(Code.INVALID_ARGUMENT)
        return found

    def require_privilege(self) -> None:
        """Raises Refused (NO_PERMISSION) for an ordinary user."""
        if not self.privileged:
            raise Refused(Code.NO_PERMISSION)

    def require_open(self) -> None:
        """Raises Refused while the library is not initialised or the driver is away."""
        store = self.node.store
        if self.initialised and self._epoch != store.state.epoch:
            self.initialised = 0
            self.allocated.clear()
        if store.closed or not self.initialised:
            raise Refused(Code.UNINITIALIZED)
        if store.state.driver_failure:
            raise Refused(Code(store.state.driver_failure))
