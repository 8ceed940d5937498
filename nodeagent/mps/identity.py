"""Who a process of MPS is: found by what it is called and which pipe directory it was given.

A pid alone proves nothing, since it is used again; with its start time it does.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"

_VARIABLE = b"CUDA_MPS_PIPE_DIRECTORY="
_ENOUGH = 1 << 14  # bytes; four words, paths among them


@dataclass(frozen=True, slots=True)
class Identity:
    """One process. `start_time` in the kernel's clock ticks since boot, `uid` the effective one,
    `program` its name (CONTROL or SERVER), `pipe_directory` as its environment has it.
    """

    pid: int
    start_time: int
    uid: int
    program: str
    pipe_directory: str


def identify(pid: int) -> Identity | None:
    """Who it is; None when it is gone, a zombie, no program of MPS, or not ours to look at."""
    proc = Path(f"/proc/{pid}")
    try:
        with (proc / "cmdline").open("rb") as file:
            program = _program(file.read(_ENOUGH))  # others may have megabytes of it
        if program is None:
            return None
        # The command in brackets may contain anything, even brackets and blanks.
        fields = (proc / "stat").read_text(errors="replace").rpartition(")")[2].split()
        environment = (proc / "environ").read_bytes().split(b"\0")
        status = (proc / "status").read_text(errors="replace")
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    directory = next((e for e in environment if e.startswith(_VARIABLE)), _VARIABLE)
    uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()
    return Identity(
        pid=pid,
        start_time=int(fields[19]),
        uid=int(uids[2]),
        program=program,
        pipe_directory=os.fsdecode(directory.removeprefix(_VARIABLE)),
    )


def processes_of(pipe_directory: str, program: str) -> tuple[Identity, ...]:
    """All control daemons, or all servers, of one pipe directory. Reads all of /proc: tens of
    milliseconds on a node with many processes.
    """
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal())
    found = (identify(pid) for pid in pids)
    return tuple(
        one
        for one in found
        if one and (one.program, one.pipe_directory) == (program, pipe_directory)
    )


def age_of(process: Identity) -> float:
    """Seconds since its start; 0 where its start time is not known."""
    if process.start_time == 0:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.start_time / os.sysconf("SC_CLK_TCK")


def _program(command_line: bytes) -> str | None:
    """Its name, also where an interpreter runs it; None for anything else.

    A control program without a flag is no daemon but a front-end, which somebody may have left
    open, and which may outlive the daemon that it asked.
    """
    words = [*command_line.split(b"\0"), b""]
    for word, following in itertools.pairwise(words[:4]):
        name = Path(os.fsdecode(word)).name
        if name == SERVER or (name == CONTROL and following.startswith(b"-")):
            return name
    return None
