"""Finds processes that have capability files of MIG devices open, which NVML does not list.

A program must open /dev/nvidia-caps/nvidia-capN of an instance before it can use it, so a process
that has it open may be about to run on the instance.
"""

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from nodeagent.errors import DriverError
from nodeagent.gpu.open_devices import driver_major, open_minors
from nodeagent.gpu.users import (
    GpuRef,
    MigDeviceRef,
    UnknownUsers,
    UsageReading,
    UsageSource,
    with_users,
)
from nodeagent.gpu.workers import Worker
from nodeagent.plan.observed import Gpu
from nodeagent.plan.users import Usage, User
from nodeagent.processes import name_of, sees_all_processes
from nodeagent.structs import Struct, field

_DRIVER: Final = "nvidia-caps"  # of these devices, in /proc/devices; minor N is nvidia-capN
# `gpu0/gi1/access 12` and `gpu0/gi1/ci0/access 13`; gpuN is the N of /dev/nvidiaN.
_MINOR: Final = r"gpu([0-9]+)/gi([0-9]+)/(?:ci([0-9]+)/)?access ([0-9]+)"

Instance = tuple[int, int, int | None]  # minor of the GPU, GPU instance, compute instance if any


class CapabilityHolders(Struct, frozen=True):
    """Processes with an instance's capability file open; `problem`: why some may be missing."""

    holders: Mapping[Instance, tuple[User, ...]] = field(default_factory=dict)
    problem: str = ""

    def users(self, device: MigDeviceRef) -> Usage:
        problem = self.problem
        if device.minor is None and self.holders:  # any may hold its files
            problem = "the driver does not report which device file the GPU has"
        return Usage(self._holders_of(device), known=not problem, reason=problem)

    def users_of_gpu(self, _: GpuRef) -> Usage:
        """Always nothing: only instances have such files."""
        return Usage()

    def _holders_of(self, device: MigDeviceRef) -> tuple[User, ...]:
        found: dict[int, User] = {}
        for (minor, instance, compute), users in self.holders.items():
            if (minor, instance) == (device.minor, device.gpu_instance) and (
                device.compute_instance is None or compute in {device.compute_instance, None}
            ):
                found |= {user.pid: user for user in users}
        return tuple(found[pid] for pid in sorted(found))


def capabilities(proc_root: Path = Path("/proc")) -> Mapping[int, Instance]:
    """The instance to which each file /dev/nvidia-caps/nvidia-capN gives access, by N, even if
    there is no such file. Raises OSError; blocks.

    The file has some 4,000 lines, which are parsed again only when they have changed.
    """
    return _parsed((proc_root / "driver/nvidia-caps/mig-minors").read_text())


@lru_cache(maxsize=1)
def _parsed(text: str) -> Mapping[int, Instance]:
    return MappingProxyType(
        {
            int(number): (int(gpu), int(instance), int(compute) if compute else None)
            for gpu, instance, compute, number in re.findall(_MINOR, text)
        }
    )


class UsageProbe(Struct, frozen=True):
    """Looks through every process of the machine for open capability files.

    `proc_root` is where the machine's /proc is mounted. The agent's own files do not count.
    """

    proc_root: Path = Path("/proc")

    def read(self) -> CapabilityHolders:
        """Look through all processes; some 10 µs a process and 2 µs an open file."""
        table: Mapping[int, Instance] = {}
        with suppress(OSError):
            table = capabilities(self.proc_root)
        try:
            major = driver_major(_DRIVER, self.proc_root)
            if major is None:  # no process can have one
                why = f"{self.proc_root}/devices has no {_DRIVER}" if table else ""
                return CapabilityHolders(problem=why)
            opened, unreadable = self._open_capabilities(major)
        except OSError as error:
            return CapabilityHolders(problem=f"{self.proc_root} cannot be looked through: {error}")
        return CapabilityHolders(_holders(opened, table), self._problem(opened, table, unreadable))

    def _open_capabilities(self, major: int) -> tuple[dict[int, set[int]], int]:
        """Capability numbers by process id, and how many processes may not be looked into."""
        opened: dict[int, set[int]] = {}
        unreadable = 0
        for entry in os.listdir(self.proc_root):  # noqa: PTH208  # a Path each would take longer
            if not entry.isdecimal() or int(entry) == os.getpid():
                continue
            try:
                found = open_minors(f"{self.proc_root}/{entry}", major)
            except PermissionError:
                unreadable += 1
                continue
            if found:
                opened[int(entry)] = found
        return opened, unreadable

    def _problem(
        self, opened: Mapping[int, set[int]], table: Mapping[int, Instance], unreadable: int
    ) -> str:
        if opened and not table:
            return (
                f"{self.proc_root}/driver/nvidia-caps/mig-minors is not readable, so open "
                "capability files cannot be assigned to MIG devices"
            )
        if unreadable:
            return (
                f"{unreadable} processes may not be read, so the users of MIG devices are not "
                "known; run nodeagent as root, in a container with CAP_SYS_PTRACE"
            )
        if not (self.proc_root / "1").exists():
            return "other users' processes are hidden (hidepid); run nodeagent as root"
        if not sees_all_processes(self.proc_root):
            return (
                "processes outside this container are not visible; run it with the host's "
                "process namespace (hostPID: true)"
            )
        return ""


def _holders(
    opened: Mapping[int, set[int]], table: Mapping[int, Instance]
) -> dict[Instance, tuple[User, ...]]:
    """Turn process -> files into instance -> processes.

    Who holds files of compute instances uses those; who holds only that of a GPU instance may
    use any part of it.
    """
    holders: dict[Instance, list[User]] = {}
    for pid in sorted(opened):
        instances = {table[number] for number in opened[pid] if number in table}
        within = {
            (minor, instance) for minor, instance, compute in instances if compute is not None
        }
        user = User(pid, name_of(pid), "capability") if instances else None
        for key in instances:
            if user and (key[2] is not None or key[:2] not in within):
                holders.setdefault(key, []).append(user)
    return {key: tuple(users) for key, users in holders.items()}


# --- reading in a thread --------------------------------------------------------------------------


class CapabilityUsers(UsageSource):
    """Open capability files as a source of users, read in a thread of its own. `look` is `read` of
    a `UsageProbe`: it raises nothing, but may block, at most `deadline` seconds.
    """

    def __init__(self, look: Callable[[], UsageReading], *, deadline: float) -> None:
        super().__init__()
        self._look = look
        self._deadline = deadline
        self._worker = Worker("the look for users")

    async def with_users(
        self, gpus: Sequence[Gpu], asked: Awaitable[UsageReading] | None = None
    ) -> list[Gpu]:
        """Add their users, by what was `asked` before if given; no search without MIG devices."""
        if not any(gpu.answers and gpu.instances for gpu in gpus):
            return list(gpus)
        reading = await (asked or self.ask())
        return [with_users(gpu, [reading]) if gpu.answers else gpu for gpu in gpus]

    async def read(self) -> UsageReading:
        try:
            return await self._worker.call(
                self._look, what="looking for users", deadline=self._deadline
            )
        except DriverError as error:
            return UnknownUsers(error.message)

    async def close(self) -> None:
        await super().close()
        self._worker.close()
