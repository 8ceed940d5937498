"""The sockets of a daemon: hidden from new clients while it drains, and proven to be its own.

`quit` cannot be taken back, and as long as a daemon is found, new clients come. But its sockets can
be renamed: connected clients stay connected, new ones find no MPS, which under EXCLUSIVE_PROCESS is
loud, and the agent itself connects through a sibling directory that only it can enter. Seen to work
on 535 and 550. Where the sockets are is the whole state, so the next agent can put them back after
a crash.

A daemon that runs for a tenant can be replaced by that tenant, whose program could then name any
process as its client, or lead the agent, which is root, to another user's daemon. SO_PEERCRED gives
the process that called listen(2). That detects a replacement and proves no more: that user can also
control the daemon itself (ptrace, a descriptor taken out of it). The control programs of 535 and
550 were seen to work on, `start_server` and `quit` included, with a pipe directory that is root's;
what `quit` cannot remove there, the agent removes.
"""

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

from nodeagent.mps.files.directories import empty, remove_tree
from nodeagent.mps.processes import MpsProcess

BACK = "back"  # no longer than `pipe`, whose sockets' paths were checked to be short enough
SOCKETS = ("control_privileged", "control")

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)

Mark = tuple[int, int, int]  # device, inode and change time, which differ for any other file


class DaemonSockets:
    """The sockets of the daemon with this pipe directory. File system errors come as OSError."""

    def __init__(self, pipe_directory: str) -> None:
        self.front = Path(pipe_directory)
        self._back = self.front.with_name(BACK)
        self._proven: dict[str, tuple[MpsProcess, Mark]] = {}  # at which a process was found

    @property
    def hidden(self) -> bool:
        return any(os.path.lexists(self._back / name) for name in SOCKETS)

    @property
    def directory(self) -> str:
        """The directory in which the agent finds the daemon's sockets."""
        return str(self._back if self.hidden else self.front)

    @property
    def listens(self) -> bool:
        """Whether there is a socket at all; costs two system calls."""
        return self.hidden or os.path.lexists(self.front / "control")

    def keep(self, *, hidden: bool) -> None:
        """Hidden, new clients find nothing from here on. Else they are as they were, but for what a
        later daemon has put in place meanwhile. What is so already is left alone.
        """
        source, target = (self.front, self._back) if hidden else (self._back, self.front)
        if hidden:
            self._back.mkdir(mode=0o700, exist_ok=True)
        for name in SOCKETS:
            if not os.path.lexists(source / name):
                continue
            if not hidden and (os.path.lexists(target / name) or not target.is_dir()):
                (source / name).unlink()
            else:
                (source / name).rename(target / name)

    def clear(self) -> None:
        """Take away all that a dead daemon left, or another process has put there. Its lock may be
        held by any process that could open it, which would keep the next daemon from starting. The
        pipe directory itself stays: containers have it mounted. Blocks on the file system.
        """
        remove_tree(self._back)
        with suppress(FileNotFoundError):
            empty(self.front)

    def impostor(self, daemon: MpsProcess) -> str:
        """What replaced the sockets of this daemon, in words. "" where all are its own, or where
        nothing listens, which a request to the daemon will show. Blocks on the file system.
        """
        for name in SOCKETS:
            path = Path(self.directory) / name
            with suppress(FileNotFoundError):
                found = path.lstat()
                if not stat.S_ISSOCK(found.st_mode):
                    return f"{path} is not a socket, in place of the one that the daemon made"
                proof = daemon, (found.st_dev, found.st_ino, found.st_ctime_ns)
                if self._proven.get(name) == proof:
                    continue
                listening = _listening(path)
                if listening is None:
                    continue
                if listening != (daemon.pid, daemon.uid):
                    pid, uid = listening
                    return (
                        f"process {pid} of user {uid} listens at {path} in place of the daemon "
                        f"(pid {daemon.pid} of user {daemon.uid})"
                    )
                self._proven[name] = proof
        return ""

    def prove(self, daemon: MpsProcess) -> bool:
        """Whether this daemon listens at one of the sockets at least, and no other process at any.
        Blocks on the file system.
        """
        return not self.impostor(daemon) and any(one == daemon for one, _ in self._proven.values())


def is_reachable(daemon: MpsProcess) -> bool:
    """Whether any of its sockets is where it made them, in its own view of the file system; not
    knowing counts. Blocks on the file system.
    """
    front = Path(f"/proc/{daemon.pid}/root{daemon.pipe_directory}")
    for directory in (front, front.with_name(BACK)):
        for name in SOCKETS:
            with suppress(FileNotFoundError, NotADirectoryError):
                with suppress(PermissionError):
                    (directory / name).lstat()
                return True
    return False


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
