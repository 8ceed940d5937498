"""Growth of a log is notified at once, and endless writers do not block the loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from nodeagent.mps.files.log import LogWatch
from tests.machine_load import stretched

# Two files in turn, because the kernel makes one event of many for a single file.
_WRITERS = """
import os, sys
one, other = (os.open(path, os.O_WRONLY) for path in sys.argv[1:])
while True:
    os.pwrite(one, b"x", 0)
    os.pwrite(other, b"x", 0)
"""


async def test_a_log_that_grows(tmp_path: Path) -> None:
    """Each is notified by itself, until its watch is ended."""
    one, other = tmp_path / "one", tmp_path / "other"
    notified: list[str] = []
    async with LogWatch() as watch:
        ends = []
        for path in (one, other):
            path.touch()
            ends.append(watch.watch(str(path), lambda name=path.name: notified.append(name)))  # type: ignore[misc]  # mypy takes no default into account
        one.write_text("x")
        async with asyncio.timeout(stretched(30)):
            while not notified:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert set(notified) == {"one"}
        ends[0]()
        one.write_text("xy")
        other.write_text("x")
        async with asyncio.timeout(stretched(30)):
            while "other" not in notified:
                await asyncio.sleep(0.01)
        assert set(notified[1:]) <= {"one", "other"}
        assert notified[-1] == "other"


async def test_writers_without_end(tmp_path: Path) -> None:
    """Everything else goes on, and when they have ended nothing is forgotten."""
    paths = [tmp_path / "one", tmp_path / "other"]
    notified = 0

    def grown() -> None:
        nonlocal notified
        notified += 1

    async with LogWatch() as watch:
        for path in paths:
            path.touch()
            watch.watch(str(path), grown)
        writers = subprocess.Popen([sys.executable, "-IS", "-c", _WRITERS, *paths])
        try:
            async with asyncio.timeout(stretched(30)):
                while not notified:
                    await asyncio.sleep(0.005)
            longest, end = 0.0, time.monotonic() + 1.0
            while time.monotonic() < end:
                busy = time.thread_time()
                await asyncio.sleep(0.005)
                longest = max(longest, time.thread_time() - busy)
        finally:
            writers.kill()
            writers.wait()
        assert longest < 0.5
        assert notified < 1000
        await asyncio.sleep(1.5)
        before = notified
        await asyncio.to_thread(paths[0].write_text, "the end")
        async with asyncio.timeout(stretched(30)):
            while notified == before:
                await asyncio.sleep(0.01)
