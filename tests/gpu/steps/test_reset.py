"""nvidia-smi is run with the right words, within its deadline, and what it says is reported."""

from __future__ import annotations

import asyncio
import stat
import time
from pathlib import Path

import pytest

from nodeagent.errors import DeadlineExceeded, DriverError
from nodeagent.gpu.nvidia_smi import reset_gpu
from tests.machine_load import stretched

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


async def test_a_refusal_is_reported_in_the_programs_own_words(tmp_path: Path) -> None:
    """They say which process holds the GPU."""
    smi = program(tmp_path, 'echo "GPU is in use"; echo "by another client" >&2; exit 19')
    with pytest.raises(DriverError, match="ended with 19: GPU is in use by another client"):
        await reset_gpu([smi], ADDRESS, deadline=30)


async def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    """And is not left behind."""
    smi = program(tmp_path, "exec sleep 60")
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"did not end within 0.1 s"):
        await reset_gpu([smi], ADDRESS, deadline=0.1)
    assert time.monotonic() - began < 30  # half of what it would take


async def test_cancellation_leaves_no_process(tmp_path: Path) -> None:
    """The guard of the test suite would find it."""
    task = asyncio.create_task(
        reset_gpu([program(tmp_path, "exec sleep 60")], ADDRESS, deadline=50)
    )
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_missing_program_is_reported_with_its_path() -> None:
    """The path is a setting, so it may be wrong."""
    with pytest.raises(DriverError, match="/nowhere/nvidia-smi cannot be run"):
        await reset_gpu(["/nowhere/nvidia-smi"], ADDRESS, deadline=30)


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
