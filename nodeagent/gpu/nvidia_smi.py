"""Runs nvidia-smi, for the few things that the driver does and NVML has no call for.

Without a shell, with a deadline, and with no more of the agent's environment than it needs: what
is meant for the agent alone (its notification socket, settings with secrets) stays with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nodeagent.errors import DeadlineExceeded, DriverError

_MOST_OUTPUT = 2000  # characters of the program's words that go into an error
_ENDING = 2.0  # seconds for a killed program to be gone; in the driver it may stay for ever
# Where programs and the driver's libraries are, which in a container are not the usual places;
# the last two are for the program that stands in for nvidia-smi under simulation.
_INHERITED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "NODEAGENT_SIMULATED_STATE",
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: its exit status, and what it said on both streams."""

    command: str
    status: int
    output: str

    def failed(self, name: str, *, remedy: str) -> DriverError:
        """The error for it: what was run, how it ended, and the end of what it said."""
        words = " ".join(self.output.split())[-_MOST_OUTPUT:]
        return _error(
            f"`{self.command}` ended with {self.status}: {words or 'no output'}",
            name=name,
            remedy=remedy,
        )


async def run_nvidia_smi(
    nvidia_smi: Sequence[str], arguments: Sequence[str], *, deadline: float
) -> Ended:
    """Run the program to its end, at most `deadline` seconds; then it is ended.

    `nvidia_smi` is the program with leading arguments, if any. Raises DriverError when it cannot
    be run, and DeadlineExceeded when it is late; whether it did its work, the caller judges.
    """
    command = [*nvidia_smi, *arguments]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_environment(os.environ),
            start_new_session=True,  # what a wrapper starts goes with it
        )
    except OSError as error:
        raise _error(
            f"{nvidia_smi[0]} cannot be run: {error.strerror}",
            name="ProgramMissing",
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
    status = process.returncode
    assert status is not None  # noqa: S101  # it was waited for
    return Ended(" ".join(command), status, output.decode(errors="replace"))


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    return {name: inherited[name] for name in _INHERITED if name in inherited}


async def _end(process: asyncio.subprocess.Process) -> None:
    """Leave no process behind, whatever happened, and wait for none that cannot be killed."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_ENDING):
            await process.wait()


def _error(message: str, *, name: str, remedy: str) -> DriverError:
    return DriverError(message, code=None, name=name, call="nvidia-smi", remedy=remedy)
