"""Waiting for processes: the kernel's word where there is one, a timer where there is none."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.processes import ProcessWatch
from tests.machine_load import stretched

DESCRIPTORS = Path("/proc/self/fd")
NO_SUCH_PID = 2**22 + 1  # above the kernel's highest pid_max


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def open_files() -> set[str]:
    """The descriptors of this process."""
    return {entry.name for entry in DESCRIPTORS.iterdir()}


async def test_wakes_when_a_watched_process_ends() -> None:
    """The end of a process is reported at once, without waiting for a timer."""
    woken = asyncio.Event()
    watch = ProcessWatch(woken.set, fallback=3600)
    with sleeper() as process:
        watch.watch({process.pid})
        await asyncio.sleep(0.05)
        assert not woken.is_set()
        process.kill()
        async with asyncio.timeout(stretched(30)):
            await woken.wait()
    watch.close()


async def test_a_process_no_longer_watched_wakes_nothing() -> None:
    """Only the users of the last look count, though their descriptors have the same numbers."""
    woken = asyncio.Event()
    watch = ProcessWatch(woken.set, fallback=3600)
    with sleeper() as former, sleeper() as process:
        watch.watch({former.pid})
        watch.watch({process.pid})
        former.kill()
        former.wait()
        await asyncio.sleep(0.05)
        assert not woken.is_set()
        process.kill()
        async with asyncio.timeout(stretched(30)):
            await woken.wait()
    watch.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize("pid", [0, NO_SUCH_PID, 2**32 - 1])
async def test_looks_again_where_the_kernel_cannot_tell(pid: int) -> None:
    """Users without a watchable process are looked at again, ever less often."""
    times: list[float] = []
    clock = asyncio.get_running_loop().time

    def look_again() -> None:
        times.append(clock())
        if len(times) < 3:
            watch.watch({pid})

    watch = ProcessWatch(look_again, fallback=0.02)
    times.append(clock())
    watch.watch({pid})
    async with asyncio.timeout(stretched(30)):
        while len(times) < 3:
            await asyncio.sleep(0.005)
    watch.close()
    assert times[1] - times[0] == pytest.approx(0.02)
    assert times[2] - times[1] == pytest.approx(0.04)


async def test_closing_leaves_no_descriptor() -> None:
    """Every pidfd is given back."""
    before = open_files()
    watch = ProcessWatch(lambda: None)
    with sleeper() as process:
        watch.watch({process.pid, os.getpid(), 0})
        assert len(open_files() - before) >= 2
        watch.close()
    assert open_files() <= before


@pytest.mark.virtual_time
async def test_a_zombie_does_not_wake_again_and_again() -> None:
    """It has ended already, and yet the driver may still name it: looked at after a while."""
    woken: list[int] = []
    watch = ProcessWatch(lambda: woken.append(1), fallback=0.2)
    with sleeper() as process:
        process.kill()
        # It stays a zombie.
        await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        before = open_files()
        watch.watch({process.pid})
        assert open_files() <= before
        await asyncio.sleep(0.1)
        assert woken == []
        async with asyncio.timeout(stretched(30)):
            while not woken:
                await asyncio.sleep(0.005)
    watch.close()


async def test_takes_no_more_descriptors_than_it_may() -> None:
    """However many processes a tenant puts on a GPU."""
    watch = ProcessWatch(lambda: None, fallback=3600, most=1)
    with sleeper() as one, sleeper() as other:
        before = len(open_files())
        watch.watch({one.pid, other.pid})
        assert len(open_files()) == before + 1
        watch.close()
        assert len(open_files()) == before
