import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine_load import stretched, wait_until
from tests.simulation.mps.rig import Answer, Programs, Rig, gone

NOT_THERE = Answer("", "Cannot find MPS control daemon process\n", 1)
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def rig(compared: Programs) -> Iterator[Rig]:
    """Nothing runs yet."""
    with Rig(compared) as made:
        yield made


def test_the_files_and_their_modes(every: Programs) -> None:
    with Rig(every) as rig:
        rig.start()
        modes = {
            "control": "srw-rw-rw-",
            "control_privileged": "srwxr-xr-x",
            "control_lock": "-rw-rw-rw-",
            "log": "prwxrwxrwx",
        }
        pid_file = rig.pipes / "nvidia-cuda-mps-control.pid"
        if every.version.pid_file:
            modes[pid_file.name] = "-rw-rw-rw-"
            assert pid_file.read_text() == str(rig.daemon())
        assert rig.modes() == modes
        assert rig.pipes.stat().st_mode & 0o7777 == 0o777
        assert rig.logs.stat().st_mode & 0o7777 == 0o700
        assert sorted(path.name for path in rig.logs.iterdir()) == ["control.log", "server.log"]


def test_quit_takes_pid_file_and_fifo_away(rig: Rig) -> None:
    rig.start()
    daemon = rig.daemon()
    rig.run(stdin="quit")
    wait_until(lambda: gone(daemon))  # which may end after the answer
    assert set(rig.modes()) == {"control", "control_privileged", "control_lock"}
    assert rig.run(stdin="get_server_list") == NOT_THERE
    rig.start()
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_it_without_cleaning_up(rig: Rig, number: signal.Signals) -> None:
    rig.start()
    before, daemon = rig.modes(), rig.daemon()
    os.kill(daemon, number)
    wait_until(lambda: gone(daemon))
    assert rig.modes() == before
    assert rig.run(stdin="get_server_list") == NOT_THERE
    rig.start()
    assert rig.daemon() != daemon


@pytest.mark.parametrize("flag", ["-d", "-f"])
def test_two_on_one_pipe_directory_cannot_be(rig: Rig, flag: str) -> None:
    rig.start()
    reported = "An instance of this daemon is already running\n"
    assert rig.run(flag) == Answer(reported, "", 1)
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"


def test_a_removed_pipe_directory_lets_a_second_one_start(rig: Rig) -> None:
    rig.start()
    first = rig.daemon()
    for path in rig.pipes.iterdir():
        path.unlink()
    rig.pipes.rmdir()
    assert rig.run(stdin="get_server_list") == NOT_THERE
    rig.start()
    assert len(rig.processes()) == 2
    assert not gone(first)


def test_no_daemon_there(rig: Rig) -> None:
    assert rig.run(stdin="get_server_list\n") == NOT_THERE
    assert rig.run() == NOT_THERE


def test_a_pipe_directory_that_cannot_be_made(rig: Rig) -> None:
    rig.environment["CUDA_MPS_PIPE_DIRECTORY"] = missing = str(rig.folder / "a/b")
    reported = f"Cannot access CUDA_MPS_PIPE_DIRECTORY={missing}\n"
    assert rig.run("-d") == Answer(reported, "", 1)


def test_a_log_directory_that_cannot_be_made(rig: Rig) -> None:
    rig.environment["CUDA_MPS_LOG_DIRECTORY"] = missing = str(rig.folder / "a/b")
    reported = f"Warning: Failed writing log files to directory [{missing}]. No logs will be "
    assert rig.run("-d") == Answer(f"{reported}available.\n", "", 0)
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"


@pytest.mark.parametrize(("length", "status"), [(87, 0), (88, 1)])
def test_the_longest_pipe_directory(rig: Rig, length: int, status: int) -> None:
    start = f"{rig.folder}/"
    long = start + "x" * (length - len(start))
    rig.environment["CUDA_MPS_PIPE_DIRECTORY"] = long
    rig.pipes = Path(long)
    assert rig.run("-d") == Answer("", "", status)


def test_help(every: Programs) -> None:
    with Rig(every) as rig:
        for flag in ("-h", "--help"):
            answer = rig.run(flag)
            assert answer.status == 0
            assert "nvidia-cuda-mps-control" in answer.stdout


def test_unknown_flags(every: Programs) -> None:
    """Up to 550 they make a front-end of it; later they are refused."""
    with Rig(every) as rig:
        for flags in (["-x"], ["-d", "-x"], ["-d", "-f"]):
            answer = rig.run(*flags)
            assert answer.status == 1
            if every.version.strict_flags:
                assert "usage" in (answer.stdout + answer.stderr).lower()
            else:
                assert answer == NOT_THERE


@AS_ROOT
def test_the_multiuser_flag(every: Programs) -> None:
    """Since 555, for root alone."""
    with Rig(every) as rig:
        rig.folder.chmod(0o777)
        answer = rig.run("-d", "-multiuser-server", user=1000)
        if "-multiuser-server" not in every.version.flags:
            assert answer.status == 1
            return
        assert answer == Answer("Only root user may enable -multiuser-server!\n", "", 1)
        rig.start("-multiuser-server")
        assert rig.ask("get_server_list") == ""


