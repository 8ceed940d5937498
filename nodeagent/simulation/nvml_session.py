"""What the bodies of the C functions see of the library."""

from __future__ import annotations

from typing import Any, Protocol

from nodeagent.simulation.handles import Handle, Handles
from nodeagent.simulation.node import SimulatedNode
from nodeagent.simulation.owned_objects import EventSet, GpmSample, OwnedObjects
from nodeagent.simulation.views import Device


class Session(Protocol):
    """The library of one process, initialised or not."""

    node: SimulatedNode
    handles: Handles
    event_sets: OwnedObjects[EventSet]
    system_event_sets: OwnedObjects[EventSet]
    gpm_samples: OwnedObjects[GpmSample]
    session: int

    def open(self) -> None: ...

    def shut(self) -> None: ...

    def give(self, view: Device) -> int: ...

    def look_up(self, handle: Handle) -> Any: ...

    def require_privilege(self) -> None: ...

    def require_open(self) -> None: ...
