"""Processes of this machine: which one a pid means, whose it is, and what it shows of itself.

Three answers are kept apart: what was read, `Hidden` (it may be there, but may not be looked at:
hidepid, another user's) and None (it is gone, or a zombie, which uses nothing any more). Not
knowing is never taken for gone. All functions block for some 50 µs; a process whose memory is
locked up in the kernel may block those for commands and environments for as long as that lasts.

psutil reads what the kernel says of a process. What a process can influence is read here. psutil
reads a command line and an environment whole, its `name()` included, and `prctl(PR_SET_MM_MAP)`
lets any user show gigabytes in their place, which the reader then holds in memory. psutil also
searches all of /proc/PID/status for "Uid:" and three numbers, and a process may have these as its
name, which comes first: it would then pass for root's.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.structs import Struct

if TYPE_CHECKING:
    import psutil

from nodeagent.pacing import Backoff

MAX_COMMAND: Final = 1 << 14  # bytes of a command line that are read
MAX_ENVIRONMENT: Final = 8 << 20  # bytes; what execve takes ends at 6 MiB, arguments included
_MAX_VARIABLES: Final = 256  # with one prefix; CUDA documents some ten
_MAX_PID: Final = 1 << 22  # the kernel's PID_MAX_LIMIT
# The inode of the machine's own process namespace, the same on every Linux since 3.8
# (PROC_PID_INIT_INO in the kernel's proc_ns.h).
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"


class ProcessIdentity(Struct, frozen=True):
    """One process for good, where a pid alone is used again.

    `create_time` is what the kernel has: clock ticks since boot (field 22 of /proc/PID/stat). It
    never changes, so it may be kept in files and compared after any setting of the clock.
    """

    pid: int
    create_time: int


class Uids(Struct, frozen=True):
    """The user ids of a process; `effective` is the one whose rights it has."""

    real: int
    effective: int
    saved: int


class Process(Struct, frozen=True):
    """What the kernel says of a process, all of it read of the same one."""

    identity: ProcessIdentity
    uids: Uids


class Hidden(Struct, frozen=True):
    """A process that may exist and is not known; `reason` is for people."""

    reason: str


def inspect(pid: int, *, zombies: bool = False) -> Process | Hidden | None:
    """The process that has this pid now; None where there is none, or a zombie. With `zombies`
    one is returned, too: it may be that only the first of its threads has ended.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        if not zombies and process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return None
        uids = _uids(pid)
        if not isinstance(uids, Uids):
            return uids
        # Only this shows that the pid was not reused between the reads of the two files.
        if not process.is_running():
            return None
    except (psutil.Error, OSError, ValueError) as error:
        return _unread(pid, error)
    return Process(_identity(process), uids)


def identify(pid: int) -> ProcessIdentity | Hidden | None:
    """Which process has this pid now; None where there is none, or a zombie."""
    found = inspect(pid)
    return found.identity if isinstance(found, Process) else found


def is_gone(identity: ProcessIdentity) -> bool:
    """Whether the process has surely ended: a zombie has, a hidden process may not have."""
    found = identify(identity.pid)
    return found != identity and not isinstance(found, Hidden)


def age(identity: ProcessIdentity) -> float:
    """Seconds since it started, by the boot clock, which setting the time does not move."""
    import time

    return time.clock_gettime(time.CLOCK_BOOTTIME) - identity.create_time / _ticks()


def groups_of(pid: int) -> tuple[int, tuple[int, ...]] | Hidden | None:
    """The effective group of a process, and its supplementary ones in order."""
    found = _read(pid, "status", 1 << 14)
    if not isinstance(found, bytes):
        return found
    lines = dict(line.partition(b":")[::2] for line in found.split(b"\n"))
    return int(lines[b"Gid"].split()[1]), tuple(sorted(map(int, lines[b"Groups"].split())))


def name_of(pid: int) -> str:
    """The kernel's name of a process, at most 15 printable characters; "" when not known."""
    found = _read(pid, "comm", 64)
    return _printable(found).strip() if isinstance(found, bytes) else ""


def cgroup_of(pid: int, proc: Path = Path("/proc")) -> str | None:
    """The text of its cgroup file; None where it cannot be read."""
    try:
        return (proc / f"{pid}/cgroup").read_bytes().decode(errors="replace")
    except OSError:
        return None


def service_of(cgroup: str) -> str:
    """The unit of the system's services that the text of a cgroup file names; "" for none."""
    match = re.search(r":/system\.slice/([\w.@-]+)\.service$", cgroup, re.MULTILINE)
    return match[1] if match else ""


def command_of(pid: int) -> tuple[str, ...] | Hidden | None:
    """The words it was started with, or says it was; what is beyond MAX_COMMAND is left out.

    Undecodable bytes as in `os.fsdecode`. Empty for a thread of the kernel.
    """
    found = _read(pid, "cmdline", MAX_COMMAND)
    if not isinstance(found, bytes):
        return found
    words = found.rstrip(b"\0")  # a program that sets its title may leave zeros behind it
    return tuple(map(os.fsdecode, words.split(b"\0"))) if words else ()


def environment_of(pid: int, *prefixes: str) -> Mapping[str, str] | Hidden | None:
    """The variables whose names begin with one of `prefixes`, as it says it was started with.

    Of several of one name the first, which is what the C library gives a program.
    """
    found = _read(pid, "environ", MAX_ENVIRONMENT + 1)
    if not isinstance(found, bytes):
        return found
    if len(found) > MAX_ENVIRONMENT:
        return Hidden(f"process {pid} has more than {MAX_ENVIRONMENT >> 20} MiB of environment")
    variables = variables_in(found, *prefixes)
    if variables is None:
        names = " or ".join(f"{prefix}..." for prefix in prefixes)
        return Hidden(f"process {pid} has more than {_MAX_VARIABLES} variables {names}")
    return variables


