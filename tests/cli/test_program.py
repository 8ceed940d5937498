import io
import itertools
import json
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.cli import main, shared_node
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.parser import parse
from nodeagent.mps.files import records
from tests.agent_environment import own_host
from tests.cli.conftest import Program
from tests.machine_load import stretched, wait_until

_PROGRAM = [sys.executable, "-m", "nodeagent"]


def test_a_closed_standard_input_is_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["assert", "-f", "-", "--simulate", "t4:1"]) == 2
    assert capsys.readouterr().err.startswith("nodeagent: standard input is closed")


def test_complaints_that_cannot_be_written_leave_the_code(h100: Program) -> None:
    with (
        Path("/dev/full").open("wb") as full,
        h100.process("plan", "-f", h100.directory / "none", stderr=full) as process,
    ):
        pass
    assert process.returncode == 2


def test_a_reader_that_leaves_early_hears_no_complaint(h100: Program) -> None:
    for words in (["simulate", "boards"], ["--help"], ["profiles", "--state", str(h100.state)]):
        with h100.process(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0


def test_no_standard_streams_at_all(h100: Program) -> None:
    command = f"exec {' '.join(_PROGRAM)} export --state {h100.state} >&- 2>&- <&-"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0


def test_a_full_disk_is_code_1(h100: Program) -> None:
    """The document is lost, and a script must notice."""
    command = f"{' '.join(_PROGRAM)} export --state {h100.state} > /dev/full"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("nodeagent: the answer could not be written: No space left")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_interrupting_is_silent(h100: Program, number: signal.Signals, code: int) -> None:
    h100.on("simulate", "fault", "nvmlDeviceGetCount*", "--latency", "60", "--count", "1")
    words = ("export", "--state", h100.state, "--run-dir", "run")
    with h100.process(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        # It is spent once the look has begun.
        wait_until(lambda: not json.loads(h100.state.read_text())["faults"])
        process.send_signal(number)
        _, err = process.communicate(timeout=stretched(30))
    assert process.returncode == code
    assert err == b""


def test_an_own_fault(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # what no caller should do
    assert main(["plan", "-f", "-", "--simulate", "t4:1"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("nodeagent: internal error in ")
    assert len(err.splitlines()) == 1


def test_what_agents_leave_is_looked_for_where_they_leave_it() -> None:
    assert shared_node._RECORDS == records.FOLDER


def test_variables_hold_for_one_shot_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEAGENT_RESET", "whenIdle")
    monkeypatch.setenv("NODEAGENT_GPU_PARALLEL", "3")
    found = command_settings(parse(["apply", "-f", "x"]))
    assert (found.policy.reset_when_idle, found.gpu.parallel) == (True, 3)
    found = command_settings(parse(["apply", "-f", "x", "--reset", "never"]))
    assert not found.policy.reset_when_idle


SLOW = {"aiohttp", "structlog", "psutil", "pydantic", "kubernetes", "asyncinotify", "grpc"}


def _imported(*words: str) -> set[str]:
    code = (
        f"import atexit, sys; sys.argv[1:] = {words!r}; "
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
        "from nodeagent.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    *_, loaded = done.stderr.splitlines()
    return set(loaded.split())


def test_status_imports_neither_the_planner_nor_slow_libraries() -> None:
    loaded = _imported("status", "--listen", "127.0.0.1:1")
    assert "nodeagent.cli.status" in loaded
    unneeded = {"nodeagent.plan.plan", "nodeagent.plan.observed", "nodeagent.runbook"}
    assert not loaded & {*SLOW, *unneeded, "asyncio", "dataclasses", "msgspec", "yaml"}


@pytest.mark.parametrize("name", ["plan", "assert", "export", "apply"])
def test_commands_do_not_import_what_they_do_not_need(name: str, program: Program) -> None:
    program.node("h100-80gb:8")
    path = program.plan("{devices: all, mig: {1g.10gb: 7}}")
    words = [name] if name == "export" else [name, "-f", str(path)]
    loaded = _imported(*words, "--state", str(program.state))
    assert "nodeagent.plan.observed" in loaded
    unneeded = {"nodeagent.mps", "nodeagent.cluster.kubelet"}
    assert not loaded & (SLOW | unneeded)


SPLIT = "{devices: [0, 1], mig: {3g.40gb: 1, 1g.10gb: 4}}"


@contextmanager
def _agent(program: Program, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """An agent; asked to stop by SIGTERM afterwards."""
    with program.process("run", *words, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=stretched(30))


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for row in process.stderr:
        if row.startswith("{") and (url := json.loads(row).get("url")):
            return str(url).removeprefix("http://").rstrip("/")
    raise AssertionError("it ended before it answered")


def test_an_agent_on_a_simulated_node(program: Program) -> None:
    plan = program.plan(SPLIT)
    program.node("h100-80gb:2")
    words = ("--state", program.state, "--plan", plan, "--listen", "127.0.0.1:0")
    with _agent(program, *words) as process:
        shown = program("status", "--listen", _address(process))
        assert shown.code == 0
        assert "InSync" in shown.out
        assert "GPUs 0-1" in shown.out
        assert program.on("assert", "-f", plan).code == 0
        refused = program.on("apply", "-f", plan)
        assert refused.code == 1
        assert f"process {process.pid}" in refused.err
    assert process.returncode == 0


def test_it_says_where_to_look(program: Program) -> None:
    address = f"{own_host()}:9417"
    words = ("--simulate", "t4:1", "--state", program.state, "--listen", address)
    with _agent(program, *words, "--plan", program.directory / "none.yaml") as process:
        assert process.stderr is not None
        rows = list(itertools.takewhile(lambda row: row != f"http://{address}/\n", process.stderr))
        status, xid, reboot = (shlex.split(row, comments=True) for row in rows[-3:])
        assert status[:3] == xid[:3] == reboot[:3] == [sys.executable, "-m", "nodeagent"]
        assert (xid[4], reboot[4]) == ("xid", "reboot")
        assert program(*xid[3:]).code == program(*reboot[3:]).code == 0
        status.remove("--watch")
        assert program(*status[3:]).code == 0
    assert rows[0].startswith("nodeagent keeps simulated t4:1 as ")
    assert process.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--drift", "ignore"),
        ("--resync", "0"),
        ("--simulate", "h100:1"),
        ("--settings", "/nowhere/settings.yaml"),
    ],
)
def test_bad_settings_are_code_2(words: tuple[str, ...], program: Program) -> None:
    refused = program("run", "--listen", f"{own_host()}:9417", *words)
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) <= 2


def test_a_taken_address_is_code_1(program: Program) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ("--simulate", "t4:1", "--state", program.state)
        failed = program("run", *words, "--listen", f"127.0.0.1:{port}")
    assert failed.code == 1
    assert failed.err.startswith(
        f"nodeagent: the API cannot listen on 127.0.0.1:{port}: another program already does\n"
    )
    assert f"`--listen 127.0.0.1:{port + 1}`, or end " in failed.err
    assert f"`ss -ltnp 'sport = :{port}'`" in failed.err
    assert len(failed.err.splitlines()) == 2
    assert list(program.directory.iterdir()) == []
