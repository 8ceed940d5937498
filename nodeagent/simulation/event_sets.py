"""Event sets: which events of which GPUs a caller asked for, and how far it has read."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.simulation.handles import Handle
from nodeagent.simulation.state import Event


@dataclass(slots=True)
class EventSet:
    """`wanted` maps a GPU to the types asked for and the last event before that."""

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


class EventSets:
    """The event sets of one process. The library's lock guards it."""

    def __init__(self) -> None:
        self._sets: dict[int, EventSet] = {}
        self._made = 0

    def make(self) -> int:
        """The running number of a new set."""
        self._made += 1
        self._sets[self._made] = EventSet()
        return self._made

    def get(self, handle: Handle) -> EventSet | None:
        return self._sets.get(handle.serial)

    def free(self, wanted: EventSet) -> None:
        self._sets = {number: one for number, one in self._sets.items() if one is not wanted}

    def clear(self) -> None:
        self._sets.clear()
