"""nvidia-smi gets no more than it needs, and is gone when its time is over."""

from __future__ import annotations

import sys

import pytest

from nodeagent.errors import DeadlineExceeded, DriverError
from nodeagent.gpu.nvidia_smi import run_nvidia_smi

SAY = """
import os, sys
print(sys.argv[1:], sorted(os.environ), flush=True)
print("oh", file=sys.stderr)
"""


async def test_it_gets_its_words_and_little_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is for the agent alone stays with it; where libraries are, is passed on."""
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "CUDA_VISIBLE_DEVICES", "SECRET"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    words = ["-i", "a b; true", "$HOME"]
    ended = await run_nvidia_smi([sys.executable, "-Ic", SAY], words, deadline=30)
    assert ended.status == 0
    said, environment = ended.output.split("] [")
    assert said == "['-i', 'a b; true', '$HOME'"
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "CUDA_VISIBLE_DEVICES", "SECRET"):
        assert name not in environment
    assert "'LD_LIBRARY_PATH'" in environment
    assert ended.output.endswith("oh\n")


async def test_how_it_ended_is_the_callers_to_judge() -> None:
    """With an error ready that has its words in it."""
    ended = await run_nvidia_smi(["sh"], ["-c", "echo not; echo today; exit 3"], deadline=30)
    assert (ended.status, ended.output) == (3, "not\ntoday\n")
    error = ended.failed("Sulks", remedy="wait")
    assert isinstance(error, DriverError)
    assert (error.name, error.remedy) == ("Sulks", "wait")
    assert error.message.endswith("ended with 3: not today")


async def test_it_is_late_or_not_there() -> None:
    """Both in a sentence."""
    with pytest.raises(DeadlineExceeded, match="did not end within"):
        await run_nvidia_smi(["sleep"], ["60"], deadline=0.1)
    with pytest.raises(DriverError, match="/nowhere/smi cannot be run: No such file"):
        await run_nvidia_smi(["/nowhere/smi"], [], deadline=1)
