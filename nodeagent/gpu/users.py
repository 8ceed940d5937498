"""Who uses GPUs and MIG devices: NVML's process lists, and what other sources add to them.

Other sources are open capability files (`capability_files`) and devices allocated by the kubelet.
NVML's lists are read in worker threads only, as all of `nvml`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import PurePosixPath
from typing import Any, ClassVar, Final, Protocol

from nodeagent.errors import DriverError, DriverUnavailable, GpuLost
from nodeagent.gpu import nvml
from nodeagent.gpu.nvml import Device
from nodeagent.gpu.nvml_errors import INSUFFICIENT_SIZE, is_unsupported
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, Placement
from nodeagent.plan.users import Usage, User
from nodeagent.processes import name_of
from nodeagent.structs import Struct, replace


class MigDeviceRef(Struct, frozen=True):
    """A MIG device, as a source of users is asked about it.

    `minor` is the N of the GPU's /dev/nvidiaN; `compute_instance` None means the GPU instance as
    a whole, with everything in it. `placement` is the GPU instance's.
    """

    gpu: str
    minor: int | None
    gpu_instance: int
    compute_instance: int | None
    uuid: str = ""
    placement: Placement | None = None


class GpuRef(Struct, frozen=True):
    """A GPU outside its instances.

    `instances` are their places. None: what may be for one of them does not count at all.
    """

    gpu: str
    minor: int | None
    instances: tuple[Placement, ...] | None = None


class UsageReading(Protocol):
    """The users that a source knew at one moment."""

    def users(self, device: MigDeviceRef) -> Usage: ...

    # Of the GPU itself, whether it is in MIG mode by now or not.
    def users_of_gpu(self, gpu: GpuRef) -> Usage: ...


class UsageSource(ABC):
    """Something besides NVML that knows users of devices; belongs to one event loop.

    A reading takes long on a busy machine, and eight GPUs may want one before each of their steps.
    So each caller gets one that was begun after its call, shared with all who asked meanwhile.
    """

    # Whether another program answers, which is then asked while the GPUs are read, not afterwards.
    is_remote: ClassVar[bool] = False

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._next: asyncio.Task[UsageReading] | None = None
        self._tasks: set[asyncio.Task[UsageReading]] = set()

    @abstractmethod
    async def read(self) -> UsageReading:
        """Read the users. Raises nothing: what cannot be found out is in the reading. It must
        bound its own time.
        """

    @abstractmethod
    async def with_users(
        self, gpus: Sequence[Gpu], asked: Awaitable[UsageReading] | None = None
    ) -> list[Gpu]:
        """The GPUs with all users that this source knows; GPUs that do not answer are unchanged.
        `asked` is a reading that was asked for when the reading of the GPUs began.
        """

    async def ask(self) -> UsageReading:
        """A reading that was begun after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._begin(), name="read users")
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next)

    async def _begin(self) -> UsageReading:
        async with self._reading:
            self._next = None
            return await self.read()

    async def close(self) -> None:
        """End what was asked for, begun or not. It can be asked again afterwards."""
        self._next = None
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class UnknownUsers(Struct, frozen=True):
    """A reading that failed: any device may be in use."""

    reason: str

    def users(self, device: MigDeviceRef) -> Usage:
        return Usage(known=False, reason=self.reason)

    def users_of_gpu(self, gpu: GpuRef) -> Usage:
        return Usage(known=False, reason=self.reason)


def with_users(gpu: Gpu, readings: Iterable[UsageReading]) -> Gpu:
    """The GPU with the users of its MIG devices that `readings` know, added to NVML's."""

    def device_with(instance: GpuInstance, compute: ComputeInstance) -> ComputeInstance:
        device = mig_device_of(gpu, instance, compute)
        added = (reading.users(device) for reading in readings)
        return replace(compute, usage=reduce(Usage.together, added, compute.usage))

    readings = tuple(readings)
    return gpu.with_mig_devices(device_with)


def mig_device_of(gpu: Gpu, instance: GpuInstance, compute: ComputeInstance) -> MigDeviceRef:
    """Make the reference by which sources are asked about a MIG device."""
    return MigDeviceRef(
        gpu.uuid, gpu.minor, instance.id, compute.id, compute.uuid, instance.placement
    )


