"""Opens and looks at files of other users without asking a file system of theirs.

Every user may mount one (FUSE) on a directory or file of its own. It is a program that may never
answer, and who waits for it cannot even be killed.
"""

import ctypes
import errno
import os
import struct
from stat import S_IFCHR
from typing import Final, NamedTuple

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_STATX: Final = _LIBC.statx
_LIBC.syscall.restype = ctypes.c_long
_OPENAT2: Final = ctypes.c_long(437)  # the system call's number on every architecture
_HOW_SIZE: Final = ctypes.c_size_t(24)
_NO_XDEV: Final = 0x1  # RESOLVE_NO_XDEV
_UNASKED: Final = 0x4000 | 0x800  # AT_STATX_DONT_SYNC, AT_NO_AUTOMOUNT
_SELF: Final = 0x1000  # AT_EMPTY_PATH
_TYPE: Final = 0x1  # STATX_TYPE
_SIZE, _MODE = 256, 28  # of struct statx, and where its mode is
_STATUS: Final = struct.Struct("=H98x4I")  # the mode, and from 128 on the numbers of the devices


class UnaskedStatus(NamedTuple):
    """What the kernel knows of a file: whether it is a character device, that device's numbers, and
    those of the one on which it lies.
    """

    is_character_device: bool
    device: tuple[int, int]
    lies_on: tuple[int, int]


def status_of(name: str, directory: int) -> UnaskedStatus | None:
    """The status of a file in an open directory, or with "" of what is open. None where there is
    none, or one at which only its owner may look. Takes some 5 µs.
    """
    found = ctypes.create_string_buffer(_SIZE)
    flags = _UNASKED if name else _UNASKED | _SELF
    if _STATX(directory, name.encode(), flags, _TYPE, found):
        return None
    mode, major, minor, on_major, on_minor = _STATUS.unpack_from(found, _MODE)
    return UnaskedStatus(mode & 0o170000 == S_IFCHR, (major, minor), (on_major, on_minor))


def open_below(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """Open as `os.open` does in an open directory, whose file system `path` must not leave: raises
    OSError (EXDEV) where anything is mounted on the way.
    """
    how = struct.pack("=3Q", flags | os.O_CLOEXEC, mode, _NO_XDEV)
    opened: int = _LIBC.syscall(_OPENAT2, directory, os.fsencode(path), how, _HOW_SIZE)
    if opened >= 0:
        return opened
    number = ctypes.get_errno()
    if number in {errno.ENOSYS, errno.EPERM}:  # a kernel before 5.6, or a filter of system calls
        return os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=directory)
    mounted = number == errno.EXDEV
    words = "another file system is mounted there" if mounted else os.strerror(number)
    raise OSError(number, words, path)
