"""A process as a hostile tenant may make it: any name, and any memory shown as its environment.

Prints a line when it is ready, then waits for its standard input to end. Takes its name, how many
bytes of zeros stand in the place of its command line and its environment (0: its own stay), and
the user that it becomes.
"""

import ctypes
import os
import sys
from pathlib import Path

_PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 35, 14
_PRIVATE_ANONYMOUS_WITHOUT_RESERVE = 0x02 | 0x20 | 0x4000

libc = ctypes.CDLL(None, use_errno=True)


_ADDRESSES = (
    *("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack"),
    *("arg_start", "arg_end", "env_start", "env_end", "auxv"),
)


class MemoryMap(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in _ADDRESSES),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def show(size: int) -> None:
    """Let the command line and the environment be `size` zeros; they take no memory of ours."""
    libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.sbrk.argtypes = [ctypes.c_long]
    start = libc.mmap(None, size, 3, _PRIVATE_ANONYMOUS_WITHOUT_RESERVE, -1, 0)
    stat = Path("/proc/self/stat").read_text()
    fields = ["", "", "", *stat.rpartition(")")[2].split()]  # by their numbers in proc(5)
    made = MemoryMap(
        *(int(fields[number]) for number in (26, 27, 45, 46, 47)),
        libc.sbrk(0),
        int(fields[28]),
        *(start, start + size) * 2,
        exe_fd=0xFFFF_FFFF,
    )
    if libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(made), ctypes.sizeof(made), 0):
        sys.exit(f"prctl: {ctypes.get_errno()}")


if __name__ == "__main__":
    uid = int(sys.argv[3])
    os.setresuid(uid, uid, uid)
    if int(sys.argv[2]):
        show(int(sys.argv[2]))
    libc.prctl(_PR_SET_NAME, sys.argv[1].encode(), 0, 0, 0)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
