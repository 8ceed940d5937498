"""Resets a GPU with nvidia-smi, since NVML has no such call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nodeagent.errors import DeadlineExceeded, DriverError

_MOST_OUTPUT = 2000  # characters of the program's words that go into an error


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
    """Leave no process behind, whatever happened."""
    if process.returncode is None:
        process.kill()
        await process.wait()


def _failed(message: str, *, remedy: str) -> DriverError:
    return DriverError(message, code=None, name="ResetFailed", call="nvidia-smi", remedy=remedy)
