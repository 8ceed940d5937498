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
from typing import NamedTuple

from nodeagent.waiting import ends_within

_BLOCK = 1 << 16  # bytes of the end of what it says that are kept; what a pipe holds, too
_ENDING = 2.0  # seconds for a killed program to be gone; in the driver it may stay for ever
_running: set[Process] = set()


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
        require_own(command[0], environment.get("PATH"))
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


def require_own(program: str, path: str | None) -> None:
    """Raise PermissionError, with the command that mends it, where others than root and this
    process' user may replace the program: it would have our rights. It is looked for in `path`; one
    that is not found is left to the call that runs it, which blocks no less than this.
    """
    found = shutil.which(program, path=path)
    if found is None or program == sys.executable:  # by which we are run ourselves
        return
    for place in _way_to(Path(found).absolute()):
        status = place.lstat()
        owner, mode, why = status.st_uid, status.st_mode, ""
        group = 0 if status.st_gid in (0, os.getegid()) else stat.S_IWGRP
        if owner not in (0, os.geteuid()):
            why = f"{place} belongs to user {owner}, who could replace it: `chown root {place}`"
        elif mode & (stat.S_IWOTH | group) and not (stat.S_ISLNK(mode) or mode & stat.S_ISVTX):
            why = f"other users may write {place}, and replace it: `chmod go-w {place}`"
        if why:
            raise PermissionError(errno.EPERM, f"{why}, or keep the program elsewhere")


def _way_to(path: Path) -> Iterator[Path]:
    """All that decides what the file is: its folders, links and their targets, and itself."""
    for place in (*reversed(path.parents), path):
        yield Path(os.path.normpath(place))  # what `..` follows is no link
        if place.is_symlink():
            target = place.parent / place.readlink() / path.relative_to(place)
            yield from _way_to(target)
            return


async def _end(process: Process) -> None:
    """Leave no process behind, and wait for none that cannot be killed."""
    _running.discard(process)
    if process.returncode is None:
        _kill(process)
        await ends_within(_ENDING, process.wait())


@atexit.register
def _kill_running() -> None:
    """They may be run by threads that nothing waits for, such as those that read credentials."""
    for process in tuple(_running):
        if process.returncode is None:
            _kill(process)


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
