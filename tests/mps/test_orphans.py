import asyncio
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.app.process import WORDS
from nodeagent.catalogue import section
from nodeagent.errors import NodeagentError
from nodeagent.mps.adoption import lost_daemons
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.launch.orphans import OrphansLeft, end_orphans
from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.mps.processes import CONTROL, SERVER, processes_of
from nodeagent.mps.programs import Programs
from nodeagent.mps.requests import NotReady
from nodeagent.mps.shares import DaemonSpec
from nodeagent.processes import command_of
from tests.locked_process import locked_process
from tests.machine_load import until
from tests.mps import fleet_rig
from tests.mps.conftest import PYTHON, StartServer, as_root, spec_for
from tests.simulation.mps.rig import gone


async def test_orphans_of_a_pipe_directory(spec: DaemonSpec, start_server: StartServer) -> None:
    mine = [start_server() for _ in range(2)]
    other = start_server(pipe_directory="/elsewhere/pipe")
    # They are this test's children, so no other process can have reaped them meanwhile.
    ended = await end_orphans(spec, grace=5)
    assert {one.pid for one in ended} == {server.pid for server in mine}
    assert other.poll() is None
    assert processes_of(spec.pipe_directory, SERVER) == ()
    assert await end_orphans(spec, grace=5) == ()


def test_a_lost_daemon_has_the_name_of_a_device(short: Path, programs: Programs) -> None:
    """Any user can have a process that looks like one, and choose the words of its directory."""
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for name in ("GPU-1", "GPU-1: all is well", "GPU-\x1b[2J", f"GPU-{'1' * 80}"):
            pipes, logs = f"{short}/mps/{name}/pipe", str(short)
            environment = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": logs}
            command = [*programs.control, "-f"]
            daemon = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
            daemons.append(daemon)
            assert daemon.stdout
            assert daemon.stdout.readline()  # it runs
        assert [one.pid for one in lost_daemons(short)] == [daemons[0].pid]
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.communicate()


async def test_an_orphan_that_does_not_listen(spec: DaemonSpec, start_server: StartServer) -> None:
    server = start_server("deaf")
    began = time.monotonic()
    [ended] = await end_orphans(spec, grace=0.2)
    assert ended.pid == server.pid
    assert time.monotonic() - began >= 0.2


async def test_an_orphan_that_exits_slowly(spec: DaemonSpec, start_server: StartServer) -> None:
    """Its memory goes first, and with it its words; it is killed and waited for all the same."""
    server = start_server("lingering")
    [ended] = await end_orphans(spec, grace=0.3)
    assert ended.pid == server.pid
    server.wait()


# The first process of a process namespace exits only when all others in it are reaped, and its
# memory is gone by then: a process that cannot be killed for a while.
_UNKILLABLE = f"""
import ctypes, os, signal, sys
if ctypes.CDLL(None).unshare(0x30000000):  # CLONE_NEWUSER | CLONE_NEWPID
    sys.exit()
first = os.fork()
if not first:
    os.execv("/bin/sh", ["{SERVER}", "-c", "echo up; sleep 60; :"])
second = os.fork()
if not second:
    signal.pause()
print(first, flush=True)
sys.stdin.readline()
os.waitpid(second, 0)
os.waitpid(first, 0)
print("gone", flush=True)
"""


@asynccontextmanager
async def unkillable(rig: fleet_rig.FleetRig) -> AsyncIterator[tuple[int, Callable[[], None]]]:
    """A server of the rig's daemon that cannot be killed: its pid, and what lets it exit."""
    holder = subprocess.Popen(
        [PYTHON, "-ISc", _UNKILLABLE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"CUDA_MPS_PIPE_DIRECTORY": str(rig.pipes())},
        user=fleet_rig.US if fleet_rig.IS_ROOT else None,
        extra_groups=() if fleet_rig.IS_ROOT else None,
    )

    def let_go() -> None:
        assert holder.stdin
        assert holder.stdout
        print(file=holder.stdin, flush=True)
        assert holder.stdout.readline() == "gone\n"

    try:
        assert holder.stdout
        said = {holder.stdout.readline().strip() for _ in range(2)}
        if said == {""}:
            pytest.skip("user namespaces are not to be had here")
        [pid] = said - {"up"}
        yield int(pid), let_go
    finally:
        holder.kill()
        holder.communicate()


