"""How servers are started and ended, the same for the stand-in and for the real program.

The servers here are scripts that never speak with the daemon: that shows everything but their
work, and the real daemon needs no GPU for it.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine_load import stretched, wait_until
from tests.simulation.mps.rig import DEVICE, Programs, Rig, gone

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
US = f"start_server -uid {os.geteuid()}"


@pytest.fixture
def rig(compared: Programs) -> Iterator[Rig]:
    """A daemon whose servers sleep."""
    with Rig(compared, server="sleeping") as made:
        yield made


def test_a_server_that_does_not_get_ready(rig: Rig) -> None:
    rig.start()
    assert rig.ask(US) == ""
    pid = rig.server()
    if rig.programs.version.server_status:
        assert rig.ask(f"get_server_status {pid}") == "INITIALIZING\n"
    assert rig.ask(f"get_client_list {pid}", f"get_active_thread_percentage {pid}") == ""
    assert rig.ask(f"set_device_pinned_mem_limit {pid} 0 1G") == ""
    assert rig.ask(f"terminate_client {pid} 5") == f"Server {pid} not found!\n1\n"
    assert rig.log().count(f"Server {pid} is <busy>") == 3


def test_the_start_is_logged_by_whom(rig: Rig) -> None:
    """Since 550 the line bears the server's pid."""
    rig.start()
    rig.ask(US)
    pid = rig.server()
    author = pid if rig.programs.version.starter_is_server else rig.daemon()
    log = (rig.logs / "control.log").read_text()
    assert f"{author}] Starting new server {pid} for user {os.geteuid()}\n" in log


def test_what_a_server_inherits(rig: Rig) -> None:
    rig.start(SOMETHING="else")
    rig.ask(US)
    pid = rig.server()
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    assert os.getsid(pid) == rig.daemon()
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"SOMETHING=else" in environment
    assert f"CUDA_VISIBLE_DEVICES={DEVICE}".encode() in environment
    files = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    assert {str(rig.logs / "control.log"), str(rig.logs / "server.log")} < files
    assert str(rig.pipes / "control_lock") in files


@AS_ROOT
def test_another_users_server_keeps_the_group(rig: Rig) -> None:
    rig.start()
    rig.ask("start_server -uid 1000")
    pid = rig.server()
    status = Path(f"/proc/{pid}/status").read_text()
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    assert "Uid:\t1000\t1000\t1000\t1000\n" in status
    assert "Gid:\t0\t0\t0\t0\n" in status


@AS_ROOT
def test_one_user_at_a_time(rig: Rig) -> None:
    rig.start()
    assert rig.ask("start_server -uid 0", "start_server -uid 1000", "start_server -uid 0") == ""
    first = rig.server()
    assert rig.ask("get_server_list") == f"{first}\n"
    assert rig.ask(f"shutdown_server {first} -f") == ""
    wait_until(lambda: rig.ask("get_server_list") not in {"", f"{first}\n"})
    assert "Uid:\t1000" in Path(f"/proc/{rig.server()}/status").read_text()


def test_an_orderly_shutdown_waits_for_a_server_to_get_ready(rig: Rig) -> None:
    rig.start()
    rig.ask(US)
    pid = rig.server()
    assert rig.ask(f"shutdown_server {pid}", "get_server_list") == f"{pid}\n"
    assert rig.ask(f"shutdown_server {pid} -f") == ""
    wait_until(lambda: rig.ask("get_server_list") == "")
    assert f"Server {pid} exited with status 0" in rig.log()
    named = f"Force shutting down server {pid}" in rig.log()
    assert named == rig.programs.version.names_forced_shutdown


@pytest.mark.parametrize(("kind", "status"), [("exiting", 3), (None, 1)])
def test_a_server_that_cannot_start(compared: Programs, kind: str | None, status: int) -> None:
    with Rig(compared, server=kind) as rig:
        if kind is None:
            control = rig.programs.folder / "nvidia-cuda-mps-control"
            alone = rig.folder / "alone"
            alone.mkdir()
            (alone / control.name).symlink_to(control)
            rig.environment["PATH"] = f"{alone}:/bin"
        child = rig.foreground()
        assert rig.ask(US) == ""
        wait_until(lambda: rig.ask("get_server_list") == "")
        assert child.poll() is None
        rig.run(stdin="quit")
        output, _ = child.communicate(timeout=stretched(30))
        assert child.returncode == status
        assert f"exited with status {status}" in output
        assert f"Exit with status {status}" in output


def test_a_server_that_is_killed_is_not_started_again(rig: Rig) -> None:
    rig.start()
    rig.ask(US)
    pid = rig.server()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: rig.ask("get_server_list") == "")
    assert f"Server {pid} exited with status 0" in rig.log()


def test_quit_waits_for_servers(rig: Rig) -> None:
    rig.start()
    rig.ask(US)
    pid, daemon = rig.server(), rig.daemon()
    with rig.holding_front_end() as front_end:
        rig.type(front_end, "quit\n")
        wait_until(lambda: "Cmd:quit" in rig.log())
        assert rig.run(stdin="get_server_list").stdout == ""
        assert not gone(daemon)
        os.kill(pid, signal.SIGINT)
        front_end.communicate(timeout=stretched(30))
    wait_until(lambda: gone(daemon))
    assert rig.log().splitlines()[-1] == "Exit with status 0"


def test_quit_with_a_time_limit_forces_servers(rig: Rig) -> None:
    rig.start()
    rig.ask(US)
    pid = rig.server()
    assert rig.run(stdin="quit -t 1").stdout == ""
    wait_until(lambda: gone(pid))
    assert "quit command issued with timeout of 1" in rig.log()


def test_a_server_that_ignores_the_signal_holds_quit_up(compared: Programs) -> None:
    with Rig(compared, server="deaf") as rig:
        rig.start()
        rig.ask(US)
        daemon = rig.daemon()
        wait_until((rig.logs / "deaf").exists)
        with rig.holding_front_end() as front_end:
            rig.type(front_end, "quit -t 0\n")
            wait_until(lambda: "quit command issued" in rig.log())
            assert not gone(daemon)
            (rig.logs / "over").touch()
            front_end.communicate(timeout=stretched(60))
        wait_until(lambda: gone(daemon))


def test_a_killed_daemon_leaves_its_server_behind(rig: Rig) -> None:
    rig.start()
    rig.ask(US)
    orphan, daemon = rig.server(), rig.daemon()
    os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: gone(daemon))
    rig.start()
    assert rig.ask("get_server_list") == ""
    assert not gone(orphan)
