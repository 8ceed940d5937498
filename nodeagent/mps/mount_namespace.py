"""Gives one thread, and what it starts, a /dev/shm of its own.

The kernel keeps mount namespaces for each thread. So a thread that starts one process and ends can
have another one, with no program in between whose failure would have to be told back.
"""

from __future__ import annotations

import ctypes
import os

# <linux/sched.h> and <linux/mount.h>
_CLONE_NEWNS = 0x0002_0000
_MS_BIND = 1 << 12
_MS_REC = 1 << 14
_MS_SLAVE = 1 << 19
_SHARED_MEMORY = b"/dev/shm"


def put_shm(directory: str) -> None:
    """Make `directory` the /dev/shm of the calling thread. There is no way back: it must end soon.

    What is mounted elsewhere later still appears, what is mounted here appears nowhere else.
    Raises OSError whose text says which of the steps was refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount.argtypes = (
        *(ctypes.c_char_p,) * 3,
        ctypes.c_ulong,
        ctypes.c_void_p,
    )
    _check(libc.unshare(_CLONE_NEWNS), "a mount namespace cannot be made")
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "mounts cannot be kept apart")
    source = os.fsencode(directory)
    done = libc.mount(source, _SHARED_MEMORY, None, _MS_BIND, None)
    _check(done, f"{directory} cannot be mounted on /dev/shm")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
