import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.mps import commands, control
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import ServerStatus
from nodeagent.mps.programs import Programs
from nodeagent.simulation.mps.versions import VERSIONS
from nodeagent.structs import replace
from tests.folders import executable
from tests.machine_load import until
from tests.mps.client_watch.conftest import asking
from tests.mps.fleet_rig import GPU, FleetRig, status, wanted
from tests.mps.plans import daemon_spec, with_limits
from tests.simulation.mps.rig import Programs as Installation
from tests.simulation.mps.rig import Rig, programs_of


@pytest.fixture
def daemon() -> Iterator[Rig]:
    """A simulated daemon, which serves one connection at a time."""
    with Rig(Installation(programs_of("550"), VERSIONS["550"], real=False)) as made:
        made.start()
        yield made


def front_ends(daemon: Rig) -> list[int]:
    return [pid for pid in daemon.processes() if pid != daemon.daemon()]


def connections(daemon: Rig) -> int:
    return daemon.log().count("NEW UI")


def asking_by(folder: Path, script: str) -> control.ControlClient:
    """By a front-end program that is this shell script."""
    program = executable(folder / "nvidia-cuda-mps-control", f"#!/bin/sh\n{script}\n")
    programs = Programs(control=(str(program),), path="/usr/bin:/bin")
    return control.ControlClient(
        programs, pipe_directory="/run/x/pipe", log_directory="/run/x/log", deadline=60.0
    )


# --- many callers ---------------------------------------------------------------------------------


async def test_many_callers_of_a_daemon_that_others_ask_too(daemon: Rig) -> None:
    """Each has its own reply, one after the other, once nobody else is connected."""
    client, wanted = asking(daemon), [float(n) for n in range(1, 9)]
    with daemon.holding_front_end():
        asked = [asyncio.create_task(client.ask(commands.set_threads(n))) for n in wanted]
        await asyncio.sleep(0.3)
    assert await asyncio.gather(*asked) == wanted
    said = [line for line in daemon.log().splitlines() if line.startswith("Cmd:set_")]
    assert said == [f"Cmd:set_default_active_thread_percentage {n:g}" for n in wanted]


async def test_a_batch(daemon: Rig) -> None:
    """In one conversation; a truly empty reply is one, too."""
    found = await asking(daemon).ask_each(
        commands.get_memory_limit(), commands.terminate_client(7, 8), commands.set_threads(5)
    )
    assert (found[0], type(found[1]), found[2]) == (None, commands.UnknownServer, 5.0)
    assert connections(daemon) == 1


# --- busy, dead, silent ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["error", "empty"])
async def test_busy_for_good(daemon: Rig, how: str) -> None:
    daemon.knobs.turn("busy", how)
    with pytest.raises(control.DaemonBusy, match="held the MPS daemon for 2 s"):
        await asking(daemon).ask(commands.get_server_list(), deadline=2)
    assert connections(daemon) == 0


async def test_hung(daemon: Rig) -> None:
    client = asking(daemon)
    daemon.knobs.turn("hang")
    with pytest.raises(control.DaemonSilent, match="did not answer within 1 s"):
        await client.ask(commands.get_server_list(), deadline=1)
    assert front_ends(daemon) == []
    daemon.knobs.clear()
    assert await client.ask(commands.get_server_list()) == ()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 11", "broke: '11"),
        # A program in the daemon's place cannot fill the agent's memory; the front-end is ended.
        ("exec yes 1", "answered more than 1048576 bytes"),
        (
            "echo Cannot authenticate or connect to MPS control daemon process >&2; exit 1",
            "run as root or as the daemon's user",
        ),
    ],
    ids=["breaks off", "never stops talking", "not let in"],
)
async def test_a_talk_that_fails(tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(control.FrontEndFailed, match=words):
        await asking_by(tmp_path, script).ask(commands.get_server_list())


async def test_no_program() -> None:
    programs = Programs(control=("/nowhere/control",))
    client = control.ControlClient(programs, pipe_directory="/p", log_directory="/l", deadline=1)
    with pytest.raises(control.FrontEndFailed, match="/nowhere/control cannot be run"):
        await client.ask(commands.get_server_list())


# --- leaving early --------------------------------------------------------------------------------


async def test_cancellation_leaves_no_process(daemon: Rig) -> None:
    client = asking(daemon)
    daemon.knobs.turn("hang")
    first = asyncio.create_task(client.ask(commands.get_server_list()))
    await until(lambda: len(front_ends(daemon)) == 1)
    second = asyncio.create_task(client.ask(commands.get_server_list()))
    [pid] = front_ends(daemon)
    first.cancel()
    await asyncio.wait([first])
    assert pid not in front_ends(daemon)
    daemon.knobs.clear()
    assert await second == ()


async def test_quit(daemon: Rig) -> None:
    client = asking(daemon)
    await client.ask(commands.quit_daemon(5))
    with pytest.raises(control.DaemonDead):
        await client.ask(commands.quit_daemon(None))


async def test_nothing_of_ours_reaches_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    inherited = fcntl.fcntl(0, fcntl.F_DUPFD, 200)  # a number that the program does not come to
    os.set_inheritable(inherited, True)
    dead = "echo Cannot find MPS control daemon process >&2"
    look = f"cp /proc/$$/environ {tmp_path}/environ; ls /proc/$$/fd > {tmp_path}/fds"
    try:
        with pytest.raises(control.DaemonDead):
            await asking_by(tmp_path, f"{look}; {dead}").ask(commands.get_server_list())
    finally:
        os.close(inherited)
    given = (tmp_path / "environ").read_text().rstrip("\0").split("\0")
    assert dict(text.split("=", 1) for text in given) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/x/pipe",
        "CUDA_MPS_LOG_DIRECTORY": "/run/x/log",
        "LC_ALL": "C",
        "PATH": "/usr/bin:/bin",
    }
    assert str(inherited) not in (tmp_path / "fds").read_text().split()


