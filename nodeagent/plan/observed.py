"""What is there: the node's GPUs as the driver described them at one moment.

Every size, id and placement here was read from the driver; nothing is known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import TypeVar

from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import ComputeMode, TimeSlice, WantedMps
from nodeagent.plan.users import IDLE, Usage, User
from nodeagent.structs import Struct, replace


class Placement(Struct, frozen=True, order=True):
    """Place of a GPU instance, in the card's memory slices; for compute instances, in the
    compute slots of their GPU instance.
    """

    start: int
    size: int

    @property
    def mask(self) -> int:
        return ((1 << self.size) - 1) << self.start

    def __str__(self) -> str:
        return f"{self.start}:{self.size}"


def mask_of(placements: Iterable[Placement]) -> int:
    """The slots that they occupy together, as bits."""
    return reduce(or_, (placement.mask for placement in placements), 0)


class Engines(Struct, frozen=True):
    """Engines a GPU instance of some profile gets."""

    copy: int = 0
    decoder: int = 0
    encoder: int = 0
    jpeg: int = 0
    ofa: int = 0


class ComputeInstanceProfile(Struct, frozen=True):
    """How a GPU instance can be divided: `slices` of compute, at most `max_count` of them.

    `id` is what create calls take. `placements` are in compute slots of the GPU instance.
    """

    id: int
    slices: int
    max_count: int
    multiprocessors: int
    placements: tuple[Placement, ...] = ()


class GpuInstanceProfile(Struct, frozen=True):
    """A kind of GPU instance that this very card offers.

    `id` is what create calls take (the number `nvidia-smi mig -lgip` prints), `kind` the NVML
    enumeration value it was asked by; the two differ. `name` is canonical, such as
    `1g.10gb+me`. `memory` in bytes. `compute` is empty as long as no GPU instance of this
    profile existed to ask (NVML answers only through one).
    """

    id: int
    kind: int
    name: str
    slices: int
    memory: int
    multiprocessors: int
    max_count: int
    placements: tuple[Placement, ...]
    engines: Engines = Engines()
    compute: tuple[ComputeInstanceProfile, ...] = ()


class DeviceDaemon(Struct, frozen=True):
    """The agent's own control daemon of a device, whatever it is at just now.

    `runs` is what it was last set to, `state` its phase in one word (Ready, Backoff...),
    `why` says why that is not Ready. `servers` are the pids that belong to it and are no users of
    the device in their own right; `clients` are those who use the device through it, as far as it
    knows them itself.
    """

    runs: WantedMps
    state: str
    why: str = ""
    pid: int | None = None
    servers: tuple[int, ...] = ()
    clients: Usage = IDLE


class Memory(Struct, frozen=True):
    """Bytes."""

    used: int
    total: int


class ComputeInstance(Struct, frozen=True):
    """A compute instance, which together with its GPU instance is one MIG device.

    `profile` is the device's name (`3g.40gb` when it has all of its GPU instance, else
    `1c.3g.40gb`). `placement` is None when the driver does not report it. `mps`, `compute_mode`
    and `earlier_mode` as for a GPU.
    """

    id: int
    profile: str
    slices: int
    uuid: str
    placement: Placement | None = None
    usage: Usage = IDLE
    memory: Memory | None = None
    mps: DeviceDaemon | None = None
    compute_mode: ComputeMode | None = None
    earlier_mode: ComputeMode | None = None


class GpuInstance(Struct, frozen=True):
    """A GPU instance; without compute instances it is half-made and no device at all."""

    id: int
    profile_id: int
    profile: str
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()

    @property
    def in_use(self) -> bool:
        return any(device.usage.in_use for device in self.compute)


class Device(Struct, frozen=True):
    """What programs and an MPS daemon can be on: a GPU outside MIG mode, or a MIG device.

    `uuid` is empty while it is not made yet. `usage` has everyone who may be on it. A MIG device
    has a `profile` (its own name) and `slices` of compute in a GPU `instance`.
    """

    uuid: str
    usage: Usage
    mps: DeviceDaemon | None
    compute_mode: ComputeMode | None
    earlier_mode: ComputeMode | None
    profile: str = ""
    slices: int = 0
    instance: GpuInstance | None = None

    @property
    def placement(self) -> Placement | None:
        return self.instance.placement if self.instance else None

    @property
    def runs(self) -> WantedMps | None:
        return self.mps.runs if self.mps else None


class MigMode(Struct, frozen=True):
    """`pending` differs from `current` only while a change waits for a GPU reset."""

    current: bool
    pending: bool


NVSWITCH = "nvswitch"


class NvLinks(Struct, frozen=True):
    """A GPU's NVLinks: how many it has, and how many of them are up.

    `peers` are whom the active ones lead to and how many lead there: the UUID of a GPU of this
    node, `nvswitch`, the PCI address of a GPU that is not this node's, or `other`.
    """

    total: int
    active: int
    peers: tuple[tuple[str, int], ...] = ()


class Access(StrEnum):
    """Whether the driver answers for a GPU."""

    OK = "ok"
    UNKNOWN = "unknown"  # a query failed or hangs
    LOST = "lost"  # off the bus, or useless until a reset


NOT_LISTED = "the driver does not list it any more"  # the reason of a GPU that was there


class HealthLimits(Struct, frozen=True):
    """What of a GPU is too unhealthy for anything new; what is there may stay.

    `whole`: all of it, and nothing is changed there; else `slices`, memory slices as bits. `gone`:
    nobody can use it, whatever the driver answers for it. `why` and `remedy` are for people.
    """

    slices: int = 0
    whole: bool = False
    why: str = ""
    remedy: str = ""
    gone: bool = False


HEALTHY = HealthLimits()


class Gpu(Struct, frozen=True):
    """One physical GPU.

    `pci_device_id` and `pci_subsystem_id` are 32 bits, device high and vendor low, as in
    `0x233010DE`. `memory` in bytes. `cuda_version` is the driver's, (0, 0) while not known. `mig`
    is None where the card has no MIG. `usage` holds the processes on the GPU outside any instance.
    `mps` is the daemon of the GPU as a whole, which there is only outside MIG mode. `compute_mode`
    and `time_slice` are None while not known (a GPU in MIG mode has neither); `earlier_mode` and
    `earlier_time_slice` are what they were before the agent changed them, None when it did not.
    `no_reset` is why this machine cannot reset the GPU, as far as that is known. `unlisted` is what
    the driver answered in place of the MIG mode, or of all profiles or placements. `numa_node` is
    the one whose processors and memory are nearest; None when not known. `nvlink` is None when the
    card has none, or while not known. `health_limits` come from the health checks, not from the
    driver. When `access` is not OK, the rest is what was last known (perhaps nothing) and must not
    be acted upon; `access_reason` and `access_remedy` are for people.
    """

    index: int
    uuid: str
    name: str = ""
    pci_bus_id: str = ""
    pci_device_id: int = 0
    pci_subsystem_id: int = 0
    minor: int | None = None
    memory: int = 0
    compute_capability: tuple[int, int] = (0, 0)
    cuda_version: tuple[int, int] = (0, 0)
    access: Access = Access.OK
    access_reason: str = ""
    access_remedy: str = ""
    unlisted: str = ""
    mig: MigMode | None = None
    mode_change_needs_reset: bool = False
    no_reset: str = ""
    profiles: tuple[GpuInstanceProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()
    usage: Usage = IDLE
    mps: DeviceDaemon | None = None
    compute_mode: ComputeMode | None = None
    earlier_mode: ComputeMode | None = None
    time_slice: TimeSlice | None = None
    earlier_time_slice: TimeSlice | None = None
    numa_node: int | None = None
    nvlink: NvLinks | None = None
    health_limits: HealthLimits = HEALTHY

    def profile(self, name: str) -> GpuInstanceProfile | None:
        return next((p for p in self.profiles if p.name == name), None)

    @property
    def key(self) -> str:
        """The GPU's identity on this node: its UUID, or its index while no UUID is known."""
        return self.uuid or f"GPU {self.index}"

    @property
    def title(self) -> str:
        """What people call it, such as `GPU 0 (NVIDIA H100 80GB HBM3)`."""
        return f"GPU {self.index} ({self.name})" if self.name else f"GPU {self.index}"

    def problem(self, code: Code, case: str = "", *, path: str = "", **facts: object) -> Problem:
        """A problem of this GPU, with `title` and `index` as facts besides."""
        named = {"title": self.title, "index": self.index, **facts}
        return Problem.of(code, case, gpu=self.uuid, path=path, **named)

    @property
    def answers(self) -> bool:
        """Whether the driver answered for it when it was observed."""
        return self.access is Access.OK

    @property
    def is_there(self) -> bool:
        """The driver answers for it, and health does not find it gone."""
        return self.answers and not self.health_limits.gone

    @property
    def in_mig_mode(self) -> bool:
        return self.mig is not None and self.mig.current

    def devices(self) -> tuple[Device, ...]:
        """The GPU itself, then its MIG devices as they lie on the card."""
        itself = Device(self.uuid, self.usage, self.mps, self.compute_mode, self.earlier_mode)
        return itself, *(
            Device(
                c.uuid,
                # A process of which no instance is known may be on any of them.
                c.usage.together(self.usage),
                c.mps,
                c.compute_mode,
                c.earlier_mode,
                c.profile,
                c.slices,
                instance,
            )
            for instance in sorted(self.instances, key=lambda i: (i.placement, i.id))
            for c in sorted(instance.compute, key=lambda c: c.id)
        )

    def mig_devices(self) -> Iterator[tuple[GpuInstance, ComputeInstance]]:
        """Iterate over compute instances with their GPU instances, in the driver's order."""
        return ((instance, c) for instance in self.instances for c in instance.compute)

    def with_mig_devices(
        self, change: Callable[[GpuInstance, ComputeInstance], ComputeInstance]
    ) -> Gpu:
        """The GPU with each of its compute instances as `change` has it."""
        instances = tuple(
            replace(instance, compute=tuple(change(instance, c) for c in instance.compute))
            for instance in self.instances
        )
        return replace(self, instances=instances)

    @property
    def usages(self) -> tuple[Usage, ...]:
        """Usage of the GPU outside any instance, then of each MIG device."""
        return self.usage, *(device.usage for _, device in self.mig_devices())

    @property
    def idle(self) -> bool:
        """Proven to have no user at all, inside instances or outside."""
        return self.answers and not any(usage.in_use for usage in self.usages)


