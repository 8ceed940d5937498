"""Runs a program to its end: without a shell, within a deadline, in a named environment."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

_MAX_OUTPUT = 1 << 16  # bytes of the end of what it says that are kept
_BLOCK = 1 << 16
_ENDING = 2.0  # seconds for a killed program to be gone; in the driver it may stay for ever


async def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    deadline: float,
    stderr: int = asyncio.subprocess.STDOUT,
) -> tuple[int, str]:
    """Run the command, at most `deadline` seconds; returns its exit status and what it said on both
    streams, which end when all that it started has closed them.

    Raises OSError when it cannot be run, TimeoutError when it is late. It and what it started is
    ended then, and when this is cancelled.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env=environment,
        cwd="/",
        start_new_session=True,  # what a wrapper starts goes with it
    )
    said = b""
    try:
        async with asyncio.timeout(deadline):
            while process.stdout and (block := await process.stdout.read(_BLOCK)):
                said = (said + block)[-_MAX_OUTPUT:]
            status = await process.wait()
    except BaseException:
        await _end(process)
        raise
    return status, said.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Leave no process of its group behind, and wait for none that cannot be killed. A wrapper may
    have ended before what it started.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_ENDING):
            await process.wait()
