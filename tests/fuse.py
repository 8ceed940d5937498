"""A file system in user space that never answers, as any user can mount one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DEVICE = Path("/dev/fuse")
_MNT_DETACH = 2


def can_mount() -> bool:
    """Whether this is root on a machine with FUSE."""
    return os.geteuid() == 0 and _DEVICE.exists()


@contextmanager
def silent_file_system(folder: Path) -> Iterator[None]:
    """Over `folder`. Calls into it wait until the end of the block, and fail then."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open(_DEVICE, os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    try:
        if libc.mount(b"fuse", bytes(folder), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount")
        yield
    finally:
        os.close(device)
        libc.umount2(bytes(folder), _MNT_DETACH)
