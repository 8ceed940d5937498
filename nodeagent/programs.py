"""Runs a program to its end: without a shell, in a named environment, and keeps what it says."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from nodeagent.waiting import ends_within

_BLOCK = 1 << 16  # bytes of the end of what it says that are kept; what a pipe holds, too
_ENDING = 2.0  # seconds for a killed program to be gone; in the driver it may stay for ever


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
) -> ProgramOutput:
    """Run the command, at most `deadline` seconds. What it leaves running, as a daemon, may have
    its streams open still. `stdin` is what a pipe holds at most, `most` the bytes that a stream may
    have; without it the end of each is kept.

    Raises OSError when it cannot be run, TooMuchOutput, and TimeoutError when it is late. It and
    what it started is ended then, and when this is cancelled.
    """
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
        try:
            for stream in streams:
                stream.follow(process.kill if most else lambda: None)
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


async def _end(process: Process) -> None:
    """Leave no process behind, and wait for none that cannot be killed."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await ends_within(_ENDING, process.wait())
