"""The agent as a process on a simulated node, and what it answers."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.agent_environment import agent_environment, asked, run_command
from tests.machine_load import stretched, wait_until

SOON = 60.0  # seconds that anything may take


def write_plan(folder: Path, mig: str) -> None:
    """Replace the plan as most programs do."""
    new = folder / "plan.new"
    new.write_text(f"version: v1\ngpus:\n- devices: all\n  mig: {mig}\n")
    new.replace(folder / "plan.yaml")


class Process:
    """One `nodeagent run` on a simulated node of a state file; without `boards` on this machine."""

    def __init__(self, folder: Path, *arguments: str, boards: str = "h100-80gb:1", **env: str):
        self.folder = folder
        command = run_command(folder, *arguments, boards=boards)
        with (folder / "stderr").open("ab") as errors:
            self.popen = subprocess.Popen(command, stderr=errors, env=agent_environment(**env))

    def ask(self, path: str = "/v1/status") -> tuple[int, Any]:
        """Over the Unix socket; 0 while there is no answer."""
        try:
            status, text = asked(self.folder, path)
        except OSError:
            return 0, None
        return status, json.loads(text)

    def until(self, condition: Callable[[Any], bool]) -> Any:
        def found() -> Any:
            status, body = self.ask()
            assert self.popen.poll() is None, self.said()
            return body if status == 200 and condition(body) else None

        return wait_until(found, said=self.ask)

    def until_phase(self, phase: str) -> Any:
        return self.until(lambda body: body["phase"] == phase)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        return self.popen.wait(stretched(SOON))

    def memory(self) -> int:
        return psutil.Process(self.popen.pid).memory_info().rss

    def said(self) -> str:
        """What it, and every agent that ran in this folder before it, wrote to standard error."""
        return (self.folder / "stderr").read_text()


@contextlib.contextmanager
def agent(folder: Path, *arguments: str, **options: str) -> Iterator[Process]:
    process = Process(folder, *arguments, **options)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
            process.wait()


def profiles(status: Any, index: int = 0) -> list[str]:
    """The profiles of one GPU's devices, by slice."""
    found = sorted(status["gpus"][index]["instances"], key=lambda i: i["start"])
    return [instance["profile"] for instance in found]
