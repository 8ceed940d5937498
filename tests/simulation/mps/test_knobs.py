"""Every knob, turned on a daemon or server that runs; how the programs are installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.errors import UsageError
from nodeagent.simulation.mps import settings
from nodeagent.simulation.mps.clients import ClientError, SimulatedClient
from nodeagent.simulation.mps.installation import CONTROL_PROGRAM, install
from nodeagent.simulation.mps.knobs import KNOBS, Knobs, Watched
from tests.machine_load import stretched
from tests.simulation.mps.rig import Answer, Programs, Rig, gone, until

US = os.geteuid()


@pytest.fixture
def server(rig: Rig) -> int:
    """A server that is ready, without clients."""
    rig.start()
    rig.ask(f"start_server -uid {US}")
    pid = rig.server()
    until(lambda: rig.ask(f"get_server_status {pid}") == "ACTIVE\n")
    return pid


def test_only_knobs_that_there_are_can_be_turned(tmp_path: Path) -> None:
    """A wrong name is reported at once, with the right ones."""
    with pytest.raises(ValueError, match=r"explode.*server_slow"):
        Knobs(tmp_path).turn("explode")


def test_knobs_by_daemon_and_for_all(tmp_path: Path) -> None:
    """The daemon's own wins; clearing takes back some or all."""
    one, other = tmp_path / "one", tmp_path / "other"
    Knobs(tmp_path).turn("server_slow", 1)
    mine = Knobs(tmp_path, one)
    mine.turn("server_slow", 2)
    mine.turn("deaf")
    seen = [Watched(str(tmp_path), str(place)) for place in (one, other)]

    def values(knob: str) -> list[object]:
        for watched in seen:
            watched.look()
        return [watched.get(knob) for watched in seen]

    assert (values("server_slow"), values("deaf")) == ([2, 1], [True, None])
    mine.clear("server_slow")
    assert (values("server_slow"), values("deaf")) == ([1, 1], [True, None])
    mine.clear()
    assert values("deaf") == [None, None]


def test_what_acts_now_acts_once(tmp_path: Path) -> None:
    """And not on a process that starts later."""
    old, knobs = Watched(str(tmp_path), "/p"), Knobs(tmp_path)
    knobs.turn("die")
    old.look()
    assert [old.now("die"), old.now("die")] == [True, None]
    new = Watched(str(tmp_path), "/p")
    new.look()
    assert new.now("die") is None
    assert KNOBS["die"].startswith("now")


def test_die(rig: Rig, server: int) -> None:
    """The daemon is gone with its files left, and its server is an orphan."""
    daemon, files = rig.daemon(), rig.modes()
    rig.knobs.turn("die")
    until(lambda: gone(daemon))
    assert rig.modes() == files
    assert not gone(server)
    rig.start()
    assert rig.ask("get_server_list") == ""


def test_die_after(rig: Rig) -> None:
    """Every daemon dies so long after its start."""
    rig.knobs.turn("die_after", 0.1)
    for _ in range(2):
        child = rig.foreground(wait=False)
        assert child.wait(stretched(30)) == -signal.SIGKILL


def test_hang(rig: Rig) -> None:
    """A front-end waits in vain, until the knob is cleared."""
    rig.start()
    rig.knobs.turn("hang")
    with pytest.raises(subprocess.TimeoutExpired):
        rig.run(stdin="get_server_list", timeout=0.5)
    rig.knobs.clear("hang")
    until(lambda: rig.run(stdin="get_default_client_priority").stdout == "0\n")


def test_deaf(rig: Rig) -> None:
    """Only SIGKILL ends it."""
    rig.knobs.turn("deaf")
    child = rig.foreground()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        child.send_signal(number)
    assert rig.ask("get_default_client_priority") == "0\n"
    assert child.poll() is None
    child.kill()
    assert child.wait(stretched(30)) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("how", "answer"),
    [
        ("error", Answer("", "Cannot send command to MPS control daemon process\n", 1)),
        ("empty", Answer("", "", 0)),
    ],
)
def test_busy(rig: Rig, how: str, answer: Answer) -> None:
    """In both ways in which the real one is."""
    rig.start()
    rig.knobs.turn("busy", how)
    until(lambda: rig.run(stdin="get_default_client_priority") == answer)
    rig.knobs.clear()
    until(lambda: rig.run(stdin="get_default_client_priority").stdout == "0\n")


@pytest.mark.parametrize(("text", "reported"), [("Cannot do it", "Cannot do it\n"), ("", "")])
def test_start_error(rig: Rig, text: str, reported: str) -> None:
    """With a word or without."""
    rig.knobs.turn("start_error", text)
    assert rig.run("-d") == Answer(reported, "", 1)
    rig.knobs.clear()
    rig.start()


def test_slow_start(rig: Rig) -> None:
    """Commands find no daemon until it listens."""
    rig.knobs.turn("slow_start", 600)
    child = rig.foreground(wait=False)
    assert rig.run(stdin="get_server_list").status == 1
    rig.knobs.turn("slow_start", 0)
    until(lambda: rig.run(stdin="get_server_list").status == 0)
    assert child.poll() is None


