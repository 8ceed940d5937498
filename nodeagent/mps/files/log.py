"""`daemon.log`: what is new in it, its last lines, and a bound on its size.

The daemon holds the file open and appends, so the log is not renamed but cut off in place; its end
is kept beside it. The directory is the daemon's user's, who could put anything there: the file is
opened once, without following links, and then only used by that descriptor, which goes on telling
when somebody removes the file.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.mps.files.log_lines import telling
from nodeagent.mps.launch.process import LOG_NAME

EARLIER_NAME = f"{LOG_NAME}.1"
KEPT = 1 << 20  # bytes of the log that are kept when it is cut off
_BLOCK = 1 << 16  # bytes read at once; what is written faster than read is read later
_LONGEST_LINE = 1 << 14  # bytes; a longer one is no line of MPS


class LogRefused(NodeagentError):
    """The log is not what it must be, so it is not looked at."""


class DaemonLog:
    """The log of one daemon, read from its end on, or from `tail` bytes before. `pid` is the
    daemon's, if it runs: where its log has been removed, it still has it open. Raises LogRefused.
    """

    def __init__(self, log_directory: str, *, pid: int | None = None, tail: int = 0) -> None:
        self._directory = Path(log_directory)
        self._descriptor, self._is_removed = _opened(self._directory / LOG_NAME, pid)
        size = os.fstat(self._descriptor).st_size
        self._offset = max(size - tail, 0)
        self._rest = b""
        self._skips = self._offset > 0 and tail > 0  # the first line is only part of one

    @property
    def path(self) -> str:
        """By which the kernel can be asked to watch it."""
        return f"/proc/self/fd/{self._descriptor}"

    def close(self) -> None:
        os.close(self._descriptor)

    def new_lines(self) -> list[str]:
        """Those written since the last call, complete ones only; not more than one block."""
        size = os.fstat(self._descriptor).st_size
        if size < self._offset:  # cut off, by us or somebody else
            self._offset, self._rest, self._skips = 0, b"", False
        block = os.pread(self._descriptor, _BLOCK, self._offset)
        self._offset += len(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest, self._skips = b"", True
        if lines and self._skips:
            del lines[0]
            self._skips = False
        return [line.decode(errors="replace") for line in lines]

    @property
    def has_more(self) -> bool:
        """Whether there is something that `new_lines` has not told."""
        return self.behind != 0

    @property
    def behind(self) -> int:
        """How many bytes `new_lines` has not told; below 0 when it was cut off."""
        return os.fstat(self._descriptor).st_size - self._offset

    def skip(self) -> None:
        """Never tell what there is up to now."""
        self._offset, self._rest = os.fstat(self._descriptor).st_size, b""
        self._skips = True

    def last_lines(self, count: int, *, until: str = "") -> tuple[str, ...]:
        """The last lines that tell a person something, printable.

        With `until`, those up to the last line that has it: what was written since is of others.
        """
        size = os.fstat(self._descriptor).st_size
        said = os.pread(self._descriptor, _LONGEST_LINE, max(size - _LONGEST_LINE, 0))
        lines = [line.strip() for line in said.decode(errors="replace").splitlines()]
        ends = [number for number, line in enumerate(lines, 1) if until and until in line]
        told = list(telling(line for line in lines[: ends[-1] if ends else None] if line))
        return tuple("".join(c for c in line if c.isprintable()) for line in told[-count:])

    def bound(self, size: int) -> bool:
        """Cut it off if it is larger than `size` bytes; whether it was. Its end is kept beside it,
        as far as that can be done; what the daemon writes in this very moment is lost.
        """
        found = os.fstat(self._descriptor).st_size
        if self._is_removed or found <= size or self.has_more:
            return False
        kept = os.pread(self._descriptor, min(KEPT, size), max(found - min(KEPT, size), 0))
        with suppress(OSError):
            self._keep(kept)
        os.ftruncate(self._descriptor, 0)
        self._offset, self._rest, self._skips = 0, b"", False
        return True

    def _keep(self, content: bytes) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        directory = os.open(self._directory, flags)
        try:
            with suppress(FileNotFoundError):
                os.unlink(EARLIER_NAME, dir_fd=directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            kept = os.open(EARLIER_NAME, flags, 0o640, dir_fd=directory)
            with os.fdopen(kept, "wb") as file:
                _, _, rest = content.partition(b"\n")  # the first line is only part of one
                file.write(rest)
        finally:
            os.close(directory)


def _opened(path: Path, pid: int | None) -> tuple[int, bool]:
    """A descriptor of it, and whether it is removed and only the daemon still has it."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if pid is None:
            raise LogRefused(f"{path} cannot be read: {error.strerror}") from error
        return _opened_by_process(path, pid), True
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise LogRefused(f"{path} is no plain file", remedy="remove what is in its place")
    return descriptor, False


def _opened_by_process(path: Path, pid: int) -> int:
    """What it has as its standard output. That is for its user to choose, and may be a file that
    this user cannot write: so it is only read, and only when no directory has it any more.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/fd/1", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise LogRefused(f"{path} cannot be read: {error.strerror}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 0:
        os.close(descriptor)
        raise LogRefused(f"{path} is not there, and process {pid} does not write into it")
    return descriptor