def test_defaults_from_the_environment(rig: Rig) -> None:
    rig.start(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="40", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2G")
    replies = rig.ask(
        "get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0"
    )
    assert replies == "40.0\n"


def test_bad_defaults_in_the_environment(rig: Rig) -> None:
    rig.start(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="400")
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE should be between (0.0, 100.0]" in rig.log()


def test_settings_are_lost_on_quit(rig: Rig) -> None:
    rig.start()
    rig.ask("set_default_active_thread_percentage 20")
    rig.run(stdin="quit")
    rig.start()
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"


def test_the_log_of_a_front_end(rig: Rig) -> None:
    rig.start()
    rig.ask("set_default_active_thread_percentage 0", "get_default_device_pinned_mem_limit 5")
    wait_until(lambda: "UI closed" in rig.log())  # a busy daemon may accept the next one first
    rig.run(stdin="quit")
    expected = [
        f"Starting control daemon using socket {rig.pipes}/control",
        (
            "To connect CUDA applications to this daemon, "
            f"set env CUDA_MPS_PIPE_DIRECTORY={rig.pipes}"
        ),
        "Accepting connection...",
        "NEW UI",
        "Cmd:set_default_active_thread_percentage 0",
        "Invalid percentage, expected between (0.0, 100.0]",
        "100.0",
        "Cmd:get_default_device_pinned_mem_limit 5",
        "No default pinned memory limit set for the device!",
        "UI closed",
        "Accepting connection...",
        "NEW UI",
        "Cmd:quit",
        "Exit with status 0",
    ]
    wait_until(lambda: "Exit" in rig.log())
    assert rig.log().splitlines() == expected
    rig.start()
    assert rig.log().splitlines()[: len(expected)] == expected


def test_a_log_line(rig: Rig) -> None:
    rig.start()
    line = (rig.logs / "control.log").read_text().splitlines()
    rig.ask("get_server_list")
    line = (rig.logs / "control.log").read_text().splitlines()
    stamp, _, rest = line[0].partition(" Control ")
    assert len(stamp) == len("[2026-01-31 23:59:59.999")
    assert rest.startswith(f"{rig.daemon():5d}] Starting control daemon")


def test_in_the_foreground(rig: Rig) -> None:
    child = rig.foreground()
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"
    rig.run(stdin="quit")
    output, _ = child.communicate(timeout=stretched(30))
    assert "Cmd:get_default_active_thread_percentage" in output
    assert child.returncode == 0
    assert not list(rig.logs.iterdir())


def test_its_log_has_no_reader_any_more(rig: Rig) -> None:
    child = rig.foreground()
    assert child.stdout is not None
    child.stdout.close()
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"
    assert child.poll() is None
    child.stdout = None  # there is nothing left to read at the end


def test_one_front_end_at_a_time(rig: Rig) -> None:
    rig.start()
    with rig.holding_front_end():
        answers = [rig.run(stdin="get_default_active_thread_percentage") for _ in range(10)]
    assert all(answer.stdout == "" for answer in answers)
    reported = {(answer.stderr, answer.status) for answer in answers}
    assert reported <= {
        ("Cannot send command to MPS control daemon process\n", 1),
        ("", 0),
        ("", 1),
    }
    assert ("Cannot send command to MPS control daemon process\n", 1) in reported
    wait_until(lambda: rig.run(stdin="get_default_active_thread_percentage").stdout == "100.0\n")


def test_replies_appear_at_the_end_of_the_input(rig: Rig) -> None:
    rig.start()
    with rig.holding_front_end() as front_end:
        rig.type(front_end, "get_default_active_thread_percentage\n")
        wait_until(lambda: "Cmd:get_default_active_thread_percentage" in rig.log())
        assert not rig.has_output(front_end)
        output, _ = front_end.communicate(timeout=stretched(30))
        assert output == "100.0\n"


def test_a_stopped_daemon_answers_nothing(rig: Rig) -> None:
    rig.start()
    daemon = rig.daemon()
    os.kill(daemon, signal.SIGSTOP)
    with rig.holding_front_end(wait=False) as front_end:
        assert front_end.stdin is not None
        front_end.stdin.write("get_default_active_thread_percentage\n")
        front_end.stdin.close()
        front_end.stdin = None
        assert not rig.has_output(front_end, within=0.3)
        assert front_end.poll() is None
        os.kill(daemon, signal.SIGCONT)
        assert front_end.communicate(timeout=stretched(30))[0] == "100.0\n"


def test_a_daemon_that_dies_takes_its_front_end_along(rig: Rig) -> None:
    rig.start()
    with rig.holding_front_end() as front_end:
        os.kill(rig.daemon(), signal.SIGSTOP)
        rig.type(front_end, "get_default_active_thread_percentage\n")
        wait_until(lambda: rig.unread(front_end) == 0)
        assert not rig.has_output(front_end, within=stretched(0.2))  # it has sent it
        os.kill(rig.daemon(), signal.SIGKILL)
        assert front_end.communicate(timeout=stretched(30)) == ("", "")
        assert front_end.returncode == 0
