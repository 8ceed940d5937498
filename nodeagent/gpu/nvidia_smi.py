"""Runs nvidia-smi for what NVML has no call for: resetting a GPU, and its time slice.

Without a shell, with a deadline, and with no more of the agent's environment than it needs: what
is meant for the agent alone (its notification socket, settings with secrets) stays with it.

The words of `nvidia-smi compute-policy` are those of nvidia-smi 535.261.03 and 550.163.01, read
from the programs themselves; both have the same. Its documentation has none.
"""

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from nodeagent.errors import DeadlineExceeded, DriverError, GpuInUse
from nodeagent.gpu.nvml_errors import NO_PERMISSION, NOT_SUPPORTED
from nodeagent.plan.shares import TimeSlice
from nodeagent.programs import run_program

_MAX_OUTPUT = 2000  # characters of the program's words that go into an error
# Where programs and the driver's libraries are, which in a container are not the usual places;
# the last two are for the program that stands in for nvidia-smi under simulation.
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "NODEAGENT_SIMULATED_STATE")

# By the number that --set-timeslice takes: "0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG".
_TIME_SLICES: Final = (TimeSlice.DEFAULT, TimeSlice.SHORT, TimeSlice.MEDIUM, TimeSlice.LONG)
_NAMES: Final = {"timeslice", "time-slice"}  # of the policy, without spaces


async def run_nvidia_smi(
    nvidia_smi: Sequence[str],
    arguments: Sequence[str],
    *,
    deadline: float,
    remedy: Callable[[int], str],
) -> str:
    """Run the program to its end, at most `deadline` seconds, and return what it said on both
    streams.

    `nvidia_smi` is the program with leading arguments, if any. Raises DriverError when it cannot
    be run, DeadlineExceeded when it is late and was ended, and DriverError when it fails: with the
    end of what it said, and the `remedy` for its exit status.
    """
    command = [*nvidia_smi, *arguments]
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    try:
        status, said, _ = await run_program(command, environment, deadline=deadline)
    except TimeoutError:
        raise DeadlineExceeded.of(
            "nvidiaSmiLate", command=" ".join(command), seconds=f"{deadline:g}"
        ) from None
    except OSError as error:
        program, why = nvidia_smi[0], error.strerror
        raise DriverError.of("nvidiaSmiNotRun", program=program, why=why) from error
    if status:
        words = " ".join(said.split())[-_MAX_OUTPUT:] or "no output"
        words = f"`{' '.join(command)}` ended with {status}: {words}"
        raise DriverError(words, remedy=remedy(status))
    return said


# --- what it is run for ---------------------------------------------------------------------------


async def reset_gpu(nvidia_smi: Sequence[str], pci_bus_id: str, *, deadline: float) -> None:
    """Run `nvidia-smi --gpu-reset -i ADDRESS` to its end, at most `deadline` seconds.

    NVML must be shut down in this process: the driver resets only a GPU that no process has open.
    Raises GpuInUse where something has it open, and DriverError with the program's output where
    it refuses for another reason; a program that is late is killed.
    """
    try:
        await run_nvidia_smi(
            nvidia_smi,
            ["--gpu-reset", "-i", pci_bus_id],
            deadline=deadline,
            remedy=lambda _: "reboot this machine",
        )
    except DriverError as error:
        if re.search(r"\bin use\b|being used", error.message, re.IGNORECASE):
            raise GpuInUse.of("resetInUse", why=error.message) from error
        raise


async def read_time_slice(
    nvidia_smi: Sequence[str], gpu: str, *, deadline: float
) -> TimeSlice | None:
    """The time slice of the GPU of that UUID; None when the program's output is not understood.

    `deadline` in seconds. Raises DriverError when the program cannot be run, fails or is late.
    """
    return listed_time_slice(await _compute_policy(nvidia_smi, gpu, "--list", deadline=deadline))


async def set_time_slice(
    nvidia_smi: Sequence[str], gpu: str, time_slice: TimeSlice, *, deadline: float
) -> None:
    """Set it and read it back; `deadline` in seconds, for each run of the program.

    Raises DriverError with what the program said.
    """
    option = f"--set-timeslice={_TIME_SLICES.index(time_slice)}"
    await _compute_policy(nvidia_smi, gpu, option, deadline=deadline)
    found = await read_time_slice(nvidia_smi, gpu, deadline=deadline)
    if found is not time_slice:
        shown = found or "not shown by nvidia-smi compute-policy --list"
        raise DriverError.of("timeSliceNotSet", wanted=time_slice, found=shown, uuid=gpu)


async def _compute_policy(
    nvidia_smi: Sequence[str], gpu: str, option: str, *, deadline: float
) -> str:
    arguments = ["compute-policy", "-i", gpu, option]
    return await run_nvidia_smi(
        nvidia_smi, arguments, deadline=deadline, remedy=partial(_remedy, gpu)
    )


def listed_time_slice(output: str) -> TimeSlice | None:
    """The time slice in a list of one GPU; None when it is not exactly one that is known.

    A row is `|   0   Timeslice       Default       |`: the GPU's index, a name and a value.
    """
    values = set()
    for line in output.splitlines():
        match line.replace("|", " ").lower().split():
            case [index, *name, value] if index.isdecimal() and "".join(name) in _NAMES:
                values.add(value)
    known = {time_slice for time_slice in TimeSlice if time_slice.value in values}
    return known.pop() if len(known) == len(values) == 1 else None


def _remedy(gpu: str, status: int) -> str:
    """nvidia-smi's exit status is NVML's code."""
    if status == NO_PERMISSION:
        return "run nodeagent as root"
    if status == NOT_SUPPORTED:
        return "leave timeSlice out of the plan for this GPU"
    return f"read the output of `nvidia-smi compute-policy -i {gpu} --list`"
