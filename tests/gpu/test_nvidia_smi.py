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
