"""Which device files of a driver a process has open, as the kernel knows it.

Paths prove nothing here: they are names in the mount namespace of the process, which can give any
file or device any name. So each descriptor's file is looked at, without asking its file system:
that may be a program of the process' owner (FUSE), which never answers.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeagent.files.unasked import status_of
from nodeagent.plan.remedies import end_commands
from nodeagent.plan.users import User
from nodeagent.processes import cgroup_of, name_of, service_of

_O_PATH: Final = 0o10000000  # a name for the file alone, which needs no right to the device


def driver_major(driver: str, proc_root: Path) -> int | None:
    """The number of a driver's character devices, None where it has none. Raises OSError."""
    characters = (proc_root / "devices").read_text().partition("Block devices:")[0]
    found = re.search(rf"^\s*([0-9]+) {re.escape(driver)}$", characters, re.MULTILINE)
    return int(found[1]) if found else None


def open_minors(process: str, major: int) -> set[int]:
    """Minor numbers of the driver's files that are open in `process` (/proc/PID); none if it has
    ended. Raises OSError where that cannot be seen.
    """
    minors: set[int] = set()
    try:
        directory = os.open(f"{process}/fd", os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return minors
    try:
        if status_of("", directory) is None:  # then it would say nothing of the files
            raise OSError(f"the kernel does not say what {process} has open")
        with os.scandir(directory) as entries:  # one by one: a process may have millions
            for entry in entries:
                found = status_of(entry.name, directory)  # None where the file was closed
                if not found or not found.is_character_device or found.device[0] != major:
                    continue
                minor = found.device[1]
                if minor not in minors and _is_open(f"{process}/fdinfo/{entry.name}"):
                    minors.add(minor)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended
    finally:
        os.close(directory)
    return minors


def _is_open(descriptor: str) -> bool:
    """Whether a descriptor (/proc/PID/fdinfo/N) is there, and more than a name for its file."""
    try:
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123  # a Path takes longer
            found = re.search(rb"^flags:\s*([0-7]+)", file.read(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not found or not int(found[1], 8) & _O_PATH


# --- who has a GPU open -----------------------------------------------------------------------


def holders(minor: int, proc_root: Path) -> tuple[User, ...]:
    """The processes with /dev/nvidiaN open, as far as they may be seen. NVML lists only those that
    work on it, so not nvidia-persistenced, DCGM or a display server. Raises nothing; blocks.
    """
    found = []
    with suppress(OSError):
        major = driver_major("nvidia", proc_root) or driver_major("nvidia-frontend", proc_root)
        for entry in sorted(proc_root.iterdir()):
            with suppress(OSError):
                if major and entry.name.isdecimal() and minor in open_minors(str(entry), major):
                    found.append(User(int(entry.name), name_of(int(entry.name)), "device file"))
    return tuple(found)


def commands_to_end(users: Iterable[User], proc_root: Path) -> str:
    """Commands that end the users; those of services stop these, or systemd would restart them."""
    services: set[str] = set()
    others = []
    for user in users:
        if service := service_of(cgroup_of(user.pid, proc_root) or ""):
            services.add(service)
        else:
            others.append((user.pid, user.namespace, user.pod))
    stop = f"`systemctl stop {' '.join(sorted(services))}`" if services else ""
    return " and ".join(filter(None, (stop, end_commands(others))))
