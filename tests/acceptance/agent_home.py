"""A simulated node with an agent as a process, its daemons and clients, in a folder of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nodeagent.simulation.mps.clients import SimulatedClient
from tests.agent_environment import agent_environment, asked, run_command
from tests.folders import end_processes_of
from tests.machine_load import stretched, wait_until

SOON = 60.0  # seconds that anything may take on a busy machine
GIB = 1024**3
USER = 1000 if os.geteuid() == 0 else os.geteuid()


class Home:
    """A folder of one simulated node: its state, plan and the agents that run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "node.json"
        self.plan = folder / "plan.yaml"
        self.boards = "h100-80gb:2"
        self.agent: subprocess.Popen[bytes] | None = None
        self.settings: dict[str, str] = {}  # of the agents, as variables; an empty one is not set
        self.wrapper: list[str] = []  # a command that the agents are run by

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "nodeagent", *arguments]

    def start(self, *arguments: str) -> None:
        """Run an agent; it says what it says into the folder."""
        given = ("--state", str(self.state), *arguments)
        command = [*self.wrapper, *run_command(self.folder, *given, boards=self.boards)]
        with (self.folder / "stderr").open("ab") as errors:
            self.agent = subprocess.Popen(command, stderr=errors, env=self.environment)

    def stop(self, number: signal.Signals) -> None:
        assert self.agent is not None
        self.agent.send_signal(number)
        self.agent.wait(stretched(SOON))
        self.agent = None

    @property
    def environment(self) -> dict[str, str]:
        variables = {
            **agent_environment(),
            "NODEAGENT_MPS_FIRST_DELAY": "100ms",
            "NODEAGENT_RUN_DIR": f"{self.folder}/run",
            **self.settings,
        }
        return {name: value for name, value in variables.items() if value}

    def ask(self, *arguments: str) -> Any:
        """The JSON that a command prints; None while it fails."""
        done = self.run(*arguments, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout else None

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            env=self.environment,
            check=False,
        )

    def daemons(self) -> list[dict[str, Any]]:
        """What the agent answers, none while it starts; without one, what `mps status` prints."""
        try:
            return list(self.get("/v1/mps")["daemons"])
        except OSError:
            if self.agent is not None and self.agent.poll() is None:
                return []
        answer = self.ask("mps", "status")
        return answer["daemons"] if answer else []

    def events(self) -> list[dict[str, Any]]:
        return list(self.get("/v1/events"))

    def get(self, path: str) -> Any:
        """The JSON that the agent answers over its socket; raises OSError while there is none."""
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        """As `get`, for an answer that need not be JSON."""
        return asked(self.folder, path)[1]

    def status(self) -> dict[str, Any]:
        """As the agent has it; empty while it does not answer."""
        try:
            return dict(self.get("/v1/status"))
        except OSError:
            return {}

    def until(self, condition: Callable[[], Any]) -> Any:
        def found() -> Any:
            so = condition()
            assert so or self.agent is None or self.agent.poll() is None, self.said()
            return so

        return wait_until(found, said=lambda: self.said()[-3000:])

    def all_ready(self, count: int = 6) -> list[dict[str, Any]]:
        def ready() -> list[dict[str, Any]]:
            found = self.daemons()
            return found if [d["state"] for d in found] == ["Ready"] * count else []

        return list(self.until(ready))

    def said(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def env_of(self, device: str, slot: str) -> dict[str, str]:
        """The env file of a slot, as systemd or docker read it."""
        lines = (self.folder / "run/mps" / device / "env" / f"{slot}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))

    @contextlib.contextmanager
    def client(self, device: str, slot: str, index: str = "0") -> Iterator[SimulatedClient]:
        """A CUDA program with the environment of a slot, accepted by the server."""
        environment = self.env_of(device, slot)
        pipes = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        with SimulatedClient(
            pipes, uid=USER, environment=environment, state=self.state, device=index
        ) as client:
            client.wait_until_accepted(SOON)
            yield client

    def end_everything(self) -> None:
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait(stretched(SOON))
        end_processes_of(self.folder)
