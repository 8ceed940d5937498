import asyncio
import fcntl
import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nodeagent.mps import commands, control
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import ServerStatus
from nodeagent.mps.programs import Programs
from nodeagent.structs import replace
from tests.machine_load import stretched
from tests.mps.fleet_rig import GPU, FleetRig, status, until, wanted
from tests.mps.plans import daemon_spec, with_limits

# A front-end program for tests of the conversation alone: answers, and misbehaves on request. It
# enforces what the daemon does: one connection at a time. Its folder holds what it shall do next
# (`behave`, one word for each call) and what it did (`said`, `environment`, `overlap`).
_PROGRAM = """#!{python} -IS
import os, sys, time
folder = {folder!r}
def path(name):
    return os.path.join(folder, name)
def note(name, text):
    with open(path(name), "a") as file:
        file.write(text + "\\n")
note("environment", repr(sorted(os.environ.items())))
note("fds", repr(sorted(os.listdir("/proc/self/fd"))))
try:
    os.mkdir(path("connected"))
except FileExistsError:
    note("overlap", "!")
    sys.exit(0)
try:
    with open(path("behave"), "r+") as file:
        words = file.read().split()
        file.seek(0)
        file.truncate()
        file.write(" ".join(words[1:]))
except FileNotFoundError:
    words = []
word = words[0] if words else "answer"
if word != "hang":
    os.rmdir(path("connected"))
if word == "dead":
    sys.exit("Cannot find MPS control daemon process")
if word == "busy":
    sys.exit("Cannot send command to MPS control daemon process")
if word == "stranger":
    sys.exit("Cannot authenticate or connect to MPS control daemon process")
if word == "empty":
    sys.exit(0)
if word == "emptyError":
    sys.exit(1)
note("calls", "one")
if word == "hang":
    note("pid", str(os.getpid()))
    time.sleep(60)
while word == "flood":
    sys.stdout.write("1\\n" * 65536)
replies = []
for line in sys.stdin.read().splitlines():
    command, *values = line.split()
    if command.startswith("__"):
        replies.append('Unknown command "' + command + '"')
        continue
    note("said", line)
    if command == "get_client_list":
        replies += [values[0] + "1", values[0] + "2"]
    elif command == "set_default_active_thread_percentage":
        replies.append(str(float(values[0])))
    elif command == "quit":
        sys.exit(1)
if word == "break":
    replies = replies[: len(replies) // 2]
if replies:
    print("\\n".join(replies))
sys.exit(1)  # which the daemon passes on at times: nobody asks for it
"""


class FrontEnd:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.program = folder / "nvidia-cuda-mps-control"
        self.program.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)))
        self.program.chmod(0o755)

    def will(self, *words: str) -> None:
        (self._folder / "behave").write_text(" ".join(words))

    def noted(self, name: str) -> list[str]:
        path = self._folder / name
        return path.read_text().splitlines() if path.exists() else []

    def reconnect(self) -> None:
        (self._folder / "connected").rmdir()

    def wait_for(self, name: str) -> list[str]:
        until = time.monotonic() + stretched(30)
        while not self.noted(name):
            assert time.monotonic() < until, f"nothing noted under {name}"
            time.sleep(0.005)
        return self.noted(name)

    def client(self, *, deadline: float = 60.0) -> control.ControlClient:
        return control.ControlClient(
            Programs(control=(str(self.program),), path="/usr/bin:/usr/sbin"),
            pipe_directory="/run/x/pipe",
            log_directory="/run/x/log",
            deadline=deadline,
            jitter=random.Random(1).random,
        )


@pytest.fixture
def front_end(tmp_path: Path) -> FrontEnd:
    return FrontEnd(tmp_path)


# --- many callers ---------------------------------------------------------------------------------


async def test_many_callers_of_a_daemon_that_others_ask_too(front_end: FrontEnd) -> None:
    front_end.will("busy", "empty", "emptyError", "answer", "empty", "busy")
    client = front_end.client()
    replies = await asyncio.gather(*(client.ask(commands.get_client_list(n)) for n in range(1, 9)))
    assert replies == [(int(f"{n}1"), int(f"{n}2")) for n in range(1, 9)]
    assert front_end.noted("said") == [f"get_client_list {n}" for n in range(1, 9)]
    assert front_end.noted("overlap") == []


async def test_a_batch(front_end: FrontEnd) -> None:
    client = front_end.client()
    pids, wrong, threads = await client.ask_each(
        commands.get_client_list(1), commands.terminate_client(7, 8), commands.set_threads(5)
    )
    assert (pids, threads) == ((11, 12), 5.0)
    assert isinstance(wrong, commands.UnexpectedReply)
    assert len(front_end.noted("calls")) == 1


# --- busy, dead, silent, empty --------------------------------------------------------------------


async def test_a_truly_empty_reply(front_end: FrontEnd) -> None:
    client = front_end.client()
    assert await client.ask(commands.get_memory_limit()) is None
    await client.ask(commands.set_memory_limit(1))
    assert len(front_end.noted("calls")) == 2


