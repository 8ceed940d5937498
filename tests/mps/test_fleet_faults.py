import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nodeagent.errors import StillInUse
from nodeagent.mps.files.directories import make_directories
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.mps.processes import SERVER
from nodeagent.mps.requests import NotReady
from nodeagent.simulation.mps.clients import ClientError
from nodeagent.simulation.mps.installation import shared_interpreter
from nodeagent.structs import replace
from tests.machine_load import until
from tests.mps import fleet_rig
from tests.mps.conftest import as_root
from tests.processes.real import ready_process
from tests.simulation.mps.rig import gone


@pytest.fixture
def rig() -> Iterator[fleet_rig.FleetRig]:
    with fleet_rig.FleetRig() as made:
        made.impatient = True
        yield made


# --- daemon faults --------------------------------------------------------------------------------


async def test_die(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    with rig.served():
        [orphan] = rig.servers()
        await until(lambda: bool(fleet_rig.status(fleet).clients))
        rig.knobs().turn("die")
        assert "signal 9 (SIGKILL)" in await rig.reported(ReportSubject.EXITED)
        await fleet_rig.ready(fleet)
        assert gone(orphan)
    assert (await fleet_rig.limits(fleet), fleet_rig.status(fleet).restarts) == (("4G", 50.0), 1)


async def test_hang(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    before = fleet_rig.status(fleet).pid
    rig.knobs().turn("deaf")
    rig.knobs().turn("hang")
    assert "answered none of 2 questions in a row; it is replaced" in await rig.reported(
        ReportSubject.SILENT
    )
    rig.knobs().clear()
    assert (await fleet_rig.ready(fleet)).pid != before


@as_root
async def test_hang_while_it_is_drained(rig: fleet_rig.FleetRig) -> None:
    async with rig.started(fleet_rig.wanted(uid=1234)) as fleet:
        with fleet_rig.called_like(SERVER, rig.pipes(), "-f", uid=4242) as like:
            rig.knobs().turn("hang")
            assert await fleet.drain(fleet_rig.GPU, seconds=30.0) == ()
            assert not gone(like)


async def test_busy(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    before = fleet_rig.status(fleet).pid
    rig.knobs().turn("busy", "error")
    words = await rig.reported(ReportSubject.SILENT)
    assert "another front-end held the MPS daemon" in words
    assert "end the nvidia-cuda-mps-control that is still open" in words
    with pytest.raises(StillInUse, match="not known: another front-end held the MPS daemon"):
        await fleet.stop(fleet_rig.GPU)
    assert len(rig.said(ReportSubject.SILENT)) == 1
    assert fleet_rig.status(fleet).trouble == words
    rig.knobs().clear()
    await until(lambda: not fleet_rig.status(fleet).trouble)
    assert (await fleet_rig.ready(fleet)).pid == before


async def test_slow_sockets(rig: fleet_rig.FleetRig) -> None:
    """They are kept from new clients when they are made, and not taken from it before."""
    rig.knobs().turn("slow_sockets", 0.03)
    async with rig.fleet() as fleet:
        fleet.cordon({fleet_rig.GPU: "sick"})
        await fleet.start(fleet_rig.GPU, fleet_rig.wanted())
        assert fleet_rig.status(fleet).restarts == 0
        assert not (rig.pipes() / "control").exists()


async def test_ignore_settings(rig: fleet_rig.FleetRig) -> None:
    rig.knobs().turn("ignore_settings")
    async with rig.fleet() as fleet:
        with pytest.raises(NotReady, match=r"thread percentage is 100\.0, wanted 50"):
            await fleet.start(fleet_rig.GPU, fleet_rig.wanted())
        assert "wanted 4096M" in await rig.reported(ReportSubject.LIMITS_DIFFER)
        assert rig.said(ReportSubject.READY) == []


@as_root
async def test_a_fault_of_our_own(rig: fleet_rig.FleetRig) -> None:
    rig.programs = replace(rig.programs, path="/usr/bin\0")
    async with rig.fleet() as fleet:
        with pytest.raises(NotReady, match="a fault in the agent itself: ValueError: embedded nul"):
            await fleet.start(fleet_rig.GPU, fleet_rig.wanted())
        await until(lambda: fleet_rig.status(fleet).state == "Failed")
        await fleet.stop(fleet_rig.GPU)


# --- directory faults -----------------------------------------------------------------------------


async def test_lose_pipes(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    before = fleet_rig.status(fleet).pid
    rig.knobs().turn("lose_pipes")
    if fleet_rig.IS_ROOT:  # its user cannot remove them any more
        shutil.rmtree(rig.pipes())
    assert "its process lives, but no MPS daemon answers at" in await rig.reported(
        ReportSubject.SILENT
    )
    assert (await fleet_rig.ready(fleet)).pid != before
    with rig.served():
        pass


async def test_a_link_in_place_of_its_socket(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    """Nothing can make the agent command another daemon: it is not asked, and replaced."""
    await fleet.start(fleet_rig.OTHER_GPU, fleet_rig.wanted(1024))
    other, first = fleet_rig.status(fleet, fleet_rig.OTHER_GPU), fleet_rig.status(fleet).pid
    for name in ("control", "control_privileged"):
        (rig.pipes() / name).unlink()
        (rig.pipes() / name).symlink_to(rig.pipes(fleet_rig.OTHER_GPU) / name)
    words = await rig.reported(ReportSubject.REPLACED)
    assert words == (
        f"{rig.pipes()}/control_privileged is not a socket, in place of the one that the daemon "
        "made; a fresh daemon takes its place"
    )
    await until(lambda: fleet_rig.status(fleet).pid != first)
    assert (await fleet_rig.ready(fleet)).restarts == 1
    assert await fleet_rig.limits(fleet) == ("4G", 50.0)
    assert await fleet_rig.limits(fleet, fleet_rig.OTHER_GPU) == ("1G", 50.0)
    assert fleet_rig.status(fleet, fleet_rig.OTHER_GPU) == other


@as_root
async def test_what_is_among_the_sockets_before_a_start(rig: fleet_rig.FleetRig) -> None:
    outside = rig.folder / "outside"
    outside.write_text("kept")
    async with rig.fleet() as fleet:
        pipes = Path(
            make_directories(rig.run_dir, fleet_rig.GPU, uid=fleet_rig.US, gid=fleet_rig.US)
        )
        for name in ("control", "control_lock", "anything"):
            (pipes / name).symlink_to(outside)
        (pipes / "foreign").touch()
        os.chown(pipes / "foreign", 4711, -1)
        await fleet.start(fleet_rig.GPU, fleet_rig.wanted())
        assert not (pipes / "foreign").exists()
        assert not any(path.is_symlink() for path in rig.pipes().iterdir())
    assert outside.read_text() == "kept"


async def test_another_process_in_its_place(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    first = fleet_rig.status(fleet).pid
    for name in ("control", "control_privileged"):
        (rig.pipes() / name).unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(rig.pipes() / "control"))
        listener.listen()
        words = await rig.reported(ReportSubject.REPLACED)
    assert words == (
        f"process {os.getpid()} of user {os.geteuid()} listens at {rig.pipes()}/control in place "
        f"of the daemon (pid {first} of user {fleet_rig.US}); a fresh daemon takes its place"
    )
    await until(lambda: fleet_rig.status(fleet).pid != first)
    await fleet_rig.ready(fleet)


@as_root
async def test_the_pipe_directory_of_a_daemon_that_answers(
    rig: fleet_rig.FleetRig, fleet: Fleet
) -> None:
    assert rig.pipes().stat().st_uid == 0
    assert {entry.stat().st_uid for entry in rig.pipes().iterdir()} == {fleet_rig.US}
    with rig.served():
        pass
    await fleet.restart(fleet_rig.GPU)
    assert rig.pipes().stat().st_uid == 0
    await fleet.start(fleet_rig.GPU, fleet_rig.wanted(uid=1001))  # another user's
    assert {entry.stat().st_uid for entry in rig.pipes().iterdir()} == {1001}


@as_root
async def test_a_daemon_that_never_answered_is_asked_to_end(rig: fleet_rig.FleetRig) -> None:
    """In a directory of root's: its user could lead the request to another user's daemon else."""
    rig.knobs().turn("hang")
    async with rig.fleet() as fleet:
        starting = asyncio.create_task(fleet.start(fleet_rig.GPU, fleet_rig.wanted()))
        await until((rig.pipes() / "control").exists)
        process = fleet_rig.status(fleet).pid
        assert process
        assert rig.pipes().stat().st_uid == fleet_rig.US
        starting.cancel()  # a drain has its turn after it
        draining = asyncio.create_task(fleet.drain(fleet_rig.GPU, seconds=0.0, force=True))
        await until(lambda: rig.pipes().stat().st_uid == 0)
        assert not gone(process), "it was killed, and not asked"
        rig.knobs().clear()
        await asyncio.gather(starting, draining, return_exceptions=True)


async def test_lose_logs(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    """It goes on, and is still listened to: its log was opened once."""
    rig.knobs().turn("lose_logs")
    await until(lambda: not rig.log().exists())
    before = fleet_rig.status(fleet).pid
    with rig.served(), rig.client(uid=1234) as stranger:
        assert f"pid {stranger.pid}" in await rig.reported(ReportSubject.FOREIGN_USER_WAITING)
        rig.reports.clear()
        assert (fleet_rig.status(fleet).pid, fleet_rig.status(fleet).is_ready) == (before, True)


async def test_a_lock_that_another_process_waits_for(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    """Who has opened a daemon's lock in time keeps no other from starting when the daemon dies,
    nor does what was put beside it.
    """
    first = fleet_rig.status(fleet).pid
    assert first
    script = (
        "import fcntl, sys; lock = open(sys.argv[1], 'r+'); print(flush=True)\n"
        "fcntl.lockf(lock, fcntl.LOCK_EX); input()"
    )
    command = (shared_interpreter(), "-IS", "-c", script, rig.pipes() / "control_lock")
    with ready_process(*command) as waiting:
        (rig.pipes() / "beside").symlink_to("/")
        os.kill(first, signal.SIGKILL)
        await until(lambda: fleet_rig.status(fleet).pid != first)
        await fleet_rig.ready(fleet)
        assert waiting.poll() is None
    assert len(rig.said(ReportSubject.EXITED)) == 1
    assert not (rig.pipes() / "beside").is_symlink()


# --- server faults --------------------------------------------------------------------------------


async def test_a_server_that_fails(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    rig.knobs().turn("no_gpu", True)
    with rig.client():
        assert "status 1" in await rig.reported(ReportSubject.SERVER_EXITED)
        assert "no CUDA-capable device" in rig.lines(ReportSubject.SERVER_EXITED)
        await asyncio.sleep(0.7)
        assert len(rig.said(ReportSubject.SERVER_EXITED)) == 1
    assert fleet_rig.status(fleet).is_ready
    assert "status 1" in fleet_rig.status(fleet).trouble
    rig.knobs().clear()
    with suppress(ClientError), rig.served():
        pass  # a server that was just started may still fail, and take its client along
    with rig.served():
        await until(lambda: not fleet_rig.status(fleet).trouble)


@as_root
async def test_server_uid(rig: fleet_rig.FleetRig) -> None:
    rig.knobs().turn("server_uid", 1234)
    async with rig.started(fleet_rig.wanted(uid=0)):
        with rig.served(uid=0):
            words = await rig.reported(ReportSubject.WRONG_SERVER_USER)
            assert "runs as user 1234, the plan wants 0" in words


async def test_server_die(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    """The daemon calls it status 0; its clients know better."""
    with rig.served() as client:
        await until(lambda: bool(fleet_rig.status(fleet).clients))
        os.kill(client.pid, signal.SIGSTOP)  # else it may be gone as fast as its server
        rig.knobs().turn("server_die")
        words = await rig.reported(ReportSubject.SERVER_EXITED)
        assert f"its clients have lost it: pid {client.pid}" in words
        os.kill(client.pid, signal.SIGCONT)


async def test_server_busy(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    """Who its clients are is not known, so nothing is taken away from them."""
    with rig.served() as client:
        await until(lambda: bool(fleet_rig.status(fleet).clients))
        rig.knobs().turn("server_busy")
        await until(lambda: _clients_unknown(fleet))
        with pytest.raises(StillInUse, match="not known: its MPS server is busy and does not"):
            await fleet.stop(fleet_rig.GPU)
        with pytest.raises(StillInUse, match="not known"):
            await fleet.drain(fleet_rig.GPU, seconds=0.3)
        rig.knobs().clear()
        await fleet_rig.ready(fleet)
        client.allocate(1)


async def test_fault(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    with rig.served() as client, rig.served() as victim:
        await until(lambda: len(fleet_rig.status(fleet).clients) == 2)
        client.fault()
        words = await rig.reported(ReportSubject.SERVER_FAULT)
        assert f"had a fatal fault of client {client.pid}" in words
        assert fleet_rig.status(fleet).state == "Fault"
        assert {c.pid for c in fleet_rig.status(fleet).clients} == {client.pid, victim.pid}
        with pytest.raises(StillInUse, match=f"pid {victim.pid}"):
            await fleet.restart(fleet_rig.GPU)
    await fleet_rig.ready(fleet)


async def test_terminate_code(rig: fleet_rig.FleetRig, fleet: Fleet) -> None:
    with rig.served():
        await until(lambda: bool(fleet_rig.status(fleet).clients))
        rig.knobs().turn("terminate_code", -1)
        assert await fleet.drain(fleet_rig.GPU, seconds=0.1, force=True) == ()
    assert fleet_rig.status(fleet).state == "Down"
    assert rig.processes() == []


def _clients_unknown(fleet: Fleet) -> bool:
    daemon = fleet.daemon_of(fleet_rig.GPU)
    return daemon is not None and not daemon.clients.known
