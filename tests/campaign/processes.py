"""The real processes of the machine: MPS daemons, their servers, and the programs that ask them.

They take real time, in which the machine's stands still as long as one of them is at work.
"""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from tests.simulation.mps.rig import programs_of

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_AT_WORK = {"R", "D"}
_PATH = "/usr/bin:/bin"
_UNREAPED = 0.05  # real seconds in which the one who waits for a process notices its end
_ended: dict[int, float] = {}  # pids of zombies, and since when


def adopt_orphans() -> None:
    """What a process that ends leaves behind becomes a child of this one."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Have this process get SIGTERM when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def programs() -> Path:
    """Where the stand-ins for MPS are."""
    return programs_of("580")


def are_at_work() -> bool:
    """Whether any of them has something to do, or has just ended, or is just being started. In one
    look each can be seen asleep that wakes another, which was looked at before, and falls asleep.
    """
    return _is_one_at_work() or _is_one_at_work()


def _is_one_at_work() -> bool:
    found = dict(_descendants())
    now = time.perf_counter()
    for pid in [pid for pid in _ended if found.get(pid) != "Z"]:
        del _ended[pid]
    for pid, state in found.items():
        if state in _AT_WORK:
            return True
        if state == "Z" and now - _ended.setdefault(pid, now) < _UNREAPED:
            return True
    return any(thread.name == "mps start" for thread in threading.enumerate())


def exist() -> bool:
    return any(True for _ in _descendants())


def send(pid: int, number: int) -> None:
    """A signal, to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def end_all() -> None:
    with suppress(ChildProcessError):
        while True:
            for pid, _ in _descendants():
                send(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def reap_orphans(but: Collection[int]) -> None:
    """What processes left to this one when they ended goes, once it has ended, too; `but` are
    those that are waited for elsewhere.
    """
    for pid in set(_children(os.getpid())) - set(but):
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def daemons(folder: Path) -> dict[str, list[int]]:
    """The control daemons with their files below the folder, by device."""
    found: dict[str, list[int]] = {}
    for pid, state in _descendants():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if state == "Z" or b"-f" not in words:  # else it asks one
                continue
            if device := _device(pid, folder):
                found.setdefault(device, []).append(pid)
    return found


def thread_limits(folder: Path) -> dict[str, str]:
    """What each of them answers, by device; real time passes meanwhile."""
    found = {}
    for device in daemons(folder):
        asked = subprocess.run(
            ["timeout", "2", programs() / "nvidia-cuda-mps-control"],
            input="get_default_active_thread_percentage\n",
            env={"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/run/mps/{device}/pipe", "PATH": _PATH},
            capture_output=True,
            text=True,
            check=False,
        )
        found[device] = asked.stdout.strip() or asked.stderr.strip()
    return found


def daemon(folder: Path, number: int) -> int | None:
    """One of the control daemons, chosen by a number; None where there is none."""
    pids = [pid for _, pids in sorted(daemons(folder).items()) for pid in pids]
    return pids[number % len(pids)] if pids else None


def others(devices: Collection[str], folder: Path) -> Iterator[tuple[int, str]]:
    """Pids and commands of the processes that have nothing to do with MPS on these devices."""
    for pid, state in _descendants():
        with suppress(OSError):
            if state != "Z" and _device(pid, folder) not in devices:
                yield pid, Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def _device(pid: int, folder: Path) -> str:
    """Whose MPS daemon a process is or asks, by its environment; "" for none in this folder."""
    for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        name, _, place = entry.decode().partition("=")
        if name == "CUDA_MPS_PIPE_DIRECTORY" and place.startswith(f"{folder}/"):
            return Path(place).parent.name
    return ""


def _descendants() -> Iterator[tuple[int, str]]:
    """Pids and states of all processes below this one."""
    pending = _children(os.getpid())
    while pending:
        pid = pending.pop()
        with suppress(OSError):
            yield pid, _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0].decode()
            pending += _children(pid)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - quick
            with suppress(OSError):
                found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    return found


def _read(path: str) -> bytes:
    """All of a file of the kernel's, quickly: it is asked for many times a second."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)
