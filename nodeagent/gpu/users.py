"""Who uses GPUs and MIG devices: NVML's process lists, and what other sources add to them.

Other sources are open capability files (`capability_files`) and devices allocated by the kubelet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Protocol

from nodeagent.errors import DriverError, DriverUnavailable, GpuLost
from nodeagent.gpu.nvml import Device, Nvml, Process
from nodeagent.gpu.nvml_errors import is_unsupported
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, Placement, Usage, User
from nodeagent.processes import name_of


@dataclass(frozen=True, slots=True)
class MigDevice:
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


@dataclass(frozen=True, slots=True)
class WholeGpu:
    """A GPU outside its instances.

    `instances` are the places of those it has; None: what may be meant for one counts nowhere.
    """

    gpu: str
    minor: int | None
    instances: tuple[Placement, ...] | None = None


class UsageReading(Protocol):
    """What a source knew at one moment."""

    def users(self, device: MigDevice) -> Usage: ...


class UsageSource(Protocol):
    """Something besides NVML that knows who holds MIG devices."""

    def read(self) -> UsageReading:
        """May block, so it is called in a worker thread.

        Raises nothing: what it cannot find out it says in the reading.
        """
        ...


class AllocationReading(UsageReading, Protocol):
    """What was allocated at one moment: MIG devices, and GPUs as a whole."""

    def users_of_gpu(self, gpu: WholeGpu) -> Usage:
        """Who was given the GPU itself, whether it is in MIG mode by now or not."""
        ...


class AllocationSource(Protocol):
    """Something outside this process that allocates devices: the kubelet."""

    async def ask(self) -> AllocationReading:
        """What is allocated at a moment after the call. Raises nothing, as above."""
        ...

    async def joined(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """The GPUs with all that it knows of their users, who those are included.

        GPUs that do not answer come back as they are. Raises nothing.
        """
        ...

    async def close(self) -> None:
        """End what is under way. It can be asked again afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class UnknownUsers:
    """A reading that failed: anybody may be using anything."""

    reason: str

    def users(self, device: MigDevice) -> Usage:
        return Usage(known=False, reason=self.reason)

    def users_of_gpu(self, gpu: WholeGpu) -> Usage:
        return Usage(known=False, reason=self.reason)


def merged(first: Usage, second: Usage) -> Usage:
    """Both together; a process known to both is shown as `first` has it."""
    known = {user.pid for user in first.processes if user.pid}
    more = tuple(user for user in second.processes if user.pid not in known)
    reasons = dict.fromkeys(reason for reason in (first.reason, second.reason) if reason)
    return Usage(
        first.processes + more, known=first.known and second.known, reason="; ".join(reasons)
    )


def with_users(gpu: Gpu, readings: Iterable[UsageReading]) -> Gpu:
    """The GPU with the users of its MIG devices that `readings` know, added to NVML's."""
    for reading in readings:
        gpu = replace(gpu, instances=tuple(_instance_with(gpu, i, reading) for i in gpu.instances))
    return gpu


def _instance_with(gpu: Gpu, instance: GpuInstance, reading: UsageReading) -> GpuInstance:
    def device_with(compute: ComputeInstance) -> ComputeInstance:
        users = reading.users(mig_device_of(gpu, instance, compute))
        return replace(compute, usage=merged(compute.usage, users))

    return replace(instance, compute=tuple(map(device_with, instance.compute)))


def mig_device_of(gpu: Gpu, instance: GpuInstance, compute: ComputeInstance) -> MigDevice:
    """The device as sources are asked about it."""
    return MigDevice(gpu.uuid, gpu.minor, instance.id, compute.id, compute.uuid, instance.placement)


def whole_gpu(gpu: Gpu) -> WholeGpu:
    """The GPU itself as sources are asked about it."""
    return WholeGpu(gpu.uuid, gpu.minor, tuple(i.placement for i in gpu.instances))


# --- NVML's process lists -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """A process of one of the lists; `source` as in `User`."""

    process: Process
    source: str


class ProcessLists:
    """The lists of one device, read at one moment.

    `problem` says why they are not complete; then no device may be taken for idle by them.
    """

    def __init__(self, nvml: Nvml, device: Device) -> None:
        self.problem = ""
        self._nvml = nvml
        seen = self._read(nvml.compute_processes, device, "process", must=True)
        seen += self._read(nvml.graphics_processes, device, "process", must=False)
        seen += self._read(nvml.mps_processes, device, "mps", must=False)
        self._seen = seen

    def _read(
        self,
        ask: Callable[[Device], Iterable[Process]],
        device: Device,
        source: str,
        *,
        must: bool,
    ) -> list[_Seen]:
        try:
            return [_Seen(process, source) for process in ask(device)]
        except (GpuLost, DriverUnavailable):
            raise
        except DriverError as error:
            # A GPU without graphics or MPS has no such list, and so no user of that kind.
            if must or not is_unsupported(error):
                self.problem = self.problem or str(error)
            return []

    def on_all(self) -> Usage:
        """All processes on the device."""
        return self._usage(self._seen)

    def on_instance(self, instance: int, compute: int) -> Usage:
        """Those on one compute instance, and those of whom only the GPU instance is known."""
        return self._usage(
            s
            for s in self._seen
            if s.process.gpu_instance == instance and s.process.compute_instance in {compute, None}
        )

    def on_no_instance_of(self, known: Iterable[tuple[int, int]]) -> Usage:
        """Those who are not on one of the `known` (GPU instance id, compute instance id)."""
        pairs = set(known)
        instances = {instance for instance, _ in pairs}
        return self._usage(
            s
            for s in self._seen
            if (s.process.gpu_instance, s.process.compute_instance) not in pairs
            and not (s.process.compute_instance is None and s.process.gpu_instance in instances)
        )

    def _usage(self, seen: Iterable[_Seen]) -> Usage:
        # MPS clients are in the compute list too; the MPS list comes last and knows better.
        users = {s.process.pid: self._user(s) for s in seen}
        return Usage(
            tuple(users[pid] for pid in sorted(users)),
            known=not self.problem,
            reason=self.problem,
        )

    def _user(self, seen: _Seen) -> User:
        pid = seen.process.pid
        return User(pid, name_of(pid) or self._name(pid), seen.source, seen.process.memory)

    def _name(self, pid: int) -> str:
        """The driver may know processes that are not in our /proc."""
        try:
            return PurePosixPath(self._nvml.process_name(pid)).name
        except DriverError:
            return ""
