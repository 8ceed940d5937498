"""MPS as a user has it: the agent as a process, daemons of the stand-in, clients with shares."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.simulation.mps.clients import SimulatedClient

SOON = 30.0  # seconds that anything may take on a busy machine
GIB = 1024**3
USER = 1000 if os.geteuid() == 0 else os.geteuid()

PLAN = f"""\
version: v1
gpus:
  - devices: [0]
    mps:
      user: {USER}
      shares:
        small: {{count: 4, memory: 8Gi, threads: 15}}
        large: {{count: 1, memory: 40Gi, threads: 40}}
  - devices: [1]
    mig: {{3g.40gb: 1, 1g.10gb: 4}}
    mps: {{replicas: 2, user: {USER}}}
"""


class Home:
    """A folder of one simulated node: its state, plan and the agents that run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "node.json"
        self.plan = folder / "plan.yaml"
        self.agent: subprocess.Popen[bytes] | None = None

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "nodeagent", *arguments]

    def start(self, *arguments: str) -> None:
        """Run an agent; it says what it says into the folder."""
        with (self.folder / "stderr").open("ab") as errors:
            self.agent = subprocess.Popen(
                self.command(
                    "run",
                    *("--simulate", "h100-80gb:2", "--state", str(self.state)),
                    *("--plan", str(self.plan), "--listen", "127.0.0.1:0"),
                    *("--run-dir", f"{self.folder}/run", "--state-dir", f"{self.folder}/state"),
                    *arguments,
                ),
                stderr=errors,
                env=self.environment,
            )

    def stop(self, number: signal.Signals) -> None:
        """End the agent by a signal, and wait for its end."""
        assert self.agent is not None
        self.agent.send_signal(number)
        self.agent.wait(SOON)
        self.agent = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path.cwd()),
            "NODEAGENT_MPS_FIRST_DELAY": "100ms",
            "NODEAGENT_RUN_DIR": f"{self.folder}/run",
        }

    def ask(self, *arguments: str) -> Any:
        """The JSON that a command prints; None while it fails."""
        done = subprocess.run(
            self.command(*arguments, "-o", "json"),
            capture_output=True,
            env=self.environment,
            timeout=SOON,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout else None

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=SOON,
            check=False,
        )

    def daemons(self) -> list[dict[str, Any]]:
        """What `mps status` tells."""
        answer = self.ask("mps", "status")
        return answer["daemons"] if answer else []

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until it is so, and give what it is then."""
        deadline = time.monotonic() + SOON
        while time.monotonic() < deadline:
            if found := condition():
                return found
            assert self.agent is None or self.agent.poll() is None, self.said()
            time.sleep(0.05)
        raise AssertionError(f"not within {SOON} s; it said {self.said()[-3000:]}")

    def all_ready(self, count: int = 6) -> list[dict[str, Any]]:
        """The daemons, once there are so many and each is Ready."""

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
        """No process of this folder is left."""
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait(SOON)
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                if str(self.folder).encode() in (entry / "environ").read_bytes():
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def home() -> Iterator[Home]:
    """Not pytest's folder: other users have to reach it, and socket paths are short."""
    folder = Path(tempfile.mkdtemp(prefix="na-", dir="/tmp"))
    folder.chmod(0o755)
    place = Home(folder)
    place.plan.write_text(PLAN)
    try:
        yield place
    finally:
        place.end_everything()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(240)
