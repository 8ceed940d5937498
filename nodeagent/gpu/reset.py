"""Resets a GPU with nvidia-smi, since NVML has no such call."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from nodeagent.errors import DeadlineExceeded, DriverError

_MOST_OUTPUT = 2000  # characters of the program's words that go into an error
_ENDING = 2.0  # seconds for a killed program to be gone; in the driver it may stay for ever


async def reset_gpu(nvidia_smi: Sequence[str], pci_bus_id: str, *, deadline: float) -> None:
    """Run `nvidia-smi --gpu-reset -i ADDRESS` to its end, at most `deadline` seconds.

    `nvidia_smi` is the program with leading arguments, if any. It must not be run while this
    process has NVML initialised: the driver resets only a GPU that nobody holds. Raises
    DriverError with what the program said; a program that is late is ended.
    """
    command = [*nvidia_smi, "--gpu-reset", "-i", pci_bus_id]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # what a wrapper starts goes with it
        )
    except OSError as error:
        raise _failed(
            f"{nvidia_smi[0]} cannot be run: {error.strerror}",
            remedy="install nvidia-smi, or set the path of it",
        ) from error
    try:
        async with asyncio.timeout(deadline):
            output, _ = await process.communicate()
    except TimeoutError:
        raise DeadlineExceeded(
            f"`{' '.join(command)}` did not end within {deadline:g} s and was ended",
            code=None,
            name="DeadlineExceeded",
            call="nvidia-smi",
            remedy="see whether nvidia-smi answers at all; else reboot the node",
        ) from None
    finally:
        await _end(process)
    if process.returncode != 0:
        words = " ".join(output.decode(errors="replace").split())[-_MOST_OUTPUT:]
        raise _failed(
            f"`{' '.join(command)}` ended with {process.returncode}: {words or 'no output'}",
            remedy="end what holds the GPU (monitoring agents and display servers too), or reboot",
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Leave no process behind, whatever happened, and wait for none that cannot be killed."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_ENDING):
            await process.wait()


def _failed(message: str, *, remedy: str) -> DriverError:
    return DriverError(message, code=None, name="ResetFailed", call="nvidia-smi", remedy=remedy)
