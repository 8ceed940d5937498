"""Keeps a daemon's sockets its own: the kernel says who listens there, and once the daemon has
answered, its user can no longer put anything in their place.

A daemon that runs for a tenant can be replaced by that tenant, whose program could then name
any process as its client, or lead the agent, which is root, to another user's daemon. SO_PEERCRED
gives the process that called listen(2). That detects a replacement and proves no more: that user
can also control the daemon itself (ptrace, a descriptor taken out of it). The control programs of
535 and 550 were seen to work on, `start_server` and `quit` included, with a pipe directory that is
root's; what `quit` cannot remove there, the agent removes.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

from nodeagent.mps.files.directories import seal_pipe_directory
from nodeagent.mps.files.socket_gate import SOCKETS, BackDoor
from nodeagent.mps.processes import Identity

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)

Mark = tuple[int, int, int]  # device, inode and change time, which differ for any other file


class DaemonSockets:
    """The sockets of the daemon `process`. All methods block on the file system."""

    def __init__(self, door: BackDoor, process: Identity) -> None:
        self._door = door
        self._process = process
        self._proven: dict[str, Mark] = {}  # sockets at which this very process was found
        self._sealed = False

    def seal(self) -> None:
        """Make the pipe directory root's; left as it is where this process is not root. Raises
        OSError.
        """
        if not self._sealed:
            seal_pipe_directory(self._door.front)
            self._sealed = True

    def impostor(self) -> str:
        """What replaced the daemon's sockets, in words. "" where all are its own, or where nothing
        listens, which a request to the daemon will show.
        """
        for name in SOCKETS:
            path = Path(self._door.directory) / name
            with suppress(FileNotFoundError):
                found = path.lstat()
                if not stat.S_ISSOCK(found.st_mode):
                    return f"{path} is no socket, in place of the one that the daemon made"
                mark = found.st_dev, found.st_ino, found.st_ctime_ns
                if self._proven.get(name) == mark:
                    continue
                listening = _listening(path)
                if listening is None:
                    continue
                if listening != (self._process.pid, self._process.uid):
                    pid, uid = listening
                    return (
                        f"process {pid} of user {uid} listens at {path} in place of the daemon "
                        f"(pid {self._process.pid} of user {self._process.uid})"
                    )
                self._proven[name] = mark
        return ""

    def proven(self) -> bool:
        """Whether it listens at one of its sockets at least, and no other process at any."""
        return not self.impostor() and bool(self._proven)


def _listening(path: Path) -> tuple[int, int] | None:
    """Pid and uid of the process that listens there; None where none does, or its queue is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        try:
            connection.connect(os.fspath(path))
        except OSError:
            return None
        answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(answer)
    return pid, uid
