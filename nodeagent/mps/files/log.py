"""`daemon.log`: new lines, last lines, a bound on its size, and what its lines mean.

The daemon holds the file open and appends, so the log is not renamed but truncated in place; its
end is kept beside it. The directory belongs to the daemon's user, who could put anything there: the
file is opened once, without following links, and then only used by that descriptor, which works on
when the file is removed.

In the foreground daemon and servers write into one log, and so do our own commands: each leaves
`NEW UI`, `Cmd:...`, the reply and `UI closed`. Those must not cause further requests, so only known
lines count, matched from the beginning of their text: replies and commands contain what others
chose. Wordings differ between versions and are matched loosely.
"""

import asyncio
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Self

from asyncinotify import Inotify, Mask

from nodeagent.files.open_directory import DIRECTORY_FLAGS
from nodeagent.mps.files.directories import open_in
from nodeagent.mps.shares import LOG_NAME
from nodeagent.structs import Struct


class ClientConnected(Struct, frozen=True):
    """A program has connected; `pending` when it has to wait for a server."""

    pid: int
    uid: int
    pending: bool


class ServerReady(Struct, frozen=True):
    """A server takes clients."""

    pid: int


class ServerExited(Struct, frozen=True):
    """A server is gone; death by a signal is logged as status 0."""

    pid: int
    status: int


class Faulted(Struct, frozen=True):
    """The server handles a fatal fault, of the client `culprit` where that is named."""

    culprit: int | None


class Recovered(Struct, frozen=True):
    """The server makes its contexts anew."""


class Stirred(Struct, frozen=True):
    """Something about servers or clients is different; what, is to be asked."""


Fact = ClientConnected | ServerReady | ServerExited | Faulted | Recovered | Stirred

# `[2026-09-01 12:00:00.000 Control  4711] `, in older versions followed by `Volta MPS Server: `.
_PREFIX = re.compile(r"\[[^\]]{1,80}\]\s*(?:Volta MPS(?: Server)?:\s*)?")
_PENDING = re.compile("pending|not ready", re.IGNORECASE)
_FACTS: dict[re.Pattern[str], Callable[[re.Match[str]], Fact]] = {
    re.compile(r"NEW CLIENT\s+(\d{1,10})\s+from user\s+(\d{1,10})\b(.*)"): (
        lambda found: ClientConnected(int(found[1]), int(found[2]), bool(_PENDING.search(found[3])))
    ),
    re.compile(r"NEW SERVER\s+(\d{1,10}):\s*Ready"): lambda found: ServerReady(int(found[1])),
    re.compile(r"Server\s+(\d{1,10})\s+exited with status\s+(-?\d{1,10})"): (
        lambda found: ServerExited(int(found[1]), int(found[2]))
    ),
    re.compile(r"Client process\s+(\d{1,10})\s+encountered a fatal"): (
        lambda found: Faulted(int(found[1]))
    ),
    re.compile("Server is handling a fatal"): lambda _: Faulted(None),
    re.compile("Destroy server context"): lambda _: Recovered(),
    re.compile(
        r"Starting new server\b|Server encountered a fatal|Force shutting down"
        r"|Failed to start|Failed to accept"
        r"|Server has started|Server exit\b|Driver initialization failed"
        r"|Received new client request|Creating worker thread|Worker created"
        r"|Status of client|Client disconnected|Client process disconnected|Client \{.*\} exit"
        r"|Receive command failed"
    ): lambda _: Stirred(),
}
# Asked first, for who floods the log: the others one by one take longer than all in one.
_KNOWN = re.compile("|".join(pattern.pattern for pattern in _FACTS))


def facts(lines: Iterable[str]) -> Iterator[Fact]:
    """What the lines say, in order; most say nothing."""
    return (fact for line in lines if (fact := _fact(line)) is not None)


def _fact(line: str) -> Fact | None:
    prefix = _PREFIX.match(line) if line.startswith("[") else None
    if prefix is None or not _KNOWN.match(line, prefix.end()):
        return None
    text = line[prefix.end() :]
    found = ((match, fact) for pattern, fact in _FACTS.items() if (match := pattern.match(text)))
    return next((fact(match) for match, fact in found), None)


def worth_showing(lines: Iterable[str]) -> Iterator[str]:
    """The lines worth showing: without our own commands and their replies."""
    asked = False
    for line in lines:
        prefix = _PREFIX.match(line)
        text = line[prefix.end() :] if prefix else line
        by_daemon = prefix is not None and "Control" in prefix[0]
        if by_daemon and _TALK.match(text):
            asked = text.startswith(("NEW UI", "Cmd:"))
        elif not (asked and by_daemon) or _fact(line) is not None:
            yield line


_TALK = re.compile(r"NEW UI|Cmd:|UI closed|Accepting connection|User did not send valid")


DEBOUNCE = 0.03  # seconds that writes are collected before they are looked at
_MAX_EVENTS = 1000  # events taken in one go; who writes without end must not hold up the loop


