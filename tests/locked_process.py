"""A process whose memory is locked up in the kernel: who reads its words or its environment waits,
as for one that hangs in a driver. Any user can have one who has a file system that does not answer.
"""

import ctypes
import os
import select
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_TIMEOUT = 20.0  # seconds after which its memory can be read: who waits in vain goes on then
_LOCKED = 0.3  # seconds that a reader has waited when it is held to be locked
# It reads a page of such a file by way of its own memory, which has others wait who want to change
# that, and then wants to: so every later reader waits, too.
_PROGRAM = """
import mmap, os, sys, threading, time
with open("/proc/self/comm", "w") as comm:
    comm.write(sys.argv[2])
page = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 4096, prot=mmap.PROT_READ)
with open("/proc/self/maps") as maps:
    [line] = [line for line in maps if line.rstrip().endswith(sys.argv[1])]
memory = os.open("/proc/self/mem", os.O_RDONLY)
threading.Thread(target=os.pread, args=(memory, 1, int(line.split("-")[0], 16))).start()
print("up", flush=True)
while True:
    time.sleep(0.02)
    mmap.mmap(-1, 4096)
"""
_REQUEST = struct.Struct("<IIQ")  # <linux/fuse.h>: fuse_in_header begins with these
_ATTRIBUTES = struct.pack("<6Q10I", 2, 4096, 8, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0)
_ANSWERS = {
    26: struct.pack("<IIIIHHI", 7, 13, 4096, 0, 0, 0, 4096),  # INIT
    1: struct.pack("<4Q2I", 2, 0, 3600, 3600, 0, 0) + _ATTRIBUTES,  # LOOKUP
    14: struct.pack("<QII", 1, 0, 0),  # OPEN
}
_READ, _FORGET, _NO_SUCH_CALL, _FAILED = 15, 2, -38, -5


class _MuteFiles:
    """A file system with one file, which has no content until `end`, and then fails."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._asked: list[int] = []
        self._ended = False
        self.stopped = False
        self._lock = threading.Lock()

    def serve(self) -> None:
        while not self.stopped:
            if select.select([self._channel], [], [], 0.05)[0]:
                request = os.read(self._channel, 1 << 18)
                _, call, unique = _REQUEST.unpack_from(request)
                if call == _READ:
                    with self._lock:
                        self._asked.append(unique)
                    if self._ended:
                        self.end()
                elif call != _FORGET:
                    self._answer(unique, _ANSWERS.get(call, b""), _NO_SUCH_CALL)

    def end(self) -> None:
        self._ended = True
        with self._lock:
            for unique in self._asked:
                self._answer(unique, b"", _FAILED)
            self._asked.clear()

    def _answer(self, unique: int, body: bytes, error: int) -> None:
        head = struct.pack("<IiQ", 16 + len(body), 0 if body else error, unique)
        with suppress(OSError):  # it waits no more
            os.write(self._channel, head + body)


@contextmanager
def _mute_file() -> Iterator[tuple[str, Callable[[], None]]]:
    libc = ctypes.CDLL(None, use_errno=True)
    with tempfile.TemporaryDirectory(prefix="mute-") as folder:
        Path(folder).chmod(0o755)
        try:
            channel = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            pytest.skip("FUSE is not to be had here")
        options = f"fd={channel},rootmode=40000,user_id=0,group_id=0,allow_other"
        if libc.mount(b"mute", folder.encode(), b"fuse", 6, options.encode()) != 0:
            os.close(channel)
            pytest.skip("FUSE is not to be had here")
        files = _MuteFiles(channel)
        serving = threading.Thread(target=files.serve)
        serving.start()
        try:
            yield f"{folder}/page", files.end
        finally:
            files.end()
            files.stopped = True
            serving.join()
            os.close(channel)
            libc.umount2(folder.encode(), 2)  # MNT_DETACH


def _read_words(pid: int) -> None:
    with suppress(OSError):
        Path(f"/proc/{pid}/cmdline").read_bytes()


@contextmanager
def locked_process(
    *, uid: int, environment: Mapping[str, str], name: str = "python3"
) -> Iterator[int]:
    """Its pid. Takes root. `name` is what the kernel calls it."""
    with _mute_file() as (file, end_waiting):
        child = subprocess.Popen(
            ["/usr/bin/python3", "-ISc", _PROGRAM, file, name],
            stdout=subprocess.PIPE,
            env=environment,
            user=uid,
            group=uid,
            extra_groups=(),
        )
        end = threading.Timer(_TIMEOUT, end_waiting)
        end.start()
        readers: list[threading.Thread] = []
        try:
            assert child.stdout
            assert child.stdout.readline() == b"up\n"
            while not readers or not readers[-1].is_alive():
                readers.append(threading.Thread(target=_read_words, args=(child.pid,)))
                readers[-1].start()
                readers[-1].join(_LOCKED)
            yield child.pid
        finally:
            end.cancel()
            child.kill()
            end_waiting()
            child.communicate()
            for reader in readers:
                reader.join()
