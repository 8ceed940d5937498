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


async def test_what_is_read_as_it_comes_happened_now(tmp_path: Path) -> None:
    """The kernel's log has a clock of its own, which drifts from the machine's by seconds a day.
    Only what was there before has no better time than the one written beside it.
    """
    now = 10_000.0
    heard: list[XidEvent] = []
    os.mkfifo(tmp_path / "kmsg")
    kernel = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    os.write(kernel, b"3,1,9000000000,-;NVRM: Xid (PCI:0000:3b:00): 13, old\n")
    errors = KernelErrors(
        tmp_path / "kmsg", deliver=heard.extend, uptime=lambda: now, report=lambda _: None
    )
    running = asyncio.create_task(errors.run(since=0.0))
    try:
        await _until(lambda: len(heard) == 1)
        os.write(kernel, b"3,2,9970000000,-;NVRM: Xid (PCI:0000:3b:00): 31, slow clock\n")
        await _until(lambda: len(heard) == 2)
        os.write(kernel, b"3,3,10030000000,-;NVRM: Xid (PCI:0000:3b:00): 48, fast clock\n")
        await _until(lambda: len(heard) == 3)
        assert [(event.xid, event.at) for event in heard] == [(13, 9000.0), (31, now), (48, now)]
    finally:
        os.close(kernel)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