def whole_gpu(gpu: Gpu) -> GpuRef:
    """Make the reference by which sources are asked about the GPU itself."""
    return GpuRef(gpu.uuid, gpu.minor, tuple(i.placement for i in gpu.instances))


# --- NVML's process lists -------------------------------------------------------------------------


_NO_INSTANCE = 0xFFFFFFFF  # the id that NVML gives to processes outside any instance
_LIST_TRIES = 3  # tries, where a list grows between its two calls

# By kind; MPS clients are in the compute list too, and the MPS list comes last and knows better.
_PROCESS_LISTS: Final = {
    "compute": "nvmlDeviceGetComputeRunningProcesses_v3",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}


class NvmlProcess(Struct, frozen=True):
    """A process on a device; the ids are None outside MIG. `memory` in bytes."""

    pid: int
    memory: int | None
    gpu_instance: int | None
    compute_instance: int | None


def device_processes(device: Device, kind: str) -> tuple[NvmlProcess, ...]:
    """List a device's processes: two calls where there are some, one where there are none."""
    return tuple(
        NvmlProcess(
            pid=process.pid,
            memory=process.usedGpuMemory,
            gpu_instance=_instance_id(process.gpuInstanceId),
            compute_instance=_instance_id(process.computeInstanceId),
        )
        for process in _list_processes(_PROCESS_LISTS[kind], device)
    )


def _list_processes(function: str, device: Device) -> Any:
    """List again when more processes came between the call for their number and the list."""
    for _ in range(_LIST_TRIES - 1):
        try:
            return nvml.call(function, device)
        except DriverError as error:
            if error.code != INSUFFICIENT_SIZE:
                raise
    return nvml.call(function, device)


def _instance_id(number: int) -> int | None:
    return None if number == _NO_INSTANCE else number


class ProcessLists:
    """The lists of one device, read at one moment.

    `problem` says why they are not complete; then no device may be taken for idle by them.
    `compute_error`: that of the compute list, without which the others are next to nothing.
    """

    def __init__(self, device: Device) -> None:
        self.problem = ""
        self.compute_error: DriverError | None = None
        self.listed: list[tuple[NvmlProcess, str]] = []  # with the `source` of a `User`
        for kind in _PROCESS_LISTS:
            source = "mps" if kind == "mps" else "process"
            try:
                self.listed += [(process, source) for process in device_processes(device, kind)]
            except (GpuLost, DriverUnavailable):
                raise
            except DriverError as error:
                if kind == "compute":
                    self.compute_error = error
                # A GPU without graphics or MPS has no such list, and so no user of that kind.
                if kind == "compute" or not is_unsupported(error):
                    self.problem = self.problem or str(error)

    def on_all(self) -> Usage:
        return self._usage(lambda _: True)

    def on_instance(self, instance: int, compute: int) -> Usage:
        """Users of one compute instance, with those of whom only the GPU instance is known."""
        return self._usage(
            lambda p: p.gpu_instance == instance and p.compute_instance in {compute, None}
        )

    def on_no_instance_of(self, known: Iterable[tuple[int, int]]) -> Usage:
        """Users on none of the `known` (GPU instance id, compute instance id)."""
        pairs: set[tuple[int | None, int | None]] = set(known)
        pairs |= {(instance, None) for instance, _ in pairs}
        return self._usage(lambda p: (p.gpu_instance, p.compute_instance) not in pairs)

    def _usage(self, counts: Callable[[NvmlProcess], bool]) -> Usage:
        users = {
            process.pid: User(process.pid, _command(process.pid), source, process.memory)
            for process, source in self.listed
            if counts(process)
        }
        return Usage(
            tuple(users[pid] for pid in sorted(users)), known=not self.problem, reason=self.problem
        )


def _command(pid: int) -> str:
    """The program's name; from the driver for a process that is not in our /proc."""
    if name := name_of(pid):
        return name
    with suppress(DriverError):
        return PurePosixPath(str(nvml.call("nvmlSystemGetProcessName", pid))).name
    return ""
