"""MPS processes: found by program name and pipe directory, waited for by pidfd.

A pid alone proves nothing, since it is used again; a pid with its start time is one process.
"""

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from nodeagent.own_thread import OwnThread
from nodeagent.processes import (
    Process,
    ProcessIdentity,
    Uids,
    age,
    command_of,
    environment_of,
    inspect,
    is_gone,
    name_of,
    pids,
)
from nodeagent.structs import Meta, Struct

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
_PREFIX = "nvidia-cuda-mps"  # of both, as the kernel keeps 15 letters of a name

T = TypeVar("T")

_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"


class MpsProcess(Struct, frozen=True):
    """One process. `start_time` in the kernel's clock ticks since boot, `uid` the effective one,
    `program` its name (CONTROL or SERVER), `pipe_directory` as its environment has it; both are ""
    where its memory is locked, and it may be one of these.
    """

    pid: Annotated[int, Meta(ge=1)]
    start_time: Annotated[int, Meta(ge=0)]
    uid: Annotated[int, Meta(ge=0)]
    program: str
    pipe_directory: str


def mps_process(pid: int) -> MpsProcess | None:
    """The identity of a process; None if it is gone, a zombie, hidden from us, or none of MPS.

    None also where its memory is locked, and where its user ids differ: a daemon or server has one
    user, while a setuid program under such a name has two. And None in a container other than the
    agent's: there anybody may have the daemon's uid and make its directory.
    """
    return _reader.read((pid,)).get(pid)


def _read_mps_process(pid: int) -> MpsProcess | None:
    program = None if _is_in_other_container(pid) else _program(pid)
    if program is None:
        return None
    found = inspect(pid)
    environment = environment_of(pid, _VARIABLE)
    if not isinstance(found, Process) or not isinstance(environment, Mapping):
        return None
    uids, identity = found.uids, found.identity
    if not _has_one_user(uids) or _program(pid) != program:
        return None
    if is_gone(identity):
        return None  # another may have its pid by now, and have given some of the answers
    directory = environment.get(_VARIABLE, "")
    return MpsProcess(pid, identity.create_time, uids.effective, program, directory)


def processes_of(pipe_directory: str, program: str) -> tuple[MpsProcess, ...]:
    """All control daemons, or all servers, of one pipe directory. Blocks like `mps_processes`."""
    wanted = (program, pipe_directory)
    return tuple(one for one in mps_processes() if (one.program, one.pipe_directory) == wanted)


_MAX_LOCKED = 16  # threads that wait for the locked memory of one user's processes


