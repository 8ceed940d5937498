import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.errors import UsageError
from nodeagent.simulation.mps import settings
from nodeagent.simulation.mps.installation import CONTROL_PROGRAM, install
from nodeagent.simulation.mps.knobs import KNOBS, Knobs, Watched
from tests.machine_load import wait_until
from tests.simulation.mps.rig import Programs, Rig

US = os.geteuid()


@pytest.fixture
def server(rig: Rig) -> int:
    rig.start()
    rig.ask(f"start_server -uid {US}")
    pid = rig.server()
    wait_until(lambda: rig.ask(f"get_server_status {pid}") == "ACTIVE\n")
    return pid


def test_only_knobs_that_there_are_can_be_turned(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"explode.*server_slow"):
        Knobs(tmp_path).turn("explode")


def test_knobs_by_daemon_and_for_all(tmp_path: Path) -> None:
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
    old, knobs = Watched(str(tmp_path), "/p"), Knobs(tmp_path)
    knobs.turn("die")
    old.look()
    assert [old.now("die"), old.now("die")] == [True, None]
    new = Watched(str(tmp_path), "/p")
    new.look()
    assert new.now("die") is None
    assert KNOBS["die"].startswith("now")


def test_forget_limits(rig: Rig) -> None:
    rig.start()
    rig.ask("set_default_device_pinned_mem_limit 0 2G", "set_default_active_thread_percentage 5")
    rig.knobs.turn("forget_limits")
    wait_until(lambda: rig.ask("get_default_device_pinned_mem_limit 0") == "")
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"


def test_lose_logs(rig: Rig) -> None:
    rig.start()
    rig.knobs.turn("lose_logs")
    wait_until(lambda: not rig.logs.exists())
    assert rig.ask("get_default_active_thread_percentage") == "100.0\n"


def test_server_slow(rig: Rig) -> None:
    rig.knobs.turn("server_slow", 600)
    rig.start()
    rig.ask(f"start_server -uid {US}")
    pid = rig.server()
    assert rig.ask(f"get_server_status {pid}", f"get_active_thread_percentage {pid}") == (
        "INITIALIZING\n"
    )
    rig.knobs.turn("server_slow", 0)
    wait_until(lambda: rig.ask(f"get_server_status {pid}") == "ACTIVE\n")
    assert rig.ask(f"get_active_thread_percentage {pid}") == "100.0\n"


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


def test_only_known_versions_can_be_installed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="535, 550, 555, 580, 615"):
        install(tmp_path, version="470")


@pytest.mark.parametrize("folder", ["short", "with space", "long" * 40])
def test_wherever_the_interpreter_is(tmp_path: Path, folder: str) -> None:
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
    assert limits == settings.client_limits(text, DEVICES)


@pytest.mark.parametrize(
    ("size", "shown"),
    [(1 << 20, "1M"), ((1 << 30) - 1, "1023M"), (1 << 30, "1G"), (2 * (1 << 30) - 1, "1G")],
)
def test_limits_are_shown_rounded_down(size: int, shown: str) -> None:
    assert shown == settings.shown_limit(size)


def test_a_huge_limit_wraps_around() -> None:
    assert settings.shown_limit(settings.limit("99999999999999G")) == "13161349119G"
