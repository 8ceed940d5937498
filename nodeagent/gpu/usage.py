"""Who holds devices without NVML knowing: processes with capability files open, and allocations.

A program must open /dev/nvidia-caps/nvidia-capN of an instance before it can use it, so a process
that has it open may be about to run on the instance. Who knows allocations, whole GPUs included,
is asked through `AllocationSource`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, Placement, Usage, User
from nodeagent.processes import name_of

_CAPABILITY: Final = re.compile(r"/nvidia-caps/nvidia-cap([0-9]+)$")
# `gpu0/gi1/access 12` and `gpu0/gi1/ci0/access 13`; gpuN is the N of /dev/nvidiaN.
_MINOR: Final = re.compile(r"gpu(\d+)/gi(\d+)/(?:ci(\d+)/)?access (\d+)", re.ASCII)
# The inode of the machine's own process namespace, the same on every Linux since 3.8
# (PROC_PID_INIT_INO in the kernel's proc_ns.h).
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"


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
    """Something outside this process that gives devices to whoever asks it: the kubelet."""

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


# --- capability files -----------------------------------------------------------------------------

Instance = tuple[int, int, int | None]  # minor of the GPU, GPU instance, compute instance if any


@dataclass(frozen=True, slots=True)
class CapabilityHolders:
    """Who has which instance's capability file open; `problem`: why that is not everybody."""

    holders: Mapping[Instance, tuple[User, ...]] = field(default_factory=dict)
    unmapped: bool = False
    problem: str = ""

    def users(self, device: MigDevice) -> Usage:
        problem = self.problem
        if device.minor is None and (self.holders or self.unmapped):
            problem = "the driver does not tell which device file the GPU has"
        return Usage(self._holders_of(device), known=not problem, reason=problem)

    def _holders_of(self, device: MigDevice) -> tuple[User, ...]:
        found: dict[int, User] = {}
        for (minor, instance, compute), users in self.holders.items():
            if (minor, instance) == (device.minor, device.gpu_instance) and (
                device.compute_instance is None or compute in {device.compute_instance, None}
            ):
                found |= {user.pid: user for user in users}
        return tuple(found[pid] for pid in sorted(found))


@dataclass(frozen=True, slots=True)
class UsageProbe:
    """Looks through every process of the machine for open capability files.

    `proc_root` is where the machine's /proc is mounted. The agent's own files do not count.
    """

    proc_root: Path = Path("/proc")

    def read(self) -> CapabilityHolders:
        """One look through all processes; some 10 µs a process and 2 µs an open file."""
        names = self._instances_by_capability()
        try:
            opened, unreadable = self._open_capabilities()
        except OSError as error:
            return CapabilityHolders(problem=f"{self.proc_root} cannot be looked through: {error}")
        unmapped = bool(opened) and not names
        return CapabilityHolders(
            _holders(opened, names),
            unmapped,
            self._problem(unreadable, has_capabilities=bool(names or opened), unmapped=unmapped),
        )

    def _instances_by_capability(self) -> dict[int, Instance]:
        try:
            text = (self.proc_root / "driver/nvidia-caps/mig-minors").read_text()
        except OSError:
            return {}
        return {
            int(capability): (int(gpu), int(instance), int(compute) if compute else None)
            for gpu, instance, compute, capability in _MINOR.findall(text)
        }

    def _open_capabilities(self) -> tuple[dict[int, set[int]], int]:
        """Capability numbers by process id, and how many processes may not be looked into."""
        opened: dict[int, set[int]] = {}
        unreadable = 0
        for entry in os.listdir(self.proc_root):  # noqa: PTH208  # a Path each would take longer
            if not entry.isdecimal() or int(entry) == os.getpid():
                continue
            try:
                found = set(_capabilities_in(f"{self.proc_root}/{entry}/fd"))
            except PermissionError:
                unreadable += 1
                continue
            if found:
                opened[int(entry)] = found
        return opened, unreadable

    def _problem(self, unreadable: int, *, has_capabilities: bool, unmapped: bool) -> str:
        """Why the look may have missed somebody; "" where nothing can have been missed."""
        if unmapped:
            return (
                f"{self.proc_root}/driver/nvidia-caps/mig-minors is not readable, so open "
                "capability files cannot be told apart"
            )
        if not has_capabilities:
            return ""  # a machine without capability files has nobody who holds one
        if unreadable:
            return (
                f"{unreadable} processes may not be looked into, so it is not known who holds "
                "MIG devices; run nodeagent as root, in a container with CAP_SYS_PTRACE"
            )
        if not (self.proc_root / "1").exists():
            return "other users' processes are hidden (hidepid); run nodeagent as root"
        if _pid_namespace(self.proc_root) not in {_FIRST_PID_NAMESPACE, ""}:
            return (
                "processes outside this container are not visible; run it with the host's "
                "process namespace (hostPID: true)"
            )
        return ""


def _capabilities_in(folder: str) -> Iterator[int]:
    """Numbers of the capability files open in /proc/PID/fd; none if the process has ended.

    Only the links are read: following one could block on whatever file is behind it.
    """
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return
    try:
        for name in os.listdir(directory):  # noqa: PTH208  # as above
            try:
                target = os.readlink(name, dir_fd=directory)
            except (FileNotFoundError, ProcessLookupError):
                continue
            if "nvidia-cap" in target and (match := _CAPABILITY.search(target)):
                yield int(match[1])
    except (FileNotFoundError, ProcessLookupError):
        return
    finally:
        os.close(directory)


def _holders(
    opened: Mapping[int, set[int]], names: Mapping[int, Instance]
) -> dict[Instance, tuple[User, ...]]:
    """Turn process -> files into instance -> processes.

    Who holds files of compute instances uses those; who holds only that of a GPU instance may
    use any part of it.
    """
    holders: dict[Instance, list[User]] = {}
    for pid in sorted(opened):
        instances = {names[number] for number in opened[pid] if number in names}
        within = {
            (minor, instance) for minor, instance, compute in instances if compute is not None
        }
        user = User(pid, name_of(pid), "capability") if instances else None
        for key in instances:
            if user and (key[2] is not None or key[:2] not in within):
                holders.setdefault(key, []).append(user)
    return {key: tuple(users) for key, users in holders.items()}


def _pid_namespace(proc: Path) -> str:
    try:
        return str((proc / "self/ns/pid").readlink())
    except OSError:
        return ""


# --- together with what NVML knows ----------------------------------------------------------------


def merged(first: Usage, second: Usage) -> Usage:
    """Both together; a process known to both is shown as `first` has it."""
    known = {user.pid for user in first.processes if user.pid}
    more = tuple(user for user in second.processes if user.pid not in known)
    reasons = dict.fromkeys(reason for reason in (first.reason, second.reason) if reason)
    return Usage(
        first.processes + more, known=first.known and second.known, reason="; ".join(reasons)
    )


def with_users(gpu: Gpu, readings: Iterable[UsageReading]) -> Gpu:
    """The GPU with the users of its MIG devices that `readings` tell, added to NVML's."""
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
