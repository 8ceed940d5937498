"""Runs a program to its end: without a shell, within a deadline, in a named environment."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

from nodeagent.waiting import ends_within

_MAX_OUTPUT = 1 << 16  # bytes of the end of what it says that are kept; what a pipe holds, too
_ENDING = 2.0  # seconds for a killed program to be gone; in the driver it may stay for ever


async def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    deadline: float,
    stderr: int = asyncio.subprocess.STDOUT,
) -> tuple[int, str]:
    """Run the command, at most `deadline` seconds; returns its exit status and what it said on both
    streams until its end. What it leaves running, as a daemon, may have these open still.

    Raises OSError when it cannot be run, TimeoutError when it is late. It and what it started is
    ended then, and when this is cancelled.
    """
    loop, said = asyncio.get_running_loop(), bytearray()
    output, its_output = os.pipe()  # asyncio waits for its own until all have closed it
    os.set_blocking(output, False)

    def read() -> None:
        with suppress(BlockingIOError):
            block = os.read(output, _MAX_OUTPUT)
            said.extend(block)
            del said[:-_MAX_OUTPUT]
            if not block:
                loop.remove_reader(output)

    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=its_output,
                stderr=stderr,
                env=environment,
                cwd="/",
                start_new_session=True,  # what a wrapper starts goes with it
            )
        finally:
            os.close(its_output)
        loop.add_reader(output, read)
        try:
            async with asyncio.timeout(deadline):
                status = await process.wait()
        finally:
            await _end(process)
        read()  # its last words
    finally:
        loop.remove_reader(output)
        os.close(output)
    return status, said.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Leave no process behind, and wait for none that cannot be killed."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await ends_within(_ENDING, process.wait())
