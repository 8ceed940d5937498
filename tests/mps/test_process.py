"""A daemon's process, found again: whether it is the one, and what it said."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.launch.launcher import DaemonProcess, adopt
from nodeagent.mps.processes import CONTROL, mps_process
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import LOG_NAME, DaemonSpec
from nodeagent.structs import replace
from tests.mps.conftest import running, wait_for
from tests.mps.plans import with_account


async def test_adopted_by_another_agent(spec: DaemonSpec, programs: Programs) -> None:
    """The first looks no more, the second sees it end; nothing was started anew."""
    process = await ChildLauncher(programs).launch(spec)
    await asyncio.to_thread(wait_for, Path(spec.log_directory) / "seen")
    noted = process.identity
    assert (noted.program, noted.pipe_directory) == (CONTROL, spec.pipe_directory)
    assert mps_process(noted.pid) == noted
    process.close()
    adopted = await adopt(noted, spec)
    assert adopted is not None
    os.kill(noted.pid, 0)
    adopted.kill()
    assert "not known" in await adopted.wait()
    _, status = await asyncio.to_thread(os.waitpid, noted.pid, 0)  # it is this test's child still
    assert status == signal.SIGKILL


async def test_what_is_not_adopted(spec: DaemonSpec, programs: Programs) -> None:
    """Any other process, which is left alone."""
    async with running(spec, programs) as process:
        noted = process.identity
        wrong = [
            (replace(noted, start_time=noted.start_time - 1), spec),  # its number was used again
            (noted, replace(spec, pipe_directory="/elsewhere")),
            (noted, with_account(spec, uid=4711)),
            (replace(noted, pid=os.getpid()), spec),
            (replace(noted, pid=2**22 - 1), spec),
        ]
        for identity, wanted in wrong:
            assert await adopt(identity, wanted) is None
        os.kill(process.pid, 0)
    assert await adopt(noted, spec) is None


async def test_how_it_ended_cannot_be_found_out(spec: DaemonSpec, programs: Programs) -> None:
    """Its end counts nonetheless, else no other daemon would follow."""

    async def find_end() -> str:
        raise RuntimeError("can't start new thread")

    async with running(spec, programs) as process:
        watched = DaemonProcess(process.identity, find_end)
        watched.kill()
        assert await watched.wait() == "its status is not known"


async def test_what_it_said_last(spec: DaemonSpec, programs: Programs) -> None:
    """Its log goes on over starts."""
    (Path(spec.log_directory) / "end").touch()
    for _ in range(2):
        assert await (await ChildLauncher(programs).launch(spec)).wait() == "status 3"
    said = (Path(spec.log_directory) / LOG_NAME).read_text().splitlines()
    assert said == ["first line", "last line"] * 2