async def test_an_orphan_that_cannot_be_killed(rig: fleet_rig.FleetRig) -> None:
    """It keeps its device until it has exited, although nothing of it can be read any more: no
    daemon is started beside it, and the next agent knows of it, too.
    """
    await rig.left_daemon()
    soon = fleet_rig.quick(grace=0.1)
    async with unkillable(rig) as (pid, let_go):
        async with rig.fleet(soon) as fleet:
            with pytest.raises(NodeagentError, match=f"although it was killed: pid {pid}"):
                await fleet.drain(fleet_rig.GPU, seconds=30.0)
        async with rig.fleet(soon) as fleet:
            with pytest.raises(NotReady, match=f"although it was killed: pid {pid}"):
                await fleet.restart(fleet_rig.GPU)
            assert rig.processes() == []
            let_go()
            await fleet.restart(fleet_rig.GPU)
            assert fleet_rig.status(fleet).is_ready


async def test_too_many_open_files(spec: DaemonSpec, start_server: StartServer) -> None:
    for kind in WORDS:  # an agent has them from its start
        section(kind)
    for _ in range(2):
        start_server()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(2)]
    for descriptor in free:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[1], before[1]))  # one more can be opened
    try:
        with pytest.raises(OrphansLeft, match=r"pid \d+, .* is not known: Too many open files"):
            await end_orphans(spec, grace=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(await end_orphans(spec, grace=5)) == 2


async def test_a_living_daemon_is_no_orphans_parent(
    spec: DaemonSpec, programs: Programs, start_server: StartServer
) -> None:
    server = start_server()
    process = await ChildLauncher(programs).launch(spec)
    try:
        with pytest.raises(OrphansLeft, match=rf"pid {process.pid}, user \d+\) already serves"):
            await end_orphans(spec, grace=1)
        assert server.poll() is None
    finally:
        process.kill()
        assert await process.wait() == f"signal 9 ({signal.SIGKILL.name})"


async def test_a_daemon_that_no_client_can_find(
    spec: DaemonSpec, programs: Programs, start_server: StartServer
) -> None:
    """Its sockets were deleted: it is ended as soon as it has no server, and so no client."""
    process = await ChildLauncher(programs).launch(spec)
    socket = Path(spec.pipe_directory) / "control"
    socket.touch()
    with pytest.raises(OrphansLeft, match="already serves"):
        await end_orphans(spec, grace=1)
    socket.unlink()
    server = start_server()
    with pytest.raises(OrphansLeft, match="already serves"):
        await end_orphans(spec, grace=1)
    server.kill()
    server.wait()
    assert [one.pid for one in await end_orphans(spec, grace=1)] == [process.pid]
    await process.wait()


@as_root
async def test_another_users_server_beside_a_daemon_that_no_client_can_find(
    short: Path, programs: Programs, start_server: StartServer
) -> None:
    """A tenant's daemon has servers of that tenant alone; what others call so does not count."""
    tenant = spec_for(short, fleet_rig.US, fleet_rig.US, device=fleet_rig.GPU.replace("0a", "0b"))
    process = await ChildLauncher(programs).launch(tenant)
    server = start_server(pipe_directory=tenant.pipe_directory)
    assert [one.pid for one in await end_orphans(tenant, grace=1)] == [process.pid]
    await process.wait()
    assert server.poll() is None


@as_root
def test_a_locked_process_holds_up_no_daemon(spec: DaemonSpec, start_server: StartServer) -> None:
    """Who reads its words waits as long as it hangs. Those of every daemon are found meanwhile, and
    no more than one thread waits for it.
    """
    server = start_server()
    with locked_process(uid=4242, environment={}) as pid:
        waiting = threading.Thread(target=command_of, args=(pid,))
        waiting.start()
        for _ in range(3):
            assert [one.pid for one in processes_of(spec.pipe_directory, SERVER)] == [server.pid]
        assert waiting.is_alive()
        readers = [one for one in threading.enumerate() if one.name == "mps processes"]
        assert len(readers) == 1
    for thread in (waiting, *readers):
        thread.join()


@pytest.mark.full
@as_root
async def test_a_process_that_may_be_of_mps_and_whose_memory_is_locked(
    rig: fleet_rig.FleetRig,
) -> None:
    """Any user can call one so: another user's holds up neither the agent's start nor a daemon, and
    the daemon's own user's keeps that one from being started, by its name.
    """
    with locked_process(uid=4242, environment={}, name=CONTROL[:15]) as pid:
        waiting = threading.Thread(target=command_of, args=(pid,))
        waiting.start()
        async with rig.started() as fleet:
            with locked_process(uid=fleet_rig.US, environment={}, name=SERVER[:15]) as own:
                with pytest.raises(NotReady, match=f"whether pid {own} .* is not known"):
                    await fleet.restart(fleet_rig.GPU)
                assert rig.processes() == []
            await fleet.restart(fleet_rig.GPU)
            assert fleet_rig.status(fleet).is_ready
        assert waiting.is_alive()
    waiting.join()


@pytest.mark.full
@as_root
async def test_a_daemon_that_hangs_beside_what_may_be_its_server(rig: fleet_rig.FleetRig) -> None:
    rig.impatient = True
    async with rig.started() as fleet:
        with locked_process(uid=fleet_rig.US, environment={}, name=SERVER[:15]):
            rig.knobs().turn("hang")
            draining = asyncio.create_task(fleet.drain(fleet_rig.GPU, seconds=None))
            assert "answered none of 2 questions" in await rig.reported(ReportSubject.SILENT)
            assert (fleet_rig.status(fleet).state, draining.done()) == ("Draining", False)
        assert await draining == ()


@pytest.mark.parametrize(
    ("words", "user"),
    [
        pytest.param([CONTROL], None, id="a front-end that somebody left open"),
        pytest.param([CONTROL, "-f"], 4242, id="a name that anybody can take", marks=as_root),
        pytest.param([SERVER], 4242, id="the other name", marks=as_root),
    ],
)
async def test_who_cannot_serve_holds_up_nothing(
    spec: DaemonSpec, start_server: StartServer, words: list[str], user: int | None
) -> None:
    """It may last for ever, and would keep the device without a daemon for as long; and it is no
    orphan, whatever its name and its environment.
    """
    start_server()
    program, *arguments = words
    with fleet_rig.called_like(program, spec.pipe_directory, *arguments, uid=user) as called:
        assert len(await end_orphans(spec, grace=5)) == 1
        assert not gone(called)


# The first process of a namespace of its own, with a root of its own. Its parent has another name,
# and ends as it does; so does it as its parent.
_IN_A_CONTAINER = """
import ctypes, os, sys, time
python, folder, pipes, user = sys.argv[1:]
libc = ctypes.CDLL(None)
libc.unshare(0x20000000)  # CLONE_NEWPID
if os.fork():
    os.execve(python, [python, "-ISc", "import os; os.wait()"], {})
os.chroot(folder)
os.makedirs(pipes)
open(f"{pipes}/control", "w").close()
os.setgroups([]), os.setgid(int(user)), os.setuid(int(user))
libc.prctl(1, 9)  # PR_SET_PDEATHSIG
print("up", flush=True)
time.sleep(60)
"""


@as_root
async def test_a_container_that_looks_like_a_daemon(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    """Its user can be the daemon's, and it can have any directory in its own file system: it keeps
    no device without a daemon, and no daemon from its end.
    """
    pretends: list[subprocess.Popen[bytes]] = []
    try:
        for name in (CONTROL, SERVER):
            root = rig.folder / name
            root.mkdir()
            one = subprocess.Popen(
                [name, "-ISc", _IN_A_CONTAINER, PYTHON, root, rig.pipes(), str(fleet_rig.US)],
                executable=PYTHON,
                env={"CUDA_MPS_PIPE_DIRECTORY": str(rig.pipes())},
                stdout=subprocess.PIPE,
            )
            pretends.append(one)
            assert one.stdout
            assert one.stdout.readline() == b"up\n"
        pid = fleet_rig.status(fleet).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: fleet_rig.status(fleet).pid not in {None, pid})
        await fleet_rig.ready(fleet)
        await fleet.stop(fleet_rig.GPU)
        assert [one.poll() for one in pretends] == [None, None]
    finally:
        for one in pretends:
            one.kill()
            one.communicate()
