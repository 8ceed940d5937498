"""A program of the administrator's or the driver's, run to its end."""

import os
import signal
from pathlib import Path

import pytest

from nodeagent.programs import run_program


async def test_a_daemon_that_a_program_leaves_running_is_not_waited_for() -> None:
    command = ("/bin/sh", "-c", "sleep 600 & echo $!")
    status, said, _ = await run_program(command, {}, deadline=20.0)
    os.kill(int(said), signal.SIGKILL)
    assert status == 0


async def test_one_that_is_late_keeps_no_pipe_open_where_a_daemon_of_its_own_goes_on(
    tmp_path: Path,
) -> None:
    def pipes() -> list[str]:
        links = (str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists())
        return sorted(link for link in links if link.startswith("pipe:"))

    before, left = pipes(), tmp_path / "left"
    command = ("/bin/sh", "-c", f"setsid sleep 600 & echo $! > {left}; sleep 600")
    with pytest.raises(TimeoutError):
        await run_program(command, {}, deadline=0.5)
    os.kill(int(left.read_text()), signal.SIGKILL)
    assert pipes() == before


async def test_the_end_of_what_it_says_is_kept() -> None:
    command = ("/bin/sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); echo $i; done; exit 3")
    status, said, _ = await run_program(command, {}, deadline=60.0)
    assert (status, said.split()[-1], len(said)) == (3, "30000", 1 << 16)
