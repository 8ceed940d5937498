"""The program on a simulated node that lasts from one command to the next."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeagent.catalogue import learn_agent
from nodeagent.cli import main
from nodeagent.simulation import SimulatedNode


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Program:
    """Runs command lines in this process, on the simulated node in `state`."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.state = directory / "node.json"
        self._capsys = capsys

    def __call__(self, *words: str | Path) -> Ended:
        self._capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = self._capsys.readouterr()
        return Ended(code, out, err)

    def on(self, *words: str | Path) -> Ended:
        """A command on the node; it must exist."""
        return self(*words, "--state", self.state)

    @contextmanager
    def process(self, *words: str | Path, **streams: Any) -> Iterator[subprocess.Popen[Any]]:
        """A command line as a process of its own, which does not outlive the test."""
        command = [sys.executable, "-m", "nodeagent", *map(str, words)]
        with subprocess.Popen(command, **streams) as process:
            try:
                yield process
                process.wait()
            finally:
                process.kill()

    def node(self, boards: str) -> None:
        made = self("export", "--simulate", boards, "--state", self.state)
        assert made.code == 0, made.err

    def release(self) -> None:
        """The users of GPU 0 end."""
        with SimulatedNode(state=self.state) as node:
            node.release(0)

    def file(self, text: str, name: str = "plan.yaml") -> Path:
        path = self.directory / name
        path.write_text(text, encoding="utf-8")
        return path

    def plan(self, gpus: str) -> Path:
        """A plan whose entries are `gpus`, in flow style."""
        return self.file(f"version: v1\ngpus: [{gpus}]\n")


@pytest.fixture
def program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Program]:
    yield Program(tmp_path, capsys)
    learn_agent({})


@pytest.fixture
def h100(program: Program) -> Program:
    program.node("h100-80gb:2")
    return program


@pytest.fixture
def a100(program: Program) -> Program:
    """The program on a node of one A100, whose MIG mode changes only at a reset."""
    program.node("a100-40gb:1")
    return program
