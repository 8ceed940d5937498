"""Follows the kernel log, to which the driver writes XIDs, in the event loop.

Each read of /dev/kmsg gives one record, oldest first; the kernel keeps a ring, and reports with
EPIPE that records were overwritten before they were read. Other readers get the same records.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Final

import structlog

from nodeagent.errors import NodeagentError
from nodeagent.health.kernel_log import Begun, read_lines
from nodeagent.health.readings import XidEvent
from nodeagent.pacing import RateLimit
from nodeagent.plan.problems import Code, Problem
from nodeagent.signals import Signal
from nodeagent.structs import replace

log = structlog.get_logger(__name__)

DEVICE: Final = Path("/dev/kmsg")
_DRIVER = b"NVRM"  # what all lines of NVIDIA's driver begin with
_RECORD = 16 * 1024  # bytes; the kernel's longest record has 8 KiB
_AT_ONCE = 256  # records, so that a full ring does not block the event loop
_SAME = 60.0  # seconds in which the same trouble is logged once


@dataclass
class KernelErrors:
    """Publishes `xids` as they are read, and as `problem` why the log cannot be read.

    `uptime` gives seconds since boot. A log that cannot be read is tried `again` after so many
    seconds; one that is open for `stays` seconds can be read.
    """

    path: Path
    uptime: Callable[[], float]
    again: float = 30.0
    stays: float = 1.0

    def __post_init__(self) -> None:
        self._log_limit = RateLimit(_SAME)
        self._begun: Begun | None = None
        self.xids: Signal[tuple[XidEvent, ...]] = Signal(())
        self.problem: Signal[Problem | None] = Signal(None)
        self._caught_up = False  # what there was before is read, and the rest comes as it is read

    async def run(self, *, since: float) -> None:
        """Follow it until cancelled; what is from before `since` (uptime) does not count.

        A log that cannot be read is tried again and again; records are known by their numbers.
        """
        while True:
            stays = asyncio.get_running_loop().call_later(self.stays, self._set, None)
            try:
                await self._follow(since)
            except NodeagentError as error:
                self._set(Problem.from_error(Code.READER, error))
            finally:
                stays.cancel()
            await asyncio.sleep(self.again)

    async def _follow(self, since: float) -> None:
        """Read from the oldest record on; raises NodeagentError if that fails."""
        file = open_log(self.path)
        self._caught_up = False
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(file, readable.set)
        except OSError as error:  # such as /dev/null
            os.close(file)
            raise _no_log(self.path, "something that cannot be waited for") from error
        try:
            while True:
                await readable.wait()
                readable.clear()
                self._read(file, since)
        finally:
            loop.remove_reader(file)
            os.close(file)

    def _read(self, file: int, since: float) -> None:
        """Read some of the records; the loop calls again while there are more."""
        lines: list[str] = []
        as_they_come, now = self._caught_up, self.uptime()
        try:
            for record in islice(self._records(file), _AT_ONCE):
                lines += _lines_of(record)
        finally:
            xids, self._begun = read_lines(lines, now, self._begun)
            if as_they_come:  # the log has a clock of its own, which drifts from the machine's
                xids = tuple(replace(xid, at=now) for xid in xids)
            if recent := tuple(xid for xid in xids if xid.at >= since):
                self.xids.publish(recent)

    def _records(self, file: int) -> Iterator[bytes]:
        while True:
            try:
                record = os.read(file, _RECORD)
            except BlockingIOError:
                self._caught_up = True
                return
            except OSError as error:
                if error.errno != errno.EPIPE:  # after that, the oldest there is comes next
                    raise _unreadable(
                        self.path, f"cannot be read any more: {error.strerror}"
                    ) from error
                # In a flood this happens again and again; it is logged once a minute.
                if self._log_limit.due("lost", self.uptime()):
                    log.warning("records of the kernel log were overwritten before they were read")
                yield b""  # it counts among those at once
                continue
            if not record:  # what is no kernel log may have an end
                raise _unreadable(self.path, "cannot be read any more: it has ended")
            yield record

    def _set(self, problem: Problem | None) -> None:
        if problem == self.problem.newest:
            return
        if problem is None:
            log.info("the kernel log can be read again")
        else:
            log.warning(problem.message, remedy=problem.remedy)
        self.problem.publish(problem)


def open_log(path: Path) -> int:
    """Open the log; raises NodeagentError where it cannot be opened or is no kernel log."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, f"cannot be opened: {error.strerror}") from error
    mode = os.fstat(file).st_mode
    if S_ISREG(mode) or S_ISDIR(mode):
        os.close(file)
        raise _no_log(path, "a plain file" if S_ISREG(mode) else "a directory")
    return file


def _unreadable(path: Path, why: str) -> NodeagentError:
    return NodeagentError.of("kernelLogUnread", path=path, why=why)


def _no_log(path: Path, kind: str) -> NodeagentError:
    return NodeagentError.of("noKernelLog", path=path, kind=kind, device=DEVICE)


def _lines_of(record: bytes) -> list[str]:
    """The driver's lines; what follows them with a blank in front describes devices."""
    if _DRIVER not in record:
        return []
    text = record.decode("utf-8", "replace")
    return [line for line in text.split("\n") if "NVRM" in line and not line.startswith(" ")]
