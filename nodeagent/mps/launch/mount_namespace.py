"""Gives one thread, and what it starts, a /dev/shm of its own.

The kernel keeps mount namespaces for each thread. So a thread that starts one process and ends can
have another one, with no program in between whose failure would have to be told back.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from threading import Thread

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
    libc = _part()
    source = os.fsencode(directory)
    done = libc.mount(source, _SHARED_MEMORY, None, _MS_BIND, None)
    _check(done, f"{directory} cannot be mounted on /dev/shm")


@lru_cache(maxsize=1)
def can_put_shm() -> bool:
    """Whether this process may do that. Rights, seccomp and security modules all have a say, so it
    is tried, in a thread that ends.
    """
    refused: list[OSError] = []

    def attempt() -> None:
        try:
            _part()
        except OSError as error:
            refused.append(error)

    thread = Thread(target=attempt, name="mount namespace")
    thread.start()
    thread.join()
    return not refused


def _part() -> ctypes.CDLL:
    """Give the calling thread mounts of its own. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount.argtypes = (
        *(ctypes.c_char_p,) * 3,
        ctypes.c_ulong,
        ctypes.c_void_p,
    )
    _check(libc.unshare(_CLONE_NEWNS), "a mount namespace cannot be made")
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "mounts cannot be kept apart")
    return libc


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