Place = TypeVar("Place", Gpu, ComputeInstance)  # what has users and a daemon


class ObservedNode(Struct, frozen=True):
    """The node at one moment. GPUs are in NVML's index order.

    `slow` describes the calls for GPUs (by index) for which the driver took long. `gone` are GPUs
    that a plan may still name, without the driver listing them.
    """

    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    slow: tuple[tuple[int, str], ...] = ()
    gone: tuple[Gpu, ...] = ()

    def gpu(self, uuid: str) -> Gpu | None:
        for gpu in self.gpus:  # asked for each device of each claim, so without a generator
            if gpu.uuid == uuid:
                return gpu
        return None

    def has_lost(self, uuid: str) -> bool:
        """Whether nothing on that GPU works any more: it is lost, by the driver or by what health
        says of one that does not answer, or the driver lists all GPUs, and not this one.
        """
        gpu = self.gpu(uuid)
        if gpu is not None:
            is_silent = gpu.access is Access.UNKNOWN and gpu.health_limits.gone
            return gpu.access is Access.LOST or is_silent
        return bool(self.gpus) and all(one.uuid or one.access is Access.LOST for one in self.gpus)


def users_of(device: Gpu | ComputeInstance | Device) -> tuple[User, ...]:
    """The processes and allocations on the device itself, and the clients of its daemon."""
    return device.usage.processes + (device.mps.clients.processes if device.mps else ())