# --- query ----------------------------------------------------------------------------------------


SPEC = with_limits(daemon_spec("/p", "GPU-1"), 1500, 33.33)
SERVER = control.SeenServer(50, ServerStatus.ACTIVE, (), (commands.MemoryLimit(1, "G"),), 33.3)
SEEN = control.Seen((SERVER,), (commands.MemoryLimit(1, "G"),), 33.3)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (SEEN, ()),
        (replace(SEEN, memory_limits=(None,)), ("memory limit is not set, wanted 1500M",)),
        (
            replace(SEEN, memory_limits=(commands.MemoryLimit(2, "G"),)),
            ("memory limit is 2G, wanted 1500M",),
        ),
        (replace(SEEN, threads=100.0), ("thread percentage is 100.0, wanted 33.33",)),
        (
            replace(SEEN, servers=(replace(SERVER, threads=100.0),)),
            ("server 50: thread percentage is 100.0, wanted 33.33",),
        ),
        (
            replace(
                SEEN, servers=(replace(SERVER, clients=None, threads=None, memory_limits=(None,)),)
            ),
            (),  # busy: it is asked again
        ),
        (
            replace(SEEN, memory_limits=(commands.UnexpectedReply("what?"),)),
            ("memory limit not known (what?)",),
        ),
    ],
)
def test_differences(seen: control.Seen, words: tuple[str, ...]) -> None:
    assert control.differences(seen, SPEC) == words


def test_differences_of_the_second_device() -> None:
    both = replace(SPEC, wanted=replace(SPEC.wanted, devices=("GPU-1", "GPU-2")))
    seen = control.Seen((), (commands.MemoryLimit(1, "G"), commands.MemoryLimit(5, "M")), 33.3)
    assert control.differences(seen, both) == ("memory limit of device 1 is 5M, wanted 1500M",)


def test_no_limit_wanted() -> None:
    free = with_limits(SPEC, None, 33.33)
    assert control.differences(replace(SEEN, servers=(), memory_limits=(None,)), free) == ()
    assert control.differences(replace(SEEN, servers=()), free) == (
        "memory limit is 1G, wanted none",
    )


async def with_a_server(rig: FleetRig, fleet: Fleet) -> None:
    await fleet.start(GPU, wanted())
    with rig.served():
        await until(lambda: bool(status(fleet).clients))


async def test_a_server_that_the_caller_did_not_know(rig: FleetRig) -> None:
    async with rig.fleet() as fleet:
        await with_a_server(rig, fleet)
        [running] = fleet.running()
        [server] = rig.servers()
        for known in ((), (server,), (4_000_000,), (server, 4_000_000)):
            seen = await control.ask_everything(running.control, known)
            assert [(s.pid, s.status) for s in seen.servers] == [(server, ServerStatus.ACTIVE)]
            assert control.differences(seen, running.spec) == ()


async def test_a_version_without_statuses() -> None:
    with FleetRig("535") as rig:
        async with rig.fleet() as fleet:
            await with_a_server(rig, fleet)
            [running] = fleet.running()
            seen = await control.ask_everything(running.control, ())
            assert (seen.reports_status, seen.servers[0].status) == (False, None)
            assert seen.servers[0].clients is not None