async def test_busy_for_good(front_end: FrontEnd) -> None:
    front_end.will(*["busy", "empty", "emptyError"] * 300)
    client = front_end.client(deadline=2.0)
    with pytest.raises(control.DaemonBusy, match="held the MPS daemon for 2 s"):
        await client.ask(commands.get_server_list())
    assert front_end.noted("said") == []


async def test_dead(front_end: FrontEnd) -> None:
    front_end.will("dead")
    with pytest.raises(control.DaemonDead):
        await front_end.client().ask(commands.get_server_list())
    assert len(front_end.noted("environment")) == 1


async def test_hung(front_end: FrontEnd) -> None:
    client = front_end.client()
    for deadline in (0.3, 3, 30):  # a busy machine may start it late
        front_end.will("hang")
        with pytest.raises(control.DaemonSilent, match=f"did not answer within {deadline} s"):
            await client.ask(commands.get_server_list(), deadline=deadline)
        with suppress(FileNotFoundError):
            front_end.reconnect()
        if front_end.noted("pid"):
            break
    [pid] = front_end.noted("pid")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    assert await client.ask(commands.get_client_list(1)) == (11, 12)


async def test_a_talk_that_breaks_off(front_end: FrontEnd) -> None:
    front_end.will("break")
    client = front_end.client()
    with pytest.raises(control.FrontEndFailed, match="broke: "):
        await client.ask_each(commands.get_client_list(1), commands.get_client_list(2))


async def test_a_daemon_that_never_stops_talking(front_end: FrontEnd) -> None:
    """A program in the daemon's place cannot fill the agent's memory; the front-end is ended."""
    front_end.will("flood")
    client = front_end.client(deadline=60)
    with pytest.raises(control.FrontEndFailed, match="answered more than 1048576 bytes"):
        await client.ask(commands.get_server_list())
    assert await client.ask(commands.get_client_list(1)) == (11, 12)


async def test_not_let_in(front_end: FrontEnd) -> None:
    front_end.will("stranger")
    client = front_end.client()
    with pytest.raises(control.FrontEndFailed, match="run as root or as the daemon's user"):
        await client.ask(commands.get_server_list())


async def test_no_program() -> None:
    client = control.ControlClient(
        Programs(control=("/nowhere/control",)), pipe_directory="/p", log_directory="/l", deadline=1
    )
    with pytest.raises(control.FrontEndFailed, match="/nowhere/control cannot be run"):
        await client.ask(commands.get_server_list())


# --- leaving early --------------------------------------------------------------------------------


async def test_cancellation_leaves_no_process(front_end: FrontEnd) -> None:
    front_end.will("hang")
    client = front_end.client()
    first = asyncio.create_task(client.ask(commands.get_server_list()))
    [pid] = await asyncio.to_thread(front_end.wait_for, "pid")
    second = asyncio.create_task(client.ask(commands.get_client_list(1)))
    front_end.reconnect()
    first.cancel()
    await asyncio.wait([first])
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    assert await second == (11, 12)


async def test_quit(front_end: FrontEnd) -> None:
    client = front_end.client()
    await client.ask(commands.quit_daemon(5), deadline=60)
    front_end.will("dead")
    with pytest.raises(control.DaemonDead):
        await client.ask(commands.quit_daemon(None), deadline=60)
    assert front_end.noted("said") == ["quit -t 5"]


async def test_nothing_of_ours_reaches_the_program(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    inherited = fcntl.fcntl(0, fcntl.F_DUPFD, 200)  # a number that the program does not come to
    os.set_inheritable(inherited, True)
    try:
        client = front_end.client()
        await client.ask(commands.get_server_list())
    finally:
        os.close(inherited)
    environment = dict(eval(front_end.noted("environment")[0]))
    environment.pop("LC_CTYPE", None)  # Python's own doing
    assert environment == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/x/pipe",
        "CUDA_MPS_LOG_DIRECTORY": "/run/x/log",
        "LC_ALL": "C",
        "PATH": "/usr/bin:/usr/sbin",
    }
    assert str(inherited) not in eval(front_end.noted("fds")[0])


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


async def daemon(rig: FleetRig, fleet: Fleet) -> None:
    await fleet.start(GPU, wanted())
    with rig.served():
        await until(lambda: bool(status(fleet).clients))


async def test_a_server_that_the_caller_did_not_know(rig: FleetRig) -> None:
    async with rig.fleet() as fleet:
        await daemon(rig, fleet)
        [running] = fleet.running()
        [server] = rig.servers()
        for known in ((), (server,), (4_000_000,), (server, 4_000_000)):
            seen = await control.ask_everything(running.control, known)
            assert [(s.pid, s.status) for s in seen.servers] == [(server, ServerStatus.ACTIVE)]
            assert control.differences(seen, running.spec) == ()


async def test_a_version_without_statuses() -> None:
    with FleetRig("535") as rig:
        async with rig.fleet() as fleet:
            await daemon(rig, fleet)
            [running] = fleet.running()
            seen = await control.ask_everything(running.control, ())
            assert (seen.reports_status, seen.servers[0].status) == (False, None)
            assert seen.servers[0].clients is not None
