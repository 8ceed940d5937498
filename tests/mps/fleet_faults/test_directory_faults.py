"""A daemon's pipes, sockets and log meddled with: what is reported, and how it ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from nodeagent.mps.files.directories import make_directories
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import Subject
from nodeagent.simulation.mps.installation import shared_interpreter
from tests.mps.conftest import as_root
from tests.mps.fleet_faults.rig import prepared, served
from tests.mps.fleet_rig import (
    GPU,
    IS_ROOT,
    OTHER_GPU,
    US,
    FleetRig,
    limits,
    ready,
    status,
    until,
    wanted,
)
from tests.simulation.mps.rig import gone


async def test_lose_pipes(rig: FleetRig, fleet: Fleet) -> None:
    """No client can find it any more, so it is replaced, and can be found again."""
    before = status(fleet).pid
    rig.knobs().turn("lose_pipes")
    if IS_ROOT:  # its user cannot remove them any more
        shutil.rmtree(rig.pipes())
    assert "its process lives, but no MPS daemon answers at" in await rig.reported(Subject.SILENT)
    assert (await ready(fleet)).pid != before
    with served(rig):
        pass


async def test_a_link_in_place_of_its_socket(rig: FleetRig, fleet: Fleet) -> None:
    """Nothing can make the agent command another daemon: it is not asked, and replaced."""
    await fleet.start(OTHER_GPU, wanted(1024))
    other, first = status(fleet, OTHER_GPU), status(fleet).pid
    for name in ("control", "control_privileged"):
        (rig.pipes() / name).unlink()
        (rig.pipes() / name).symlink_to(rig.pipes(OTHER_GPU) / name)
    words = await rig.reported(Subject.REPLACED)
    assert words == (
        f"{rig.pipes()}/control_privileged is not a socket, in place of the one that the daemon "
        "made; a fresh daemon takes its place"
    )
    await until(lambda: status(fleet).pid != first)
    assert (await ready(fleet)).restarts == 1
    assert await limits(fleet) == ("4G", 50.0)
    assert await limits(fleet, OTHER_GPU) == ("1G", 50.0)
    assert status(fleet, OTHER_GPU) == other


@as_root
async def test_what_is_among_the_sockets_before_a_start(rig: FleetRig) -> None:
    """Whatever it is and whose, it keeps no daemon from starting, and what it leads to stays."""
    outside = rig.folder / "outside"
    outside.write_text("kept")
    async with rig.fleet() as fleet:
        pipes = Path(make_directories(rig.run_dir, GPU, uid=US, gid=US))
        for name in ("control", "control_lock", "anything"):
            (pipes / name).symlink_to(outside)
        (pipes / "foreign").touch()
        os.chown(pipes / "foreign", 4711, -1)
        await fleet.start(GPU, wanted())
        assert not (pipes / "foreign").exists()
        assert not any(path.is_symlink() for path in rig.pipes().iterdir())
    assert outside.read_text() == "kept"


async def test_another_process_in_its_place(rig: FleetRig, fleet: Fleet) -> None:
    """Is not believed, whatever it would say: it is named, and so is the real daemon."""
    first = status(fleet).pid
    for name in ("control", "control_privileged"):
        (rig.pipes() / name).unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(rig.pipes() / "control"))
        listener.listen()
        words = await rig.reported(Subject.REPLACED)
    assert words == (
        f"process {os.getpid()} of user {os.geteuid()} listens at {rig.pipes()}/control in place "
        f"of the daemon (pid {first} of user {US}); a fresh daemon takes its place"
    )
    await until(lambda: status(fleet).pid != first)
    await ready(fleet)


@as_root
async def test_the_pipe_directory_of_a_daemon_that_answers(rig: FleetRig, fleet: Fleet) -> None:
    """Is root's, and its user's again when another daemon is to start there."""
    assert rig.pipes().stat().st_uid == 0
    assert {entry.stat().st_uid for entry in rig.pipes().iterdir()} == {US}
    with served(rig):
        pass
    await fleet.restart(GPU)
    assert rig.pipes().stat().st_uid == 0
    await fleet.start(GPU, wanted(uid=1001))  # another user's
    assert {entry.stat().st_uid for entry in rig.pipes().iterdir()} == {1001}


@as_root
async def test_a_daemon_that_never_answered_is_asked_to_end(rig: FleetRig) -> None:
    """In a directory of root's: its user could lead the request to another user's daemon else."""
    prepared(rig, "hang")
    rig.impatient = True
    async with rig.fleet() as fleet:
        starting = asyncio.create_task(fleet.start(GPU, wanted()))
        await until((rig.pipes() / "control").exists)
        process = status(fleet).pid
        assert process
        assert rig.pipes().stat().st_uid == US
        starting.cancel()  # a drain has its turn after it
        draining = asyncio.create_task(fleet.drain(GPU, seconds=0.0, force=True))
        await until(lambda: rig.pipes().stat().st_uid == 0)
        assert not gone(process), "it was killed, and not asked"
        rig.knobs().clear()
        await asyncio.gather(starting, draining, return_exceptions=True)


async def test_lose_logs(rig: FleetRig, fleet: Fleet) -> None:
    """It goes on, and is still listened to; even by another agent."""
    rig.knobs().turn("lose_logs")
    await until(lambda: not rig.log().exists())
    before = status(fleet).pid
    with served(rig), rig.client(uid=1234) as stranger:
        assert f"pid {stranger.pid}" in await rig.reported(Subject.FOREIGN_USER_WAITING)
        rig.reports.clear()
        assert (status(fleet).pid, status(fleet).is_ready) == (before, True)


@as_root
async def test_stray_client(rig: FleetRig, fleet: Fleet) -> None:
    """A log line of another user's process that lives: who, whose, who holds the server, what to
    do; once, and as long as it lives.
    """
    stranger = subprocess.Popen(["sleep", "60"], user=1234, group=1234, extra_groups=())
    try:
        with served(rig) as client:
            rig.knobs().turn("stray_client", {"pid": stranger.pid, "uid": 1234})
            words = await rig.reported(Subject.FOREIGN_USER_WAITING)
            [server] = rig.servers()
            assert words == (
                f"pid {stranger.pid} (sleep) of user 1234 waits and will not be served: server "
                f"{server} of user {US} holds the device; run it as user {US}, or change the "
                "plan's user"
            )
            assert [w.pid for w in status(fleet).waiting] == [stranger.pid]
            assert [c.pid for c in status(fleet).clients] == [client.pid]
    finally:
        stranger.kill()
        stranger.wait()
    assert status(fleet).waiting == ()


async def test_a_log_line_of_an_unknown_process(rig: FleetRig, fleet: Fleet) -> None:
    """A process that is not there, or is not that user's, does not wait."""
    rig.knobs().turn("stray_client", {"pid": 2**22 - 1, "uid": 1234})
    await asyncio.sleep(0.2)
    rig.knobs().turn("stray_client", {"pid": os.getpid(), "uid": 1234})
    await asyncio.sleep(1.5)
    assert rig.said(Subject.FOREIGN_USER_WAITING) == []


async def test_a_lock_that_another_process_waits_for(rig: FleetRig, fleet: Fleet) -> None:
    """Who has opened a daemon's lock in time keeps no other from starting when the daemon dies,
    nor does what was put beside it.
    """
    first = status(fleet).pid
    assert first
    script = (
        "import fcntl, sys; lock = open(sys.argv[1], 'r+'); print(flush=True)\n"
        "fcntl.lockf(lock, fcntl.LOCK_EX); input()"
    )
    waiting = subprocess.Popen(
        [shared_interpreter(), "-IS", "-c", script, rig.pipes() / "control_lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with waiting:
        assert waiting.stdout
        waiting.stdout.readline()
        (rig.pipes() / "beside").symlink_to("/")
        os.kill(first, signal.SIGKILL)
        await until(lambda: status(fleet).pid != first)
        await ready(fleet)
        assert waiting.poll() is None
        waiting.kill()
    assert len(rig.said(Subject.EXITED)) == 1
    assert not (rig.pipes() / "beside").is_symlink()
