import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from nodeagent.mps.files.client_files import env_file
from nodeagent.mps.processes import mps_processes
from nodeagent.mps.shares import client_environment
from nodeagent.plan.shares import Share
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.mps.installation import CONTROL_PROGRAM, install, programs_in
from nodeagent.simulation.state_file import directory_beside
from tests.cli.conftest import Ended, Program
from tests.machine_load import wait_until
from tests.mps.plans import daemon_spec

GIB = 1 << 30
SHARE = Share("small", 2, 1024, 25.0)
# As root, so that a client of another user really is one; else the user that runs this.
USER = 1000 if os.geteuid() == 0 else os.geteuid()


class Node:
    """A simulated node whose GPU 1 has a daemon, and the folders that an agent makes for it."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program, self.state = program, folder / "n"
        assert program("export", "--simulate", "h100-80gb:2", "--state", self.state).code == 0
        with SimulatedNode(state=self.state) as node:
            self.device = node.card(1).identity.uuid
        self.top = directory_beside(self.state) / "run/mps" / self.device
        self.pipes = self.top / "pipe"
        self.programs = programs_in(directory_beside(self.state))

    def __call__(self, *words: str | Path) -> Ended:
        return self.program("simulate", *words, "--state", self.state)

    def publish(self) -> Path:
        """The env file of the first slot, as an agent writes it."""
        spec = daemon_spec(str(self.pipes), self.device, uid=USER, gid=USER)
        file = self.top / "env/small-0.env"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(env_file(client_environment(spec, SHARE.slots[0])))
        return file

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        install(self.programs)
        for path in (self.pipes, self.top / "log"):
            path.mkdir(parents=True, exist_ok=True)
            os.chown(path, USER, USER)
        process = subprocess.Popen(
            [self.programs / CONTROL_PROGRAM, "-f"],
            env={
                "PATH": f"{self.programs}:/usr/bin:/bin",
                "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
                "CUDA_MPS_LOG_DIRECTORY": str(self.top / "log"),
                "CUDA_VISIBLE_DEVICES": self.device,
            },
            stdout=subprocess.DEVNULL,
            user=USER if os.geteuid() == 0 else None,
            group=USER if os.geteuid() == 0 else None,
            extra_groups=[] if os.geteuid() == 0 else None,
        )
        try:
            wait_until((self.pipes / "control").exists)
            yield process
        finally:
            subprocess.run(
                [self.programs / CONTROL_PROGRAM],
                input=b"quit -t 1\n",
                env={"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes), "PATH": "/usr/bin:/bin"},
                check=False,
            )
            process.kill()
            process.wait()


@pytest.fixture
def node(program: Program, short: Path) -> Node:
    return Node(program, short)


# --- clients --------------------------------------------------------------------------------------


def test_a_client_has_its_slots_limits(node: Node) -> None:
    node.publish()
    words = ("client", "--slot", "1/small-0", "--allocate", "256Mi", "-o", "json")
    with (
        node.daemon(),
        node.program.process(
            "simulate", *words, "--state", node.state, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] not in {"}\n", ""}:
            lines.append(process.stdout.readline())
        process.terminate()
    said = json.loads("".join(lines))
    assert said == {
        "pid": said["pid"],
        "user": USER,
        "accepted": True,
        "device": node.device,
        "memory": {"used": 256 << 20, "limit": GIB},
        "threads": 25.0,
    }


def _let_in(said: IO[str]) -> str:
    """The line that says so; where the server takes its time, one that it waits comes before."""
    line = said.readline()
    if "waits to be let in" in line:
        line = said.readline()
    assert "is a client" in line
    return line


def test_a_client_of_another_user_waits_and_says_so(node: Node) -> None:
    node.publish()
    with (
        node.daemon(),
        node.program.process(
            "simulate",
            "client",
            "--slot",
            "1/small-0",
            "--state",
            node.state,
            stdout=subprocess.PIPE,
            text=True,
        ) as first,
    ):
        assert first.stdout is not None
        _let_in(first.stdout)
        ended = node("client", "--device", "1", "--uid", "1001", "--seconds", "1.5")
        first.terminate()
    assert ended.code == 0, ended
    assert "of user 1001 waits to be let in" in ended.out


def test_a_reboot_ends_daemons_servers_and_clients(node: Node) -> None:
    """Those of this node alone."""
    node.publish()
    words = ("simulate", "client", "--slot", "1/small-0", "--state", node.state)
    with (
        node.daemon() as daemon,
        node.program.process(*words, stdout=subprocess.PIPE, text=True) as client,
    ):
        assert client.stdout is not None
        _let_in(client.stdout)
        own = {one.pid for one in mps_processes() if one.pipe_directory == str(node.pipes)}
        assert own > {daemon.pid}
        other = node.state.with_name("other")
        assert node.program("export", "--simulate", "t4:1", "--state", other).code == 0
        assert node.program("simulate", "reboot", "--state", other).code == 0
        assert daemon.poll() is None
        assert node("reboot").code == 0
        wait_until(lambda: own.isdisjoint(one.pid for one in mps_processes()))
        assert client.wait(60) != 0


def test_without_a_daemon_there_is_no_mps(node: Node) -> None:
    """A CUDA program would silently go on without limits; this one says so."""
    node.publish()
    node.pipes.mkdir(parents=True)
    ended = node("client", "--slot", "1/small-0", "--seconds", "1")
    assert ended.code == 1
    assert "without MPS" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        *(("client", "--slot", "1/small-0", "--env", "x"), ("client", "--slot", "small-0")),
        *(("client", "--slot", "1/../x"), ("client", "--device", "7"), ("client", "--device", "1")),
        *(("client", "--env", "/nowhere"), ("client", "--env", "/dev/null"), ("mps", "explode")),
        *(("mps", "hang", "yes"), ("mps", "die_after"), ("mps", "die_after", "-1")),
        ("mps", "stray_client", "7"),
    ],
)
def test_what_is_not_there_is_code_2(words: tuple[str, ...], node: Node) -> None:
    ended = node(*words)
    assert ended.code == 2, ended
    assert len(ended.err.splitlines()) == 2, ended


def test_a_slot_that_there_is_not_is_named_with_those_that_there_are(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.publish()
    ended = node("client", "--slot", "1/small-9")
    assert (ended.code, "the slots there are small-0" in ended.err) == (2, True)
    assert "--run-dir" in node("client", "--slot", "0/small-0").err
    elsewhere = node.state.parent / "elsewhere"
    monkeypatch.setenv("NODEAGENT_RUN_DIR", str(elsewhere))
    assert f"{elsewhere}/mps/{node.device}/env" in node("client", "--slot", "1/small-0").err


# --- knobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [("--device", "1"), ()])
def test_a_knob_of_one_daemon_is_turned_and_back(device: tuple[str, ...], node: Node) -> None:
    with node.daemon():
        assert node("mps", "hang", "--device", "1").code == 0
        wait_until(lambda: not _answers(node))
        assert node("mps", "hang", "--clear", *device, "-o", "json").json == {"cleared": ["hang"]}
        wait_until(lambda: _answers(node))


def _answers(node: Node) -> bool:
    try:
        done = subprocess.run(
            [node.programs / CONTROL_PROGRAM],
            input=b"get_default_active_thread_percentage\n",
            env={"CUDA_MPS_PIPE_DIRECTORY": str(node.pipes), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=False,
            timeout=1,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.stdout == b"100.0\n"


@pytest.mark.parametrize(
    ("words", "knob", "value"),
    [
        (("hang",), "hang", True),
        (("die-after", "2.5"), "die_after", 2.5),
        (("fault",), "fault", True),
        (("stray_client", '{"pid": 7, "uid": 1001}'), "stray_client", {"pid": 7, "uid": 1001}),
        (("server-exit", "1"), "server_exit", 1),
    ],
)
def test_knobs_may_be_turned_before_there_is_a_daemon(
    words: tuple[str, ...], knob: str, value: object, node: Node
) -> None:
    assert node("mps", *words, "-o", "json").json == {"turned": knob, "value": value}
    [written] = (node.programs / "knobs").iterdir()
    assert json.loads(written.read_text())[knob][0] == value
    assert (node.programs / CONTROL_PROGRAM).exists()
    assert node("mps", "--clear").code == 0
    assert json.loads(written.read_text()) == {}
