"""Runs a program to its end: without a shell, in a named environment, and keeps what it says. None
is run that another user could replace.
"""

import asyncio
import atexit
import errno
import os
import shutil
import signal
import stat
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

from nodeagent.waiting import ends_within

_BLOCK = 1 << 16  # bytes of the end of what it says that are kept; what a pipe holds, too
_ENDING = 2.0  # seconds for a killed program to be gone; in the driver it may stay for ever
_running: set[Process] = set()

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # as a service has it
_MOUNTS: Final = {"-m", "--mount"}  # of nsenter: it changes the root
_REPLACED: Final = (stat.S_IFREG, stat.S_IFDIR)  # who may write a device does not replace it
_MAX_LINKS: Final = 40  # as in the kernel
_HIDDEN: Final = 65534  # the owner of files of all users whom a user namespace does not have
_ANYBODY: Final = "a user whom this user namespace does not have"
_ALL_USERS: Final = ["0", "0", "4294967295"]


class ProgramOutput(NamedTuple):
    """The exit status of a program, and what it said until its end."""

    status: int
    stdout: str
    stderr: str = ""  # where it is not in `stdout`


class TooMuchOutput(OSError):
    """A program said more than it may, and was ended for it."""


async def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    deadline: float | None = None,
    stdin: bytes = b"",
    stderr: int = STDOUT,
    most: int | None = None,
    own: bool = True,
) -> ProgramOutput:
    """Run the command, at most `deadline` seconds. What it leaves running, as a daemon, may have
    its streams open still. `stdin` is what a pipe holds at most, `most` the bytes that a stream may
    have; without it the end of each is kept. Without `own` it may be anybody's.

    Raises OSError when it cannot be run, TooMuchOutput, and TimeoutError when it is late. It and
    what it started is ended then, and when this is cancelled, or this process ends.
    """
    if own:
        require_own(command, environment.get("PATH"))
    with ExitStack() as opened:
        streams = [_Stream(most or _BLOCK, opened) for _ in range(2 if stderr == PIPE else 1)]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE if stdin else DEVNULL,
                stdout=streams[0].its_end,
                stderr=streams[1].its_end if stderr == PIPE else stderr,
                env=environment,
                cwd="/",
                start_new_session=True,  # what a wrapper starts goes with it
            )
        finally:
            for stream in streams:
                os.close(stream.its_end)
        _running.add(process)
        try:
            for stream in streams:
                stream.follow(lambda: _kill(process) if most else None)
            if process.stdin is not None:
                process.stdin.write(stdin)
                process.stdin.close()
            async with asyncio.timeout(deadline):
                status = await process.wait()
        finally:
            await _end(process)
        for stream in streams:
            stream.read()  # its last words
        if most and any(stream.is_cut for stream in streams):
            raise TooMuchOutput
        return ProgramOutput(status, *(s.said.decode(errors="replace") for s in streams))


class _Stream:
    """What a program says on a pipe, of which the last bytes are `kept`. Those that asyncio makes
    are waited for until all programs have closed them.
    """

    def __init__(self, kept: int, opened: ExitStack) -> None:
        self.said = bytearray()
        self.is_cut = False
        self._kept = kept
        self._output, self.its_end = os.pipe()
        os.set_blocking(self._output, False)
        opened.callback(os.close, self._output)
        opened.callback(asyncio.get_running_loop().remove_reader, self._output)

    def follow(self, on_cut: Callable[[], object]) -> None:
        self._on_cut = on_cut
        asyncio.get_running_loop().add_reader(self._output, self.read)

    def read(self) -> None:
        with suppress(BlockingIOError, ProcessLookupError):  # nothing new; it ended
            block = os.read(self._output, _BLOCK)
            self.said += block
            if not block:
                asyncio.get_running_loop().remove_reader(self._output)
            elif len(self.said) > self._kept:
                self.is_cut = True
                del self.said[: -self._kept]
                self._on_cut()


def require_own(command: Sequence[str], path: str | None, root: str = "") -> None:
    """Raise PermissionError, with what mends it, where others than root and this process' user may
    replace the program, or what the command names by an absolute path, such as a script: it would
    have our rights. All is looked for below `root`, which chroot and nsenter change, a program
    without a folder in `path`. What is not found is left to the call that runs it, which blocks no
    less than this.
    """
    program, *words = command
    if "/" not in program and root:  # whose links are not ours
        places = (f"{folder}/{program}" for folder in (path or PATH).split(":"))
        program = next((place for place in places if os.path.lexists(root + place)), "")
    elif "/" not in program:
        program = shutil.which(program, path=path) or ""
    plain = [word for word in words if not word.startswith("-")]
    match Path(program).name, plain:
        case "chroot", [folder, *inside]:
            plain, below = [folder], f"{root}/{folder.strip('/')}".rstrip("/")
        case "nsenter", [target, *inside] if target.isdecimal() and _MOUNTS & {*words}:
            plain, below = [], f"/proc/{target}/root"
        case _:
            inside, below = [], root
    for word in (program, *(word for word in plain if word.startswith("/"))):
        if word not in {"", sys.executable}:  # by which we are run ourselves
            _require_own(word, Path(root or "/"))
    if inside:
        require_own(inside, path, below)


def _require_own(path: str, root: Path) -> None:
    for place in _way_to(path, root):
        try:
            status = place.lstat()
        except OSError:  # nobody can run it either
            return
        owner, mode = status.st_uid, status.st_mode
        group = 0 if status.st_gid in (0, os.getegid()) else stat.S_IWGRP
        sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX  # nobody may replace another's there
        if owner == _HIDDEN and not _sees_all_users():
            why = f"{place} belongs to {_ANYBODY}: run the agent outside of it"
        elif owner not in (0, os.geteuid()):
            why = f"user {owner} could replace {place}: `chown root {place}`"
        elif mode & (stat.S_IWOTH | group) and stat.S_IFMT(mode) in _REPLACED and not sticky:
            why = f"other users could replace {place}: `chmod go-w {place}`"
        else:
            continue
        raise PermissionError(errno.EPERM, f"{why}, or keep it elsewhere")


def _sees_all_users() -> bool:
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split() == _ALL_USERS


def _way_to(path: str, root: Path) -> Iterator[Path]:
    """All that decides what the file is: its folders, links and their targets, and itself."""
    place, left, links = root, path.split("/")[::-1], 0
    yield place
    while left and links <= _MAX_LINKS:
        name = left.pop()
        if name == "..":
            place = root if place == root else place.parent
        elif name not in ("", "."):
            place /= name
            yield place
            if place.is_symlink():
                target = str(place.readlink())
                left += target.split("/")[::-1]
                place, links = root if target.startswith("/") else place.parent, links + 1


async def _end(process: Process) -> None:
    """Leave no process behind, and wait for none that cannot be killed."""
    _running.discard(process)
    _kill(process)
    await ends_within(_ENDING, process.wait())


@atexit.register
def _kill_running() -> None:
    """They may be run by threads that nothing waits for, such as those that read credentials."""
    for process in tuple(_running):
        _kill(process)


def _kill(process: Process) -> None:
    if process.returncode is None:  # else its number may be that of another group
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
