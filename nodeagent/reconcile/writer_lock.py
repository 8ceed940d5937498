"""One writer per node: a process that changes GPUs holds this lock, the agent while it runs.

It consists of a file in run.dir and of the state directory itself, so that deleting one of them
lets no second writer in. The kernel releases both when their holder ends, however that happens.
"""

import errno
import fcntl
import os
import platform
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.files.open_directory import make_open_directory
from nodeagent.processes import cgroup_of, service_of

FILE_NAME = "writer.lock"
_FILE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class OtherWriter(NodeagentError):
    """Another process changes this node's GPUs."""


class WriterLock:
    """Held from `take` to `release`. `directory` is made by the code that keeps state there."""

    def __init__(self, file: Path, directory: Path | None = None) -> None:
        self._file = file
        self._directory = directory
        self._held: dict[Path, int] = {}  # descriptors

    def take(self) -> tuple[Path, ...]:
        """Take what is not held, or was deleted or replaced since; gives what was.

        Raises OtherWriter, and NodeagentError when the file cannot be made; what is held stays so.
        Blocks on the disk.
        """
        lost = tuple(path for path, held in self._held.items() if not _is(path, held))
        if self._directory is not None:
            with _refused(self._directory, "state.dir"):
                self._take(self._directory, _DIRECTORY)
        with _refused(self._file, "run.dir"):
            make_open_directory(self._file.parent)
            self._take(self._file, _FILE)
        return lost

    def release(self) -> None:
        """Let the next writer in. Raises nothing."""
        if self._file in self._held:
            with suppress(OSError):  # a file system that became read-only, say
                # The file stays: taking it away would let two writers hold two files of one name.
                os.ftruncate(self._held[self._file], 0)
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def _take(self, path: Path, flags: int) -> None:
        if path in self._held and _is(path, self._held[path]):
            return
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError:
            if flags is _FILE:
                raise
            if path in self._held:  # of a directory that is gone: its loss is reported once
                os.close(self._held.pop(path))
            return
        if flags is _DIRECTORY:
            _close_to_others(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise self._other_writer(path) from None
            raise
        if path in self._held:
            os.close(self._held[path])
        self._held[path] = descriptor
        if flags is _FILE:
            with suppress(OSError):  # a full disk: who holds the lock is for people
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())

    def _other_writer(self, path: Path) -> OtherWriter:
        holder = ""
        with suppress(OSError, ValueError):
            holder = self._file.read_text(encoding="ascii").strip()
        who, stop = "another process", "`systemctl stop nodeagent`"
        if holder.isdecimal():
            who, stop = f"process {holder}", f"`kill {holder}`"
            cgroup = cgroup_of(int(holder)) or ""
            if (service := service_of(cgroup)).startswith("nodeagent"):
                stop = f"`systemctl stop {service}`"
            elif "kubepods" in cgroup:
                stop = f"`kubectl label node {platform.node()} nodeagent.io/off=`"
        return OtherWriter.of("otherWriter", who=who, path=path, stop=stop)


@contextmanager
def _refused(path: Path, setting: str) -> Iterator[None]:
    """Raises NodeagentError for what the system refuses, with what mends it."""
    try:
        yield
    except OSError as error:
        remedy = f"run as root, or set {setting} to a folder that can be written"
        if error.errno in {errno.ELOOP, errno.EISDIR}:
            remedy = f"see `ls -ld {path}`; move away what is in the place of the file"
        elif error.errno in {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}:
            remedy = f"its file system keeps no locks: set {setting} to a folder on a local one"
        message = f"the lock on {path} cannot be taken: {error.strerror}"
        raise NodeagentError(message, remedy=remedy) from error


def _close_to_others(directory: int) -> None:
    """Close the folder to others, who could lock it for ever; a shared one, as /tmp, stays open."""
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    if not mode & stat.S_ISVTX:
        with suppress(OSError):  # not the agent's own, or on a read-only file system
            os.fchmod(directory, mode & ~0o006)


@contextmanager
def writer_lock(file: Path, directory: Path | None = None) -> Iterator[WriterLock]:
    """Hold the lock in the block; raises NodeagentError as `WriterLock.take` does."""
    lock = WriterLock(file, directory)
    try:
        lock.take()
        yield lock
    finally:
        lock.release()


def _is(path: Path, descriptor: int) -> bool:
    """Return whether the path still leads to what was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
