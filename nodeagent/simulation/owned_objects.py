"""What one process makes and frees through the library: event sets and GPM samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from nodeagent.simulation.handles import Handle
from nodeagent.simulation.state import Event

T = TypeVar("T")


@dataclass(slots=True)
class EventSet:
    """Which events of which GPUs a caller asked for, and how far it has read.

    `wanted` maps a GPU to the types asked for and the last event before that.
    """

    wanted: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    seen: int = 0

    def register(self, gpu: int, types: int, last: int) -> None:
        self.wanted.setdefault(gpu, []).append((types, last))

    def next(self, events: list[Event]) -> Event | None:
        """The oldest event that was asked for and not yet given."""
        for event in events:
            if event.number <= self.seen:
                continue
            asked = self.wanted.get(event.gpu, ())
            if any(event.type & types and event.number > last for types, last in asked):
                self.seen = event.number
                return event
        return None


@dataclass(slots=True)
class GpmSample:
    """How busy a device had been when the sample was taken; empty until then.

    Of a GPU, or of the GPU instance with this serial. `busy` in seconds of full work so far, `at`
    by the node's clock.
    """

    gpu: int = -1
    serial: int = 0
    at: float = 0.0
    busy: float = 0.0


class OwnedObjects(Generic[T]):
    """The objects of one kind of one process, by running number. The library's lock guards it."""

    def __init__(self, new: Callable[[], T]) -> None:
        self._new = new
        self._objects: dict[int, T] = {}
        self._made = 0

    def make(self) -> int:
        """The running number of a new one."""
        self._made += 1
        self._objects[self._made] = self._new()
        return self._made

    def get(self, handle: Handle) -> T | None:
        return self._objects.get(handle.serial)

    def free(self, freed: T) -> None:
        self._objects = {n: one for n, one in self._objects.items() if one is not freed}

    def clear(self) -> None:
        self._objects.clear()

    def __len__(self) -> int:
        return len(self._objects)
