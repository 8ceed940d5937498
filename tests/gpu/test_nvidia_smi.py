"""nvidia-smi gets no more than it needs, and is gone when its time is over."""

from __future__ import annotations

import asyncio
import stat
import sys
from pathlib import Path

import pytest

from nodeagent.errors import DeadlineExceeded, DriverError
from nodeagent.gpu.nvidia_smi import reset_gpu, run_nvidia_smi
from tests.machine_load import stretched

SAY = """
import os, sys
print(sys.argv[1:], sorted(os.environ), flush=True)
print("oh", file=sys.stderr)
"""


async def run(program: list[str], words: list[str], *, deadline: float = 30) -> str:
    """What it said."""
    return await run_nvidia_smi(
        program, words, deadline=deadline, failure="Sulks", remedy=lambda status: f"wait {status} s"
    )


async def test_it_gets_its_words_and_little_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is for the agent alone stays with it; where libraries are, is passed on."""
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "CUDA_VISIBLE_DEVICES", "SECRET"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    words = ["-i", "a b; true", "$HOME"]
    output = await run([sys.executable, "-Ic", SAY], words)
    said, environment = output.split("] [")
    assert said == "['-i', 'a b; true', '$HOME'"
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "CUDA_VISIBLE_DEVICES", "SECRET"):
        assert name not in environment
    assert "'LD_LIBRARY_PATH'" in environment
    assert output.endswith("oh\n")


async def test_a_failure_has_its_words() -> None:
    """And the remedy for its exit status."""
    with pytest.raises(DriverError, match="ended with 3: not today") as caught:
        await run(["sh"], ["-c", "echo not; echo today; exit 3"])
    assert (caught.value.name, caught.value.remedy) == ("Sulks", "wait 3 s")


async def test_it_is_late_or_not_there() -> None:
    """Both in a sentence."""
    with pytest.raises(DeadlineExceeded, match="did not end within"):
        await run(["sleep"], ["60"], deadline=0.1)
    with pytest.raises(DriverError, match="/nowhere/smi cannot be run: No such file"):
        await run(["/nowhere/smi"], [])


# --- a reset --------------------------------------------------------------------------------------

ADDRESS = "00000000:1A:00.0"


def program(folder: Path, text: str) -> str:
    """An executable shell script."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def test_the_gpu_is_named_by_its_pci_address(tmp_path: Path) -> None:
    """Indices of nvidia-smi may differ from NVML's, addresses do not."""
    smi = program(tmp_path, f'echo "$@" > {tmp_path}/said')
    await reset_gpu([smi, "--simulated"], ADDRESS, deadline=30)
    said = (tmp_path / "said").read_text()  # a test may wait for a small file
    assert said == f"--simulated --gpu-reset -i {ADDRESS}\n"


async def test_cancellation_leaves_no_process(tmp_path: Path) -> None:
    """The guard of the test suite would find it."""
    task = asyncio.create_task(
        reset_gpu([program(tmp_path, "exec sleep 60")], ADDRESS, deadline=50)
    )
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_a_wrapper_started_is_ended_with_it(tmp_path: Path) -> None:
    """Else it would hold the output open."""
    pid = tmp_path / "pid"
    smi = program(tmp_path, f"sleep 60 & echo $! > {pid}.new; mv {pid}.new {pid}; wait")
    for deadline in (0.2, 2, 30):  # a busy machine may start a shell late
        with pytest.raises(DeadlineExceeded):
            await reset_gpu([smi], ADDRESS, deadline=deadline)
        if pid.exists():
            break
    started = Path(f"/proc/{pid.read_text().strip()}/cmdline")
    async with asyncio.timeout(stretched(30)):
        while _words(started):
            await asyncio.sleep(0.01)


def _words(cmdline: Path) -> str:
    """Of a process; empty when it has ended."""
    try:
        return cmdline.read_text()
    except OSError:
        return ""