class LogWatch:
    """Usable inside `async with`. Where the kernel gives no watch nothing is called, and logs are
    read when daemons are asked.
    """

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._calls: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        with suppress(OSError):
            self._inotify = Inotify(sync_timeout=0)
            self._calls = asyncio.create_task(self._call(self._inotify), name="mps logs")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._calls is not None:
            self._calls.cancel()
            await asyncio.wait({self._calls})
        if self._inotify is not None:
            self._inotify.close()
        self._inotify = None

    def watch(self, path: str, grown: Callable[[], None]) -> Callable[[], None]:
        """Call `grown` whenever the file was written to; returns what ends that. One watch for a
        file at a time.
        """
        inotify = self._inotify
        if inotify is None or not path:
            return lambda: None
        try:
            watch = inotify.add_watch(path, Mask.MODIFY)
        except OSError:
            return lambda: None
        self._callbacks[watch.wd] = grown

        def end() -> None:
            self._callbacks.pop(watch.wd, None)
            with suppress(OSError, ValueError):
                if self._inotify is not None:
                    inotify.rm_watch(watch)

        return end

    async def _call(self, inotify: Inotify) -> None:
        """One call for each log that has grown, DEBOUNCE seconds after a write, so that many writes
        are read together and the loop goes on.
        """
        loop = asyncio.get_running_loop()
        while True:
            first = await inotify.get()
            await asyncio.sleep(DEBOUNCE)
            events = [first, *islice(iter(inotify.sync_get, None), _MAX_EVENTS)]
            grown = {event.watch.wd for event in events if event.watch}
            if any(Mask.Q_OVERFLOW in event.mask for event in events):
                grown.update(self._callbacks)
            for callback in map(self._callbacks.get, grown):
                if callback is not None:
                    loop.call_soon(callback)  # a fault in one ends no watch


EARLIER_NAME = f"{LOG_NAME}.1"
SHOWN = 4  # lines that a report shows
KEPT = 1 << 20  # bytes of the log that are kept when it is cut off
_BLOCK = 1 << 16  # bytes read at once; what is written faster than read is read later
_MAX_LINE = 1 << 14  # bytes; a longer one is no line of MPS


class DaemonLog:
    """A daemon's log, read from its end on, or from `tail` bytes before. One that is not there, or
    may not be read, passes for empty; its daemon is asked all the same.
    """

    def __init__(self, log_directory: str, *, tail: int = 0) -> None:
        self._directory = Path(log_directory)
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = open_log(self._directory, os.O_RDWR)
        self._offset = max(self._size - tail, 0)
        self._rest = b""
        self._skips = self._offset > 0 and tail > 0  # the first line is only part of one

    @property
    def path(self) -> str:
        """The path by which the kernel can watch the log; "" where it may not be read."""
        return "" if self._descriptor is None else f"/proc/self/fd/{self._descriptor}"

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def new_lines(self) -> list[str]:
        """The complete lines written since the last call, at most one block of them."""
        if self._size < self._offset:  # truncated, by us or another process
            self._offset, self._rest, self._skips = 0, b"", False
        block = self._read(_BLOCK, self._offset)
        self._offset += len(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > _MAX_LINE:
            self._rest, self._skips = b"", True
        if lines and self._skips:
            del lines[0]
            self._skips = False
        return [line.decode(errors="replace") for line in lines]

    @property
    def behind(self) -> int:
        """How many bytes `new_lines` has not returned; below 0 when it was truncated."""
        return self._size - self._offset

    def skip(self) -> None:
        self._offset, self._rest = self._size, b""
        self._skips = True

    def last_lines(self, count: int = SHOWN, *, until: str = "") -> tuple[str, ...]:
        """The last lines worth showing, printable.

        With `until`, those up to the last line that has it: what was written since is of others.
        """
        said = self._read(_MAX_LINE, max(self._size - _MAX_LINE, 0))
        lines = [line.strip() for line in said.decode(errors="replace").splitlines()]
        ends = [number for number, line in enumerate(lines, 1) if until and until in line]
        shown = list(worth_showing(line for line in lines[: ends[-1] if ends else None] if line))
        return tuple("".join(c for c in line if c.isprintable()) for line in shown[-count:])

    def bound(self, size: int) -> None:
        """Cut it off if it is larger than `size` bytes and all of it was read. Its end is kept
        beside it, as far as that can be done; what the daemon writes in this very moment is lost.
        """
        found = self._size
        if self._descriptor is None or found <= size or self.behind:
            return
        kept = self._read(min(KEPT, size), max(found - min(KEPT, size), 0))
        with suppress(OSError):
            self._keep(kept)
        os.ftruncate(self._descriptor, 0)
        self._offset, self._rest, self._skips = 0, b"", False

    @property
    def _size(self) -> int:
        return 0 if self._descriptor is None else os.fstat(self._descriptor).st_size

    def _read(self, count: int, offset: int) -> bytes:
        return b"" if self._descriptor is None else os.pread(self._descriptor, count, offset)

    def _keep(self, content: bytes) -> None:
        directory = open_in(self._directory, "", DIRECTORY_FLAGS)
        try:
            with suppress(FileNotFoundError):
                os.unlink(EARLIER_NAME, dir_fd=directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC  # which follow no link
            kept = os.open(EARLIER_NAME, flags, 0o640, dir_fd=directory)
            with os.fdopen(kept, "wb") as file:
                _, _, rest = content.partition(b"\n")  # the first line is only part of one
                file.write(rest)
        finally:
            os.close(directory)


def open_log(directory: Path, flags: int, mode: int = 0) -> int:
    """Open the log, whose directory is the daemon's user's, who could put anything there. Raises
    OSError unless it is a regular file with no other name. Blocks as long as the file system does.
    """
    log = open_in(directory, LOG_NAME, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    found = os.fstat(log)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return log
    os.close(log)
    raise OSError(errno.EINVAL, "it is not a plain file", str(directory / LOG_NAME))
