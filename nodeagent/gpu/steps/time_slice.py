"""Reads and sets a GPU's time slice with `nvidia-smi compute-policy`; NVML has no call for it.

The words of the program are those of nvidia-smi 535.261.03 and 550.163.01, read from the programs
themselves; both have the same. Its documentation has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nodeagent.errors import DriverError
from nodeagent.gpu.nvidia_smi import run_nvidia_smi
from nodeagent.gpu.nvml_errors import NO_PERMISSION, NOT_SUPPORTED
from nodeagent.plan.shares import TimeSlice

# What --set-timeslice takes: "0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG".
_NUMBERS: Final = {
    TimeSlice.DEFAULT: 0,
    TimeSlice.SHORT: 1,
    TimeSlice.MEDIUM: 2,
    TimeSlice.LONG: 3,
}
_NAMES: Final = {"timeslice", "time-slice"}  # of the policy, without spaces
_FAILED: Final = "TimeSliceFailed"


async def read_time_slice(
    nvidia_smi: Sequence[str], gpu: str, *, deadline: float
) -> TimeSlice | None:
    """The time slice of the GPU of that UUID; None when the program's words do not tell it.

    `deadline` in seconds. Raises DriverError when the program cannot be run, fails or is late.
    """
    arguments = ["compute-policy", "-i", gpu, "--list"]
    ended = await run_nvidia_smi(nvidia_smi, arguments, deadline=deadline)
    if ended.status != 0:
        raise ended.failed(_FAILED, remedy=_remedy(ended.status))
    return listed_time_slice(ended.output)


async def set_time_slice(
    nvidia_smi: Sequence[str], gpu: str, time_slice: TimeSlice, *, deadline: float
) -> None:
    """Set it and read it back; `deadline` in seconds, for each run of the program.

    Raises DriverError with what the program said.
    """
    if await read_time_slice(nvidia_smi, gpu, deadline=deadline) is time_slice:
        return
    arguments = ["compute-policy", "-i", gpu, f"--set-timeslice={_NUMBERS[time_slice]}"]
    ended = await run_nvidia_smi(nvidia_smi, arguments, deadline=deadline)
    if ended.status != 0:
        raise ended.failed(_FAILED, remedy=_remedy(ended.status))
    found = await read_time_slice(nvidia_smi, gpu, deadline=deadline)
    if found is not time_slice:
        raise DriverError(
            f"the time slice was to become {time_slice} and nvidia-smi reported success, but it is "
            f"{found or 'not told by nvidia-smi compute-policy --list'}",
            code=None,
            name=_FAILED,
            call="nvidia-smi",
            remedy="look at the output of `nvidia-smi compute-policy --list`",
        )


def listed_time_slice(output: str) -> TimeSlice | None:
    """What a list of one GPU says; None when it is not one time slice that is known.

    A row is `|   0   Timeslice       Default       |`: the GPU's index, a name and a value.
    """
    values = set()
    for line in output.splitlines():
        match line.replace("|", " ").lower().split():
            case [index, *name, value] if index.isdecimal() and "".join(name) in _NAMES:
                values.add(value)
    known = {time_slice for time_slice in TimeSlice if time_slice.value in values}
    return known.pop() if len(known) == len(values) == 1 else None


def _remedy(status: int) -> str:
    """nvidia-smi's exit status is NVML's code."""
    if status == NO_PERMISSION:
        return "run nodeagent as root"
    if status == NOT_SUPPORTED:
        return "leave timeSlice out of the plan for this GPU"
    return "see what `nvidia-smi compute-policy --list` says on this node"