def test_slow_sockets(rig: Rig) -> None:
    """A daemon ends that does not find the socket which it is making."""
    rig.knobs.turn("slow_sockets", 0.2)
    child = rig.foreground(wait=False)
    made = rig.pipes / "control_privileged"
    until(made.exists)
    made.unlink()
    assert child.wait(stretched(30)) == 1


def test_forget_limits(rig: Rig) -> None:
    """What was set is not there any more."""
    rig.start()
    rig.ask("set_default_device_pinned_mem_limit 0 2G", "set_default_active_thread_percentage 5")
    rig.knobs.turn("forget_limits")
    until(lambda: rig.ask("get_default_device_pinned_mem_limit 0") == "")
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"


def test_ignore_settings(rig: Rig) -> None:
    """Replies are as if they had been taken; only reading back shows it."""
    rig.knobs.turn("ignore_settings")
    rig.start()
    assert rig.ask("set_default_active_thread_percentage 5") == "5.0\n"
    assert rig.ask("set_default_device_pinned_mem_limit 0 2G") == ""
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"
    assert rig.ask("get_default_device_pinned_mem_limit 0") == ""


def test_lose_pipes(rig: Rig) -> None:
    """The daemon lives and cannot be found."""
    rig.start()
    daemon = rig.daemon()
    rig.knobs.turn("lose_pipes")
    until(lambda: not rig.pipes.exists())
    assert rig.run(stdin="get_server_list").status == 1
    assert not gone(daemon)


def test_lose_logs(rig: Rig) -> None:
    """It goes on without."""
    rig.start()
    rig.knobs.turn("lose_logs")
    until(lambda: not rig.logs.exists())
    assert rig.ask("get_default_client_priority") == "0\n"


def test_stray_client(rig: Rig, server: int) -> None:
    """A client of another user is in the log; no process is needed for it."""
    with SimulatedClient(rig.pipes) as client:
        client.wait_until_accepted()
        rig.knobs.turn("stray_client", {"pid": 4711, "uid": US + 4})
        line = f"NEW CLIENT 4711 from user {US + 4}: Server is not ready, push client to pending "
        until(lambda: f"{line}list" in rig.log())
        assert rig.ask("get_server_list") == f"{server}\n"


def test_server_slow(rig: Rig) -> None:
    """It is INITIALIZING, and per-server commands get no reply."""
    rig.knobs.turn("server_slow", 600)
    rig.start()
    rig.ask(f"start_server -uid {US}")
    pid = rig.server()
    assert rig.ask(f"get_server_status {pid}", f"get_active_thread_percentage {pid}") == (
        "INITIALIZING\n"
    )
    rig.knobs.turn("server_slow", 0)
    until(lambda: rig.ask(f"get_server_status {pid}") == "ACTIVE\n")
    assert rig.ask(f"get_active_thread_percentage {pid}") == "100.0\n"


@pytest.mark.parametrize(("knob", "value", "status"), [("server_exit", 5, 5), ("no_gpu", True, 1)])
def test_a_server_that_fails(rig: Rig, knob: str, value: object, status: int) -> None:
    """Its status is the daemon's in the end."""
    rig.knobs.turn(knob, value)
    child = rig.foreground()
    rig.ask(f"start_server -uid {US}")
    until(lambda: rig.ask("get_server_list") == "")
    rig.run(stdin="quit")
    assert child.wait(stretched(30)) == status


@pytest.mark.skipif(US != 0, reason="only root can be another user")
def test_server_uid(rig: Rig) -> None:
    """The daemon says one user, the process is another's."""
    rig.knobs.turn("server_uid", 1234)
    rig.start()
    rig.ask("start_server -uid 1000")
    pid = rig.server()
    until(lambda: rig.ask(f"get_server_status {pid}") == "ACTIVE\n")
    assert f"Starting new server {pid} for user 1000" in rig.log()
    assert Path(f"/proc/{pid}").stat().st_uid == 1234


def test_server_deaf(rig: Rig, server: int) -> None:
    """Forcing does nothing, nor does SIGTERM."""
    rig.knobs.turn("server_deaf")
    until(lambda: _ignores(server, signal.SIGTERM))
    rig.ask(f"shutdown_server {server} -f")
    os.kill(server, signal.SIGTERM)
    assert rig.ask(f"get_server_status {server}") == "ACTIVE\n"
    assert not gone(server)


def test_server_die(rig: Rig, server: int) -> None:
    """The daemon notes it; clients lose their connection."""
    with SimulatedClient(rig.pipes) as client:
        client.wait_until_accepted()
        rig.knobs.turn("server_die")
        with pytest.raises(ClientError) as caught:
            client.next_answer()
        assert caught.value.code == 806
    until(lambda: f"Server {server} exited with status 0" in rig.log())


