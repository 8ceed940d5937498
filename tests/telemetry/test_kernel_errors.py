"""The kernel log's XIDs, while the log cannot always be read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nodeagent.health.readings import XidEvent
from nodeagent.plan.problems import Code, Problem
from nodeagent.telemetry.health_sources import KernelErrors


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_log_that_appears_is_read(tmp_path: Path) -> None:
    """What is wrong is reported once, however often it is tried, and that it is over."""
    reports: list[Problem | None] = []
    heard: list[XidEvent] = []
    errors = KernelErrors(
        tmp_path / "kmsg",
        deliver=heard.extend,
        uptime=lambda: 100.0,
        report=reports.append,
        again=0.01,
        stays=0.01,
    )
    running = asyncio.create_task(errors.run(since=0.0))
    try:
        await _until(lambda: bool(reports))
        problem = reports[0]
        assert problem is not None
        assert problem.code is Code.READER
        os.mkfifo(tmp_path / "kmsg")
        kernel = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
        await _until(lambda: reports[-1] is None)
        os.write(kernel, b"3,1,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, fallen\n")
        await _until(lambda: bool(heard))
        assert [event.xid for event in heard] == [79]
        assert reports == [problem, None]
        os.close(kernel)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
