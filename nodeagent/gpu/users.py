"""Who uses GPUs and MIG devices: NVML's process lists, and what other sources add to them.

Other sources are open capability files (`capability_files`) and devices allocated by the kubelet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import PurePosixPath
from typing import Protocol

from nodeagent.errors import DriverError, DriverUnavailable, GpuLost
from nodeagent.gpu import nvml
from nodeagent.gpu.nvml import Device
from nodeagent.gpu.nvml_errors import is_unsupported
from nodeagent.gpu.nvml_processes import PROCESS_KINDS, NvmlProcess, device_processes
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, Placement
from nodeagent.plan.users import Usage, User
from nodeagent.processes import name_of
from nodeagent.structs import Struct, replace


class MigDevice(Struct, frozen=True):
    """What a source of users is asked about.

    `minor` is the N of the GPU's /dev/nvidiaN; `compute_instance` None means the GPU instance as
    a whole, with everything in it. `placement` is the GPU instance's.
    """

    gpu: str
    minor: int | None
    gpu_instance: int
    compute_instance: int | None
    uuid: str = ""
    placement: Placement | None = None


class WholeGpu(Struct, frozen=True):
    """A GPU outside its instances.

    `instances` are the places of those it has; None: what may be meant for one counts nowhere.
    """

    gpu: str
    minor: int | None
    instances: tuple[Placement, ...] | None = None


class UsageReading(Protocol):
    """What a source knew at one moment."""

    def users(self, device: MigDevice) -> Usage: ...

    def users_of_gpu(self, gpu: WholeGpu) -> Usage:
        """Who has the GPU itself, whether it is in MIG mode by now or not."""
        ...


class UsageSource(Protocol):
    """Something besides NVML that knows users of devices. No method raises: what cannot be found
    out is said in the reading.
    """

    async def ask(self) -> UsageReading:
        """What is so at a moment after the call."""
        ...

    async def joined(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """The GPUs with all that it knows of their users; those that do not answer as they are."""
        ...

    async def close(self) -> None:
        """End what is under way. It can be asked again afterwards."""
        ...


class UnknownUsers(Struct, frozen=True):
    """A reading that failed: anybody may be using anything."""

    reason: str

    def users(self, device: MigDevice) -> Usage:
        return Usage(known=False, reason=self.reason)

    def users_of_gpu(self, gpu: WholeGpu) -> Usage:
        return Usage(known=False, reason=self.reason)


def with_users(gpu: Gpu, readings: Iterable[UsageReading]) -> Gpu:
    """The GPU with the users of its MIG devices that `readings` know, added to NVML's."""

    def device_with(instance: GpuInstance, compute: ComputeInstance) -> ComputeInstance:
        device = mig_device_of(gpu, instance, compute)
        added = (reading.users(device) for reading in readings)
        return replace(compute, usage=reduce(Usage.together, added, compute.usage))

    readings = tuple(readings)
    return gpu.with_mig_devices(device_with)


def mig_device_of(gpu: Gpu, instance: GpuInstance, compute: ComputeInstance) -> MigDevice:
    """The device as sources are asked about it."""
    return MigDevice(gpu.uuid, gpu.minor, instance.id, compute.id, compute.uuid, instance.placement)


def whole_gpu(gpu: Gpu) -> WholeGpu:
    """The GPU itself as sources are asked about it."""
    return WholeGpu(gpu.uuid, gpu.minor, tuple(i.placement for i in gpu.instances))


# --- NVML's process lists -------------------------------------------------------------------------


class ProcessLists:
    """The lists of one device, read at one moment.

    `problem` says why they are not complete; then no device may be taken for idle by them.
    """

    def __init__(self, device: Device) -> None:
        self.problem = ""
        self._listed: list[tuple[NvmlProcess, str]] = []  # with the `source` of a `User`
        # MPS clients are in the compute list too; the MPS list comes last and knows better.
        for kind in PROCESS_KINDS:
            source = "mps" if kind == "mps" else "process"
            try:
                self._listed += [(process, source) for process in device_processes(device, kind)]
            except (GpuLost, DriverUnavailable):
                raise
            except DriverError as error:
                # A GPU without graphics or MPS has no such list, and so no user of that kind.
                if kind == "compute" or not is_unsupported(error):
                    self.problem = self.problem or str(error)

    def on_all(self) -> Usage:
        """All processes on the device."""
        return self._usage(lambda _: True)

    def on_instance(self, instance: int, compute: int) -> Usage:
        """Those on one compute instance, and those of whom only the GPU instance is known."""
        return self._usage(
            lambda p: p.gpu_instance == instance and p.compute_instance in {compute, None}
        )

    def on_no_instance_of(self, known: Iterable[tuple[int, int]]) -> Usage:
        """Those who are not on one of the `known` (GPU instance id, compute instance id)."""
        pairs: set[tuple[int | None, int | None]] = set(known)
        pairs |= {(instance, None) for instance, _ in pairs}
        return self._usage(lambda p: (p.gpu_instance, p.compute_instance) not in pairs)

    def _usage(self, counts: Callable[[NvmlProcess], bool]) -> Usage:
        users = {
            process.pid: User(process.pid, _name_of(process.pid), source, process.memory)
            for process, source in self._listed
            if counts(process)
        }
        return Usage(
            tuple(users[pid] for pid in sorted(users)),
            known=not self.problem,
            reason=self.problem,
        )


def _name_of(pid: int) -> str:
    """The driver may know processes that are not in our /proc."""
    if name := name_of(pid):
        return name
    with suppress(DriverError):
        return PurePosixPath(str(nvml.call("nvmlSystemGetProcessName", pid))).name
    return ""
