"""The XIDs that the kernel log tells, as long as it can be followed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from nodeagent.errors import NodeagentError
from nodeagent.gpu.kernel import REMEDY, KernelLog
from nodeagent.health.kernel_log import Begun, read_lines
from nodeagent.health.readings import XidEvent
from nodeagent.plan.problems import Code, Problem

log = structlog.get_logger(__name__)

_SAME = 60.0  # seconds in which the same trouble is told once
_AGAIN = 30.0  # seconds until a log that could not be read is tried again
_STAYS = 1.0  # seconds for which a log must be open to count as readable


class KernelErrors:
    """`deliver` gets the XIDs as they are read; `uptime` gives seconds since boot. `report` is
    called when the log cannot be read, and with None when it can be again. A log that cannot be
    read is tried `again` after so many seconds; one that is open for `stays` seconds can be read.
    """

    def __init__(
        self,
        path: Path,
        *,
        deliver: Callable[[tuple[XidEvent, ...]], None],
        uptime: Callable[[], float],
        report: Callable[[Problem | None], None],
        again: float = _AGAIN,
        stays: float = _STAYS,
    ) -> None:
        self._deliver = deliver
        self._uptime = uptime
        self._since = 0.0
        self._told_lost: float | None = None  # when
        self._begun: Begun | None = None
        self._report = report
        self._again, self._stays = again, stays
        self._problem: Problem | None = None
        self._ended = asyncio.Event()
        self._log = KernelLog(
            self._read,
            lost=self._lost,
            ended=self._end,
            path=path,
        )

    async def run(self, *, since: float) -> None:
        """Follow it until cancelled; what is from before `since` (uptime) does not count.

        A log that cannot be read is tried again and again; records are known by their numbers.
        """
        self._since = since
        try:
            while True:
                await self._follow()
                await asyncio.sleep(self._again)
        finally:
            self._log.close()

    async def _follow(self) -> None:
        """Until it cannot be read any more."""
        self._ended.clear()
        try:
            self._log.open()
        except NodeagentError as error:
            self._set(Problem(Code.READER, error.message, error.remedy))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stays):
                await self._ended.wait()
        if not self._ended.is_set():
            self._set(None)
        await self._ended.wait()

    def _end(self, why: str) -> None:
        self._set(Problem(Code.READER, why, REMEDY))
        self._ended.set()

    def _set(self, problem: Problem | None) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        if problem is None:
            log.info("the kernel log can be read again")
        else:
            log.warning(problem.message, remedy=problem.remedy)
        self._report(problem)

    def _lost(self) -> None:
        """In a flood this happens again and again; it is told once a minute."""
        now = self._uptime()
        if self._told_lost is None or now - self._told_lost >= _SAME:
            self._told_lost = now
            log.warning("records of the kernel log were overwritten unread")

    def _read(self, lines: Sequence[str]) -> None:
        xids, self._begun = read_lines(lines, self._uptime(), self._begun)
        recent = tuple(xid for xid in xids if xid.at >= self._since)
        if recent:
            self._deliver(recent)
