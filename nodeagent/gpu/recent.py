"""Results of recent reads of one GPU, so that they are not repeated at once.

Callers check a handle or an id before they use it again; what is older than a moment is read
anew. Everything here is for the GPU's worker thread alone; times are monotonic seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from nodeagent.gpu.nvml import GpuInstanceHandle
from nodeagent.plan.observed import Memory
from nodeagent.plan.shares import ComputeMode

# How long an observation proves who is on a device and which ids it has: longer than destroying all
# instances of a GPU takes, too short for much to happen. The driver itself refuses to destroy a
# compute instance with a process on it.
FRESH: Final = 5.0
# How long memory and compute mode may be kept where no daemon depends on them.
_DETAILS_KEPT: Final = 30.0


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A MIG device by the ids that the driver gave it."""

    gpu_instance: int
    compute_instance: int
    slices: int


@dataclass(frozen=True, slots=True)
class Detail:
    """Values that no step depends on, except the compute mode under MPS."""

    memory: Memory | None
    compute_mode: ComputeMode | None
    read_at: float


@dataclass(frozen=True, slots=True)
class Details:
    """Which details an observation reads: those not known, those too old, those of `exact` devices.

    `everything`: all of them.
    """

    exact: frozenset[str] = frozenset()
    everything: bool = False

    def is_due(self, uuid: str, known: Detail | None) -> bool:
        if known is None or self.everything or uuid in self.exact:
            return True
        return time.monotonic() - known.read_at > _DETAILS_KEPT


class Recent:
    """The instances and devices observed last, by id and UUID, and those proven idle since."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = 0.0
        self._handles: dict[int, GpuInstanceHandle] = {}
        self._devices: dict[str, KnownDevice] = {}
        self._details: dict[str, Detail] = {}
        self._places: dict[str, KnownDevice] = {}
        self._idle: frozenset[str] = frozenset()
        self._idle_at = 0.0

    # --- the last observation -------------------------------------------------------------------

    def saw(
        self, handles: Mapping[int, GpuInstanceHandle], devices: Mapping[str, KnownDevice]
    ) -> None:
        """Store the result of a complete observation."""
        self._looked_at = self._clock()
        self._handles = dict(handles)
        self._devices = dict(devices)
        self._places |= devices
        self._details = {uuid: d for uuid, d in self._details.items() if uuid in devices}
        self._idle = frozenset()  # a proof is for the steps before this observation

    def handle(self, instance: int) -> GpuInstanceHandle | None:
        """Of the GPU instance with that id; a new instance may have the id by now."""
        return self._handles.get(instance)

    def device(self, uuid: str) -> KnownDevice | None:
        """As observed a moment ago; None when the last observation is older."""
        return self._devices.get(uuid) if self._clock() - self._looked_at < FRESH else None

    @property
    def devices(self) -> Collection[KnownDevice]:
        return self._devices.values()

    def ever(self, uuid: str) -> KnownDevice | None:
        """The ids with which the device was last seen. Its UUID follows from the GPU instance's id
        (or is new with every creation), so that id holds; the compute instance's may not.
        """
        return self._places.get(uuid)

    def gone(self, uuids: Iterable[str]) -> None:
        """Forget destroyed devices: their ids may be given to new ones."""
        for uuid in uuids:
            self._devices.pop(uuid, None)
            self._details.pop(uuid, None)
            self._idle -= {uuid}

    def stale(self) -> None:
        """Forget handles and ids, which may have become invalid."""
        self._handles = {}
        self._devices = {}
        self._places = {}
        self._idle = frozenset()

    # --- users ----------------------------------------------------------------------------------

    def proved_idle(self, uuids: Iterable[str]) -> None:
        self._idle_at = self._clock()
        self._idle = frozenset(uuids)

    def is_proved_idle(self, uuid: str) -> bool:
        """Whether it was found idle a moment ago."""
        return uuid in self._idle and self._clock() - self._idle_at < FRESH

    @property
    def idle(self) -> frozenset[str]:
        """What was proven idle at one time, and is there still."""
        return self._idle

    # --- details --------------------------------------------------------------------------------

    def detail(self, uuid: str) -> Detail | None:
        return self._details.get(uuid)

    def keep(self, uuid: str, memory: Memory | None, mode: ComputeMode | None) -> Detail:
        self._details[uuid] = Detail(memory, mode, self._clock())
        return self._details[uuid]

    def set_mode(self, uuid: str, mode: ComputeMode) -> None:
        known = self._details.get(uuid)
        if known is not None:
            self._details[uuid] = replace(known, compute_mode=mode)