def variables_in(environment: bytes, *prefixes: str) -> Mapping[str, str] | None:
    """The variables of an environment as /proc has it; None where they are too many."""
    variables: dict[str, str] = {}
    text = b"\0" + environment
    for prefix in prefixes:
        start, found = b"\0" + os.fsencode(prefix), 0
        at = text.find(start)
        while at >= 0:
            end = text.find(b"\0", at + 1)
            name, equals, value = text[at + 1 : end if end >= 0 else None].partition(b"=")
            if equals:
                variables.setdefault(os.fsdecode(name), os.fsdecode(value))
            found += 1
            if found > _MAX_VARIABLES:
                return None
            at = text.find(start, end) if end >= 0 else -1
    return variables


def pids() -> Iterator[int]:
    """The pids of all processes that can be seen. Raises OSError."""
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208 - quick


def sees_all_processes(proc: Path) -> bool:
    """Whether the /proc at this place is of the machine's own process namespace, and not of a
    container's, in which a pid is another process. True where that cannot be read.
    """
    try:
        return str((proc / "self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return True


def commands() -> dict[int, tuple[str, ...]]:
    """Commands by pid of all processes that can be seen, except threads of the kernel."""
    found = ((pid, command_of(pid)) for pid in pids())
    return {pid: words for pid, words in found if words and not isinstance(words, Hidden)}


class ProcessWatch:
    """Calls `wake` when a watched process ends.

    What the kernel cannot tell (a pid that has ended already and that the driver still names, one
    of another namespace, users without a pid) is checked again after `fallback` seconds,
    doubling up to `fallback_limit` as long as the same users stay. So are those beyond `most`: each
    takes a descriptor, and those who use a GPU decide how many they are.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        *,
        fallback: float = 2.0,
        fallback_limit: float = 30.0,
        most: int = 256,
    ) -> None:
        self._wake = wake
        self._most = most
        self._backoff = Backoff(fallback, fallback_limit)
        self._descriptors: dict[int, int] = {}  # pid -> pidfd
        self._unwatchable: frozenset[int] = frozenset()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, pids: Collection[int]) -> None:
        """Watch exactly these; 0 stands for users of whom no pid is known."""
        for pid in self._descriptors.keys() - set(pids):
            self._forget(pid)
        unwatchable = frozenset(
            pid for pid in pids if pid not in self._descriptors and not self._follow(pid)
        )
        if unwatchable != self._unwatchable:
            self._backoff.reset()
        self._unwatchable = unwatchable
        self._schedule_recheck()

    def close(self) -> None:
        self.watch(())

    def _follow(self, pid: int) -> bool:
        if pid <= 0 or len(self._descriptors) >= self._most:
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, OverflowError):  # NVML's pids have 32 bits, the kernel's 31
            return False
        if has_ended(descriptor):  # a zombie: it would wake us again and again
            os.close(descriptor)
            return False
        self._descriptors[pid] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._ended, pid)
        return True

    def _ended(self, pid: int) -> None:
        self._forget(pid)
        self._wake()

    def _forget(self, pid: int) -> None:
        descriptor = self._descriptors.pop(pid)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    def _schedule_recheck(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._unwatchable:
            delay = self._backoff.after(self._backoff.failures + 1)
            self._timer = asyncio.get_running_loop().call_later(delay, self._recheck)

    def _recheck(self) -> None:
        self._timer = None
        self._backoff.next()
        self._wake()


def _uids(pid: int) -> Uids | Hidden | None:
    found = _read(pid, "status", 1 << 14)
    if not isinstance(found, bytes):
        return found
    # The kernel escapes only line feeds in a name; for splitlines() "\r" begins a line too.
    for line in found.split(b"\n"):
        if line.startswith(b"Uid:"):
            real, effective, saved = map(int, line.split()[1:4])
            return Uids(real, effective, saved)
    return Hidden(f"the users of process {pid} are not in /proc/{pid}/status")


def _identity(process: psutil.Process) -> ProcessIdentity:
    # psutil's public create_time() adds the boot time by the wall clock, which moves whenever that
    # clock is set. This is the number by which psutil itself distinguishes processes: the kernel's
    # ticks, divided.
    _, seconds = process._ident  # type: ignore[attr-defined]  # noqa: SLF001
    return ProcessIdentity(process.pid, round(seconds * _ticks()))


def _unread(pid: int, error: Exception) -> Hidden | None:
    """None only where the kernel has no such process: /proc may just not show it."""
    if not 0 < pid <= _MAX_PID:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return Hidden(f"process {pid} may not be looked at: {error}")


def _read(pid: int, file: str, most: int) -> bytes | Hidden | None:
    try:
        with open(f"/proc/{pid}/{file}", "rb", buffering=0) as opened:  # noqa: PTH123 - quick
            found = bytearray()
            while len(found) < most and (more := opened.read(min(most - len(found), 1 << 16))):
                found += more
            return bytes(found)
    except OSError as error:
        return _unread(pid, error)


def _printable(value: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in value.decode(errors="replace").rstrip())


@lru_cache(maxsize=1)
def _ticks() -> int:
    """Clock ticks a second; always 100 for programs on Linux, whatever the kernel counts in."""
    return os.sysconf("SC_CLK_TCK")


def has_ended(descriptor: int) -> bool:
    """Whether the process of a pidfd has ended, a zombie too; does not block."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