def test_server_busy(rig: Rig, server: int) -> None:
    """No reply, and the log says why."""
    rig.knobs.turn("server_busy")
    until(lambda: rig.ask(f"get_active_thread_percentage {server}") == "")
    assert f"Server {server} is <busy>" in rig.log()


def test_server_hang(rig: Rig, server: int) -> None:
    """A client waits for ever, and the daemon knows nothing."""
    rig.knobs.turn("server_hang")
    until(lambda: _waits(rig))
    assert rig.ask(f"get_server_status {server}") == "ACTIVE\n"


def test_fault(rig: Rig, server: int) -> None:
    """Held, it stays without any client; cleared, the server recovers by itself."""
    rig.knobs.turn("fault", "hold")
    until(lambda: rig.ask(f"get_server_status {server}") == "FAULT\n")
    with SimulatedClient(rig.pipes) as client, pytest.raises(ClientError) as caught:
        client.wait_until_accepted()
    assert caught.value.code == 807
    rig.knobs.clear("fault")
    until(lambda: rig.ask(f"get_server_status {server}") == "ACTIVE\n")


def test_terminate_code(rig: Rig, server: int) -> None:
    """A client that cannot be terminated stays; with -1 there is no answer, ever."""
    with SimulatedClient(rig.pipes) as client:
        client.wait_until_accepted()
        command = f"terminate_client {server} {client.pid}"
        rig.knobs.turn("terminate_code", 700)
        until(lambda: rig.ask(f"get_client_list {server}") == f"{client.pid}\n")
        assert rig.ask(command) == "700\n"
        client.allocate(1)
        rig.knobs.turn("terminate_code", -1)
        with pytest.raises(subprocess.TimeoutExpired):
            rig.run(stdin=command, timeout=0.5)


def test_every_knob_has_its_test() -> None:
    """Here, by name."""
    named = Path(__file__).read_text()
    assert [knob for knob in KNOBS if f'"{knob}"' not in named] == []


def test_the_programs_start_without_slow_modules(installed: Callable[[str], Programs]) -> None:
    """Each is run hundreds of times by tests; these modules would double their start."""
    folder = installed("550").folder
    slow = {"dataclasses", "inspect", "pathlib", "subprocess", "argparse", "pynvml", "asyncio"}
    for module in ("front_end", "server", "client_process"):
        script = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r}); "
            f"import nodeagent.simulation.mps.{module}; print(*sys.modules)"
        )
        loaded = subprocess.run(
            [sys.executable, "-IS", "-c", script], capture_output=True, text=True, check=True
        )
        assert slow & set(loaded.stdout.split()) == set()
    assert (folder / "nvidia-cuda-mps-server").exists()


def _ignores(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.partition("SigIgn:\t")[2].split()[0], 16)
    return bool(mask >> (number - 1) & 1)


def _waits(rig: Rig) -> bool:
    with SimulatedClient(rig.pipes) as client:
        try:
            client.wait_until_accepted(0.3)
        except TimeoutError:
            return True
    return False


def test_only_known_versions_can_be_installed(tmp_path: Path) -> None:
    """The error lists them."""
    with pytest.raises(UsageError, match="535, 550, 555, 580, 615"):
        install(tmp_path, version="470")


@pytest.mark.parametrize("folder", ["short", "with space", "long" * 40])
def test_wherever_the_interpreter_is(tmp_path: Path, folder: str) -> None:
    """Also where its path cannot stand in a first line."""
    place = tmp_path / folder
    place.mkdir()
    python = place / "python"
    python.symlink_to(sys.executable)
    install(tmp_path / "bin", python=python)
    done = subprocess.run(
        [tmp_path / "bin" / CONTROL_PROGRAM, "-h"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_surrounds_them_does_not_matter(tmp_path: Path) -> None:
    """Neither Python's variables nor the current folder."""
    install(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong module')")
    done = subprocess.run(
        [tmp_path / CONTROL_PROGRAM, "-h"],
        env={"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "/nowhere"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


DEVICES = ("GPU-1", "GPU-2")


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("0=1G", {0: 1 << 30}),
        ("0=1G,1=512MB", {0: 1 << 30, 1: 512 << 20}),
        ("GPU-2=3G", {1: 3 << 30}),
        ("GPU-9=3G", {}),
        ("0=0G", {}),
        ("0", {}),
        ("", {}),
    ],
)
def test_limits_in_a_clients_environment(text: str, limits: dict[int, int]) -> None:
    """By ordinal or UUID; what means nothing is no limit."""
    assert limits == settings.client_limits(text, DEVICES)


@pytest.mark.parametrize(
    ("size", "shown"),
    [(1 << 20, "1M"), ((1 << 30) - 1, "1023M"), (1 << 30, "1G"), (2 * (1 << 30) - 1, "1G")],
)
def test_limits_are_shown_rounded_down(size: int, shown: str) -> None:
    """To G from 1 G up."""
    assert shown == settings.shown_limit(size)


def test_a_huge_limit_wraps_around() -> None:
    """At 64 bits."""
    assert settings.shown_limit(settings.limit("99999999999999G")) == "13161349119G"
