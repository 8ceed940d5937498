"""Results of recent reads of one GPU, so that they are not repeated at once.

Callers check a handle or an id before they use it again; what is older than a moment is read
anew. Everything here is for the GPU's worker thread alone; times are monotonic seconds.
"""

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from nodeagent.gpu.nvml import GpuInstanceHandle, InstanceInfo
from nodeagent.plan.observed import Memory
from nodeagent.plan.shares import ComputeMode
from nodeagent.structs import Struct, field, replace

# How long an observation proves who is on a device and which ids it has: longer than destroying all
# instances of a GPU takes, too short for much to happen. The driver itself refuses to destroy a
# compute instance with a process on it.
FRESH: Final = 5.0
# More than a GPU has places for; some drivers give a device another UUID each time it is made.
_MAX_KNOWN: Final = 256
# How long memory and compute mode may be kept where no daemon depends on them.
_DETAILS_KEPT: Final = 30.0


class KnownDevice(Struct, frozen=True):
    """A MIG device by the ids that the driver gave it. `is_alone`: its GPU instance has one slice
    and never holds another device, so that its compute instance has the same id each time.
    """

    gpu_instance: int
    compute_instance: int
    slices: int
    is_alone: bool = False


class KnownInstance(Struct, frozen=True):
    """A GPU instance as it was read."""

    handle: GpuInstanceHandle
    info: InstanceInfo
    read_at: float


class DeviceDetails(Struct, frozen=True):
    """Values that no step depends on, except the compute mode under MPS."""

    memory: Memory | None
    compute_mode: ComputeMode | None
    read_at: float


class Recent(Struct):
    """The instances and devices observed last, by id and UUID, and those proven idle since.

    `devices` are those of the last observation, `known` those of all: a device's UUID follows from
    the GPU instance's id (or is new with every creation), so that id holds; the compute instance's
    may not. `idle` was proven idle at one time, and is there still.
    """

    clock: Callable[[], float] = time.monotonic
    instances: dict[int, KnownInstance] = field(default_factory=dict)
    devices: dict[str, KnownDevice] = field(default_factory=dict)
    known: dict[str, KnownDevice] = field(default_factory=dict)
    details: dict[str, DeviceDetails] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    _observed_at: float = 0.0
    _found_at: dict[str, float] = field(default_factory=dict)
    _idle_at: float = 0.0

    def observed(self, devices: dict[str, KnownDevice]) -> None:
        self._observed_at = self.clock()
        self._found_at = {}
        self.devices = devices
        self.known = {**(self.known if len(self.known) < _MAX_KNOWN else {}), **devices}
        self.details = {uuid: d for uuid, d in self.details.items() if uuid in devices}
        self.idle = frozenset()  # a proof is for the steps before this observation

    def found_instances(self, instances: Iterable[tuple[GpuInstanceHandle, InstanceInfo]]) -> None:
        """Store all that there are, as they were read just now."""
        now = self.clock()
        self.instances = {info.id: KnownInstance(handle, info, now) for handle, info in instances}

    def instance(self, number: int) -> KnownInstance | None:
        """The GPU instance of that id, as read a moment ago; None when that is longer ago."""
        known = self.instances.get(number)
        return known if known and self.clock() - known.read_at < FRESH else None

    def instance_gone(self, number: int) -> None:
        """Forget a destroyed GPU instance: a new one may get its id."""
        self.instances.pop(number, None)

    def add(self, uuid: str, device: KnownDevice) -> None:
        self.known[uuid] = device
        self.found(uuid, device)

    def found(self, uuid: str, device: KnownDevice) -> None:
        """Store a device that was asked for by itself just now."""
        self.devices[uuid] = device
        self._found_at[uuid] = self.clock()

    def device(self, uuid: str) -> KnownDevice | None:
        """Look up a device as observed or found a moment ago; None when that is longer ago."""
        known_at = self._found_at.get(uuid, self._observed_at)
        return self.devices.get(uuid) if self.clock() - known_at < FRESH else None

    def gone(self, uuid: str) -> None:
        """Forget a destroyed device: its ids may be given to a new one."""
        self.devices.pop(uuid, None)
        self.details.pop(uuid, None)
        self.idle -= {uuid}

    def forget(self) -> None:
        """Forget handles and ids, which may have become invalid."""
        self.instances, self.devices, self.known, self.idle = {}, {}, {}, frozenset()

    def proved_idle(self, uuids: Iterable[str]) -> None:
        self._idle_at = self.clock()
        self.idle = frozenset(uuids)

    def is_proved_idle(self, uuid: str) -> bool:
        return uuid in self.idle and self.clock() - self._idle_at < FRESH

    def details_due(self, uuid: str, exact: Collection[str]) -> bool:
        """Whether details are to be read: unknown, too old, or of a device that must be `exact`."""
        known = self.details.get(uuid)
        return known is None or uuid in exact or self.clock() - known.read_at > _DETAILS_KEPT

    def keep(self, uuid: str, memory: Memory | None, mode: ComputeMode | None) -> None:
        self.details[uuid] = DeviceDetails(memory, mode, self.clock())

    def set_mode(self, uuid: str, mode: ComputeMode) -> None:
        if known := self.details.get(uuid):
            self.details[uuid] = replace(known, compute_mode=mode)
