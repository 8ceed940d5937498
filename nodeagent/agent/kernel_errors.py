"""The XIDs that the kernel log tells, as long as it can be followed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from nodeagent.errors import NodeagentError
from nodeagent.gpu.events.kernel_log import KernelLog
from nodeagent.health.kernel_log import Begun, read_lines
from nodeagent.health.readings import XidEvent

log = structlog.get_logger(__name__)

_SAME = 60.0  # seconds in which the same trouble is told once


class KernelErrors:
    """`deliver` gets the XIDs as they are read; `uptime` gives seconds since boot."""

    def __init__(
        self,
        path: Path,
        *,
        deliver: Callable[[tuple[XidEvent, ...]], None],
        uptime: Callable[[], float],
    ) -> None:
        self._deliver = deliver
        self._uptime = uptime
        self._since = 0.0
        self._told_lost: float | None = None  # when
        self._begun: Begun | None = None
        self._log = KernelLog(
            self._read,
            lost=self._lost,
            ended=log.warning,
            path=path,
        )

    async def run(self, *, since: float) -> None:
        """Follow it until cancelled; what is from before `since` (uptime) does not count. Where
        there is no log, or it may not be read, that is told once.
        """
        self._since = since
        try:
            self._log.open()
        except NodeagentError as error:
            log.warning(error.message, remedy=error.remedy)
            return
        try:
            await asyncio.Event().wait()
        finally:
            self._log.close()

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