def test_a_plan_with_shares_and_a_client_of_each(home: Home) -> None:
    """Two shares on one GPU and MPS on every instance of another: daemons under the plan's user,
    limits in force, and a client started with each share shows that share's own limits.
    """
    home.start()
    daemons = home.all_ready()
    whole = next(d for d in daemons if d["device"].startswith("GPU-"))
    assert {d["user"] for d in daemons} == {USER}
    for daemon in daemons:
        status = Path(f"/proc/{daemon['pid']}/status").read_text()
        assert f"\nUid:\t{USER}\t{USER}\t" in status
    assert whole["shares"] == {
        "small": {"count": 4, "memory": 8 * GIB, "threads": 15},
        "large": {"count": 1, "memory": 40 * GIB, "threads": 40},
    }
    device = whole["device"]
    with home.client(device, "small-0") as small, home.client(device, "large-0") as large:
        assert (small.terms["limit"], small.terms["percentage"]) == (8 * GIB, 15.0)
        assert (large.terms["limit"], large.terms["percentage"]) == (40 * GIB, 40.0)
        small.allocate(GIB)

        def shown() -> dict[int, Any]:
            answer = home.ask("mps", "clients") or {"daemons": []}
            clients = [c for d in answer["daemons"] for c in d["clients"]]
            found = {c["pid"]: c for c in clients if c.get("share")}
            known = len(found) == 2 and "used" in found[small.pid].get("memory", {})
            return found if known else {}

        clients = home.until(shown)
        assert clients[small.pid]["share"] == "small"
        assert clients[small.pid]["memory"] == {"used": GIB, "limit": 8 * GIB}
        assert clients[small.pid]["threads"] == 15
        assert clients[large.pid]["share"] == "large"
        assert clients[large.pid]["memory"]["limit"] == 40 * GIB
    assert home.run("assert", "-f", str(home.plan), "--state", str(home.state)).returncode == 0


@pytest.mark.timeout(240)
def test_the_agent_goes_and_its_daemons_stay(home: Home) -> None:
    """Killed, stopped, and replaced: the same daemons serve the same client, and the next agent
    takes them over as they are.
    """
    home.start()
    daemons = home.all_ready()
    pids = {d["device"]: d["pid"] for d in daemons}
    device = next(d["device"] for d in daemons if d["device"].startswith("GPU-"))
    with home.client(device, "small-0") as client:
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            home.stop(number)
            client.allocate(GIB)
            home.start()
            assert {d["device"]: d["pid"] for d in home.all_ready()} == pids
            assert all(d["restarts"] == 0 for d in home.daemons())
        client.allocate(GIB)


@pytest.mark.timeout(240)
def test_a_client_holds_its_device_until_it_goes(home: Home) -> None:
    """A plan that takes MPS away waits for the client and names it; when that is gone, the daemon
    goes, the layout is recut, and nobody else was disturbed.
    """
    home.start()
    daemons = home.all_ready()
    others = {d["pid"] for d in daemons if d["device"].startswith("GPU-")}
    device = next(d["device"] for d in daemons if d["device"].startswith("MIG-"))
    with home.client(device, "replica-0", index=device) as client:
        home.until(lambda: [c for d in home.daemons() for c in d["clients"]])
        home.plan.write_text(PLAN.replace("{3g.40gb: 1, 1g.10gb: 4}", "disabled"))
        status = home.until(lambda: (s := home.ask("status")) and s["phase"] == "Blocked" and s)
        assert any(str(client.pid) in p["message"] for p in status["problems"])
        assert device in {d["device"] for d in home.daemons()}
    home.until(lambda: (s := home.ask("status")) and s["phase"] == "InSync")
    left = home.all_ready(2)
    assert others <= {d["pid"] for d in left}
    assert all(d["device"].startswith("GPU-") for d in left)
    assert not Path(f"/proc/{next(d['pid'] for d in daemons if d['device'] == device)}").exists()


@pytest.mark.timeout(240)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_client_of_another_user_is_named(home: Home) -> None:
    """Whoever waits for a server that will never serve him is told within two seconds of asking:
    his pid and uid, and what to do.
    """
    home.start()
    daemons = home.all_ready()
    device = next(d["device"] for d in daemons if d["device"].startswith("GPU-"))
    environment = home.env_of(device, "small-1")
    pipes = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
    with home.client(device, "small-0"):
        began = time.monotonic()
        with SimulatedClient(pipes, uid=1001, environment=environment) as foreign:

            def named() -> list[dict[str, Any]]:
                return [w for d in home.daemons() for w in d.get("waiting", ())]

            [waiting] = home.until(named)
            assert time.monotonic() - began < 10  # 2 s is measured by the bench; machines are busy
            assert (waiting["pid"], waiting["user"]) == (foreign.pid, 1001)
            status = home.ask("status")
            [told] = [p for p in status["problems"] if str(foreign.pid) in p["message"]]
            assert "1001" in told["message"]
            assert str(USER) in told["remedy"]
        home.until(lambda: not named())
