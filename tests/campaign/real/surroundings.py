"""What the agent has of the machine for itself on one day: a wall clock that can be set, and disks
that can be full or read-only.
"""

import ctypes
import os
import shutil
import struct
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.campaign.truth import DISK
from tests.folders import lasting_folder

_SIZE = 8 << 20  # bytes of each
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 1 << 14, 1 << 18


class WallClock:
    """`jump`: by how many seconds it was set."""

    def __init__(self, folder: Path) -> None:
        self.jump = 0
        self._file = folder / "clock"
        self._write()

    @property
    def settings(self) -> dict[str, str]:
        library = clock_library()
        return {"LD_PRELOAD": str(library), "CAMPAIGN_CLOCK": str(self._file)} if library else {}

    def set_by(self, seconds: float) -> None:
        if clock_library():
            self.jump += int(seconds)
            self._write()

    def _write(self) -> None:
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("l", self.jump))  # in place, since the file is mapped


@cache
def clock_library() -> Path | None:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    folder = lasting_folder("campaign-clock-")
    library, source = folder / "wall_clock.so", Path(__file__).with_name("wall_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


class Disks:
    """One for each of these directories; none where this user can mount nothing."""

    def __init__(self, directories: list[Path]) -> None:
        self._disks = directories if directories and _has_own_mounts() else []
        for disk in self._disks:
            disk.mkdir(parents=True, exist_ok=True)
            _mount("-t", "tmpfs", "-o", f"size={_SIZE},mode=755", DISK, disk)

    def fill(self, name: str, pages: int) -> None:
        """Leave so many pages free, on that one or on all."""
        for disk in self._disks:
            if disk.name == name or not name:
                with suppress(OSError), self._filler(disk).open("wb", buffering=0) as file:
                    found = os.statvfs(disk)
                    free = max(0, found.f_bavail - pages) * found.f_bsize
                    file.write(bytes(free))

    def make_read_only(self, name: str) -> None:
        """That one, unless a file is being written there."""
        for disk in self._disks:
            if disk.name == name:
                _mount("-o", "remount,ro", disk, check=False)

    def recover(self) -> None:
        for disk in self._disks:
            _mount("-o", "remount,rw", disk)
            self._filler(disk).unlink(missing_ok=True)

    def close(self) -> None:
        for disk in self._disks:
            subprocess.run(["umount", "--lazy", disk], check=True)

    def _filler(self, disk: Path) -> Path:
        return disk / ".filler"


def _mount(*arguments: str | Path, check: bool = True) -> None:
    subprocess.run(["mount", *arguments], check=check, stderr=subprocess.DEVNULL)


@cache
def _has_own_mounts() -> bool:
    """Whether what this process mounts is seen, from now on, by it and its children alone."""
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNS):
        return False
    return not libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