class MemoryReader(Generic[T]):
    """Calls `read` for processes in a thread, one after the other.

    A process that hangs in a driver may have its memory locked in the kernel, and any user can
    bring that about: a thread that reads its command line hangs as well. A read that takes longer
    than `seconds` holds up no other, and that process is not read again before it has ended.
    """

    def __init__(self, read: Callable[[int], T], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        # Reads that hang, by pid, with the user of the process.
        self._locked: dict[int, tuple[int | None, Future[None]]] = {}

    def read(self, pids: Iterable[int]) -> dict[int, T]:
        """Read processes, by pid, without those whose memory is locked. Blocks."""
        for pid, (_, reading) in tuple(self._locked.items()):
            if reading.done():
                self._locked.pop(pid, None)
        found: dict[int, T] = {}
        wanted = tuple(pids)
        while left := [p for p in wanted if p not in found and self._may_read(p)]:
            reading = OwnThread("mps processes").submit(self._read_into, found, left)
            before = -1
            while not reading.done() and len(found) > before:  # as long as it gets on
                before = len(found)
                wait((reading,), timeout=self._seconds)
            hanging = next((pid for pid in left if pid not in found), None)
            if hanging is None or reading.done():
                reading.result()
            else:
                self._locked[hanging] = (_user_of(hanging), reading)
        return found

    def _may_read(self, pid: int) -> bool:
        if len(self._locked) < _MAX_LOCKED or pid in self._locked:
            return pid not in self._locked
        user = _user_of(pid)
        return sum(one == user for one, _ in tuple(self._locked.values())) < _MAX_LOCKED

    def _read_into(self, found: dict[int, T], pids: Iterable[int]) -> None:
        for pid in pids:
            found[pid] = self._read(pid)


def mps_processes() -> tuple[MpsProcess, ...]:
    """All of this machine, and processes with locked memory that may be of MPS. Takes tens of
    milliseconds on a node with many processes.
    """
    here = tuple(pids())
    found = _reader.read(here)
    every = (found[pid] if pid in found else _unread(pid) for pid in here)
    return tuple(one for one in every if one)


def _unread(pid: int) -> MpsProcess | None:
    """A process whose memory is locked, if it may be of MPS by what is known without that: its
    executable, and its own name where that is an interpreter.
    """
    with suppress(OSError):
        program = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - quick
        if _PREFIX not in Path(program).name and name_of(pid) != _PREFIX:
            return None
    found = None if _is_in_other_container(pid) else inspect(pid)
    if not isinstance(found, Process) or not _has_one_user(found.uids):
        return None
    return MpsProcess(pid, found.identity.create_time, found.uids.effective, "", "")


def _has_one_user(uids: Uids) -> bool:
    return uids.real == uids.effective == uids.saved


def _user_of(pid: int) -> int | None:
    found = inspect(pid)
    return found.uids.effective if isinstance(found, Process) else None


_reader = MemoryReader(_read_mps_process, 1.0)

_Place = tuple[str, tuple[int, int]]  # the namespace of its pids; device and inode of its root


def _is_in_other_container(pid: int) -> bool:
    """Whether it is certainly in a container other than the agent's: daemons are children of the
    agent, or services of the machine's systemd. Does not read its memory, which may be locked.
    """
    try:
        namespace, root = _place(pid)
    except OSError:
        return False
    return not any(namespace == one[0] or root == one[1] for one in _own_places())


@lru_cache(maxsize=1)
def _own_places() -> tuple[_Place, ...]:
    """That of this process and, if it may be read, that of the machine's init."""
    places = []
    for one in ("self", 1):
        with suppress(OSError):
            places.append(_place(one))
    return tuple(places)


def _place(pid: int | str) -> _Place:
    root = os.stat(f"/proc/{pid}/root")  # noqa: PTH116 - quick
    return os.readlink(f"/proc/{pid}/ns/pid"), (root.st_dev, root.st_ino)  # noqa: PTH115 - quick


def may_serve(pid: int, uid: int) -> bool:
    """Whether it can be a server of a daemon of this user. A tenant's daemon can name any process
    as its server, and that would then not count as a user of the GPU.
    """
    found = inspect(pid)
    return uid == 0 or (isinstance(found, Process) and found.uids.effective == uid)


def parent_of(pid: int) -> int | None:
    """The pid of a process' parent, None where that is not known."""
    try:
        _, _, rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
        return int(rest.split()[1])
    except (OSError, IndexError):
        return None


def age_of(process: MpsProcess) -> float:
    """Seconds since a process started; 0 where its start time is not known."""
    if process.start_time == 0:
        return 0.0
    return age(ProcessIdentity(process.pid, process.start_time))


def _program(pid: int) -> str | None:
    """The name of the MPS program that the process runs, also by an interpreter; else None.

    A control program without a flag is no daemon but a front-end, which may have been left
    open, and which may outlive the daemon that it asked.
    """
    words = command_of(pid)
    if not isinstance(words, tuple):
        return None
    for word, following in itertools.pairwise((*words[:4], "")):  # an interpreter's come first
        name = Path(word).name
        if name == SERVER or (name == CONTROL and following.startswith("-")):
            return name
    return None


@contextmanager
def process_descriptor(pid: int) -> Iterator[int | None]:
    """A descriptor that stands for this very process; None when it is gone. Raises OSError where
    that is not known.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def process_end(descriptor: int) -> None:
    """Wait until the process ends; one task at a time may wait by one descriptor."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_reader(descriptor, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(descriptor)
