"""A file system in user space that never answers, as any user can mount one."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DEVICE = Path("/dev/fuse")
_MNT_DETACH = 2


def can_mount() -> bool:
    return os.geteuid() == 0 and _DEVICE.exists()


@contextmanager
def silent_file_system(folder: Path, user: int = 0) -> Iterator[None]:
    """Over `folder`. Calls of its user into it wait until the end of the block, and fail then;
    those of others, root included, fail at once.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open(_DEVICE, os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={user},group_id=0".encode()
    try:
        if libc.mount(b"fuse", bytes(folder), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount")
        mounted = os.open(folder, os.O_PATH)  # wherever its path leads by then
        try:
            yield
        finally:
            libc.umount2(f"/proc/self/fd/{mounted}".encode(), _MNT_DETACH)
            os.close(mounted)
    finally:
        os.close(device)
