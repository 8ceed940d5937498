"""Every fault knob of the stand-ins under a fleet: what is reported to a user, and how it ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nodeagent.errors import StillInUse
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import Subject
from nodeagent.mps.processes import SERVER
from nodeagent.mps.requests import NotReady
from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.simulation.mps.knobs import KNOBS
from nodeagent.structs import replace
from tests.mps.conftest import as_root
from tests.mps.fleet_rig import (
    GPU,
    IMPATIENT,
    IS_ROOT,
    OTHER_GPU,
    SERVED,
    US,
    FleetRig,
    limits,
    quick,
    ready,
    status,
    until,
    wanted,
)
from tests.simulation.mps.rig import gone

STEADY = 60.0


@pytest.fixture
def rig() -> Iterator[FleetRig]:
    """Folders and knobs of their own, the programs shared."""
    with FleetRig() as made:
        made.impatient = True
        yield made


@contextmanager
def served(rig: FleetRig, uid: int = US) -> Iterator[SimulatedClient]:
    """A client that its server has taken."""
    with rig.client(uid=uid) as client:
        client.wait_until_accepted()
        yield client


def prepared(rig: FleetRig, knob: str, value: object = True) -> None:
    """Turned before the daemon is there."""
    rig.knobs().turn(knob, value)


# --- the daemon -----------------------------------------------------------------------------------


async def test_die(rig: FleetRig, fleet: Fleet) -> None:
    """Its end is reported with its signal; it is back with its limits, and its orphan is ended."""
    with served(rig):
        [orphan] = rig.servers()
        await until(lambda: bool(status(fleet).clients))
        rig.knobs().turn("die")
        assert "signal 9 (SIGKILL)" in await rig.reported(Subject.EXITED)
        await ready(fleet)
        assert gone(orphan)
    assert (await limits(fleet), status(fleet).restarts) == (("4G", 50.0), 1)


async def test_die_after(rig: FleetRig) -> None:
    """One that never lives long is given up, and started again on request."""
    prepared(rig, "die_after", 0.4)
    async with rig.fleet(quick(steady=STEADY)) as fleet:
        with suppress(NotReady):  # on a busy machine it dies before it is Ready
            await fleet.start(GPU, wanted())
        words = await rig.reported(Subject.FAILED)
        assert "failed 3 times in a row" in words
        assert status(fleet).phase == "Failed"
        assert status(fleet).last_lines
        rig.knobs().clear()
        await fleet.restart(GPU)
        assert status(fleet).is_ready


async def test_hang(rig: FleetRig, fleet: Fleet) -> None:
    """Found by its silence, and replaced."""
    before = status(fleet).pid
    rig.knobs().turn("hang")
    assert "answered none of 2 questions in a row; it is replaced" in await rig.reported(
        Subject.SILENT
    )
    rig.knobs().clear()
    assert (await ready(fleet)).pid != before


@as_root
async def test_hang_while_it_is_drained(rig: FleetRig) -> None:
    """Without a server it has no client; another user's process of that name is no server of it."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted(uid=1234))
        like = await asyncio.create_subprocess_exec(
            *(SERVER, "-f"),
            executable="/bin/sh",
            stdin=asyncio.subprocess.PIPE,
            env={"CUDA_MPS_PIPE_DIRECTORY": str(rig.pipes())},
            user=4242,
            extra_groups=(),
        )
        try:
            rig.knobs().turn("hang")
            assert await fleet.drain(GPU, seconds=30.0) == ()
            assert like.returncode is None
        finally:
            like.kill()
            await like.wait()


async def test_stopped_by_a_signal(rig: FleetRig, fleet: Fleet) -> None:
    """SIGSTOP is no other than a hang; nothing of it is left."""
    before = status(fleet).pid
    assert before is not None
    os.kill(before, signal.SIGSTOP)
    await rig.reported(Subject.SILENT)
    assert (await ready(fleet)).pid != before
    assert gone(before)


async def test_deaf(rig: FleetRig, fleet: Fleet) -> None:
    """One that ignores signals and hangs ends all the same."""
    before = status(fleet).pid
    rig.knobs().turn("deaf")
    await asyncio.sleep(0.15)
    rig.knobs().turn("hang")
    await rig.reported(Subject.SILENT)
    rig.knobs().clear()
    assert (await ready(fleet)).pid != before


@pytest.mark.parametrize("how", ["error", "empty"])
async def test_busy(rig: FleetRig, fleet: Fleet, how: str) -> None:
    """A front-end left open is reported once, with what to do, and ends no daemon."""
    before = status(fleet).pid
    rig.knobs().turn("busy", how)
    words = await rig.reported(Subject.SILENT)
    assert "another front-end held the MPS daemon" in words
    assert "end the nvidia-cuda-mps-control that was left open" in words
    await asyncio.sleep(2 * (IMPATIENT + SERVED))
    assert len(rig.said(Subject.SILENT)) == 1
    assert status(fleet).trouble == words
    rig.knobs().clear()
    await until(lambda: not status(fleet).trouble)
    assert (status(fleet).pid, status(fleet).is_ready) == (before, True)


async def test_busy_from_the_start(rig: FleetRig) -> None:
    """It is not Ready, says why, and is not killed over and over."""
    prepared(rig, "busy", "error")
    async with rig.fleet(quick(start_deadline=2.0)) as fleet:
        starting = asyncio.create_task(fleet.start(GPU, wanted()))
        await rig.reported(Subject.SILENT)
        await asyncio.sleep(2.0)
        assert "another front-end held" in status(fleet).why
        rig.knobs().clear()
        await starting
        assert (status(fleet).restarts, rig.said(Subject.EXITED)) == (0, [])


async def test_start_error(rig: FleetRig) -> None:
    """What the program said is in the error, and in the report when it is given up."""
    prepared(rig, "start_error", "Cannot do it today")
    async with rig.fleet() as fleet:
        with pytest.raises(NotReady, match="Cannot do it today") as caught:
            await fleet.start(GPU, wanted())
        assert "Backoff" in str(caught.value)
        assert "status 1" in await rig.reported(Subject.FAILED)
        assert "Cannot do it today" in rig.lines(Subject.FAILED)
        assert "Cannot do it today" in " ".join(status(fleet).last_lines)


async def test_slow_start(rig: FleetRig) -> None:
    """Slower than the deadline it is replaced, and that is reported; in time it is not."""
    prepared(rig, "slow_start", 0.6)
    async with rig.fleet(quick(start_deadline=0.4)) as fleet:
        with pytest.raises(NotReady, match=r"Backoff|Failed"):
            await fleet.start(GPU, wanted())
        assert "did not answer within 0.4 s of its start" in await rig.reported(Subject.SILENT)
    async with rig.fleet() as fleet:
        await ready(fleet)


async def test_forget_limits(rig: FleetRig, fleet: Fleet) -> None:
    """Drift is reported with both values, and mended without another process."""
    before = status(fleet).pid
    rig.knobs().turn("forget_limits")
    words = await rig.reported(Subject.LIMITS_DIFFER)
    assert "memory limit is not set, wanted 4096M" in words
    assert "thread percentage is 100.0, wanted 50" in words
    assert (await ready(fleet)).pid == before
    assert await limits(fleet) == ("4G", 50.0)


async def test_ignore_settings(rig: FleetRig) -> None:
    """A daemon that only says that it took them is never Ready."""
    prepared(rig, "ignore_settings")
    async with rig.fleet() as fleet:
        with pytest.raises(NotReady, match=r"thread percentage is 100\.0, wanted 50"):
            await fleet.start(GPU, wanted())
        assert "wanted 4096M" in await rig.reported(Subject.LIMITS_DIFFER)
        await rig.reported(Subject.FAILED)
        assert rig.said(Subject.READY) == []


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


@as_root
async def test_a_fault_of_our_own(rig: FleetRig) -> None:
    """An unforeseen error is reported as any failed start is, and the start is tried again."""
    rig.programs = replace(rig.programs, path="/usr/bin\0")
    async with rig.fleet() as fleet:
        with pytest.raises(NotReady, match="a fault in the agent itself: ValueError: embedded nul"):
            await fleet.start(GPU, wanted())
        await until(lambda: status(fleet).phase == "Failed")
        await fleet.stop(GPU)


async def test_a_link_in_place_of_its_socket(rig: FleetRig, fleet: Fleet) -> None:
    """Nothing can make the agent command another daemon: it is not asked, and replaced."""
    await fleet.start(OTHER_GPU, wanted(1024))
    other, first = status(fleet, OTHER_GPU), status(fleet).pid
    for name in ("control", "control_privileged"):
        (rig.pipes() / name).unlink()
        (rig.pipes() / name).symlink_to(rig.pipes(OTHER_GPU) / name)
    words = await rig.reported(Subject.REPLACED)
    assert words == (
        f"{rig.pipes()}/control_privileged is no socket, in place of the one that the daemon made; "
        "a fresh daemon takes its place"
    )
    await until(lambda: status(fleet).pid != first)
    assert (await ready(fleet)).restarts == 1
    assert await limits(fleet) == ("4G", 50.0)
    assert await limits(fleet, OTHER_GPU) == ("1G", 50.0)
    assert status(fleet, OTHER_GPU) == other


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


# --- the server -----------------------------------------------------------------------------------


async def test_server_slow(rig: FleetRig, fleet: Fleet) -> None:
    """Initializing too long is a fault until it is over."""
    rig.knobs().turn("server_slow", 4.0)
    with rig.client() as client:
        words = await rig.reported(Subject.SERVER_SLOW)
        assert "has been initializing for 1 s" in words
        assert status(fleet).phase == "Fault"
        await ready(fleet)
        client.wait_until_accepted()


@pytest.mark.parametrize(
    ("knob", "value", "words", "line"),
    [("server_exit", 5, "status 5", "exited with status 5"),
     ("no_gpu", True, "status 1", "no CUDA-capable device")],
)  # fmt: skip
async def test_a_server_that_fails(
    rig: FleetRig, fleet: Fleet, *, knob: str, value: object, words: str, line: str
) -> None:
    """Its end and the reason are reported once for all its tries, though no query saw it alive."""
    rig.knobs().turn(knob, value)
    with rig.client():
        assert words in await rig.reported(Subject.SERVER_EXITED)
        assert line in rig.lines(Subject.SERVER_EXITED)
        await asyncio.sleep(0.7)
        assert len(rig.said(Subject.SERVER_EXITED)) == 1
    assert status(fleet).is_ready
    assert words in status(fleet).trouble
    rig.knobs().clear()
    with served(rig):
        await until(lambda: not status(fleet).trouble)


def test_the_knobs_of_failing_servers() -> None:
    """The two above."""
    assert {"server_exit", "no_gpu"} <= set(KNOBS)


@as_root
async def test_server_uid(rig: FleetRig) -> None:
    """A server of another user than the plan's is named with both."""
    prepared(rig, "server_uid", 1234)
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted(uid=0))
        with served(rig, uid=0):
            words = await rig.reported(Subject.WRONG_SERVER_USER)
            assert "runs as user 1234, the plan wants 0" in words


async def test_server_deaf(rig: FleetRig, fleet: Fleet) -> None:
    """An orphan that ignores SIGINT is killed, before the next daemon is started."""
    with served(rig):
        [orphan] = rig.servers()
        rig.knobs().turn("server_deaf")
        await asyncio.sleep(0.15)
        pid = status(fleet).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await rig.reported(Subject.EXITED)
        await ready(fleet)
        assert gone(orphan)


async def test_server_die(rig: FleetRig, fleet: Fleet) -> None:
    """The daemon calls it status 0; its clients know better."""
    with served(rig) as client:
        await until(lambda: bool(status(fleet).clients))
        os.kill(client.pid, signal.SIGSTOP)  # else it may be gone as fast as its server
        rig.knobs().turn("server_die")
        words = await rig.reported(Subject.SERVER_EXITED)
        assert f"its clients have lost it: pid {client.pid}" in words
        os.kill(client.pid, signal.SIGCONT)


async def test_server_busy(rig: FleetRig, fleet: Fleet) -> None:
    """Who its clients are is not known, so nothing is taken away from them."""
    with served(rig) as client:
        await until(lambda: bool(status(fleet).clients))
        rig.knobs().turn("server_busy")
        await until(lambda: _clients_unknown(fleet))
        with pytest.raises(StillInUse, match=r"whether .* has clients is not known"):
            await fleet.stop(GPU)
        with pytest.raises(StillInUse, match="not known"):
            await fleet.drain(GPU, seconds=0.3)
        rig.knobs().clear()
        await ready(fleet)
        client.allocate(1)


async def test_server_hang(rig: FleetRig, fleet: Fleet) -> None:
    """It does not leave when the daemon quits; both are ended in the end, and that is reported."""
    with served(rig):
        [server] = rig.servers()
    await until(lambda: not status(fleet).clients)
    rig.knobs().turn("server_hang")
    await asyncio.sleep(0.15)
    await fleet.stop(GPU)
    assert "did not end within 1.5 s of being asked to" in rig.said(Subject.SILENT)[-1]
    assert gone(server)
    assert rig.processes() == []


async def test_fault(rig: FleetRig, fleet: Fleet) -> None:
    """The culprit is named; when all its clients are gone it is Ready by itself."""
    with served(rig) as client, served(rig) as victim:
        await until(lambda: len(status(fleet).clients) == 2)
        client.fault()
        words = await rig.reported(Subject.SERVER_FAULT)
        assert f"had a fatal fault of client {client.pid}" in words
        assert status(fleet).phase == "Fault"
        assert {c.pid for c in status(fleet).clients} == {client.pid, victim.pid}
        with pytest.raises(StillInUse, match=f"pid {victim.pid}"):
            await fleet.restart(GPU)
    await ready(fleet)


async def test_fault_held(rig: FleetRig, fleet: Fleet) -> None:
    """A fault without anybody who caused it, held and cleared; "fault" is the knob."""
    with served(rig):
        await until(lambda: bool(status(fleet).clients))
    rig.knobs().turn("fault", "hold")
    assert "had a fatal fault and takes no client" in await rig.reported(Subject.SERVER_FAULT)
    rig.knobs().clear("fault")
    await ready(fleet)


@pytest.mark.parametrize("code", [700, -1])
async def test_terminate_code(rig: FleetRig, fleet: Fleet, code: int) -> None:
    """A client that cannot be taken off the device does not hold up a drain by force."""
    with served(rig):
        await until(lambda: bool(status(fleet).clients))
        rig.knobs().turn("terminate_code", code)
        await asyncio.sleep(0.15)
        assert await fleet.drain(GPU, seconds=0.1, force=True) == ()
    assert status(fleet).phase == "Down"
    assert rig.processes() == []


def test_every_knob_has_its_test() -> None:
    """Here, by name."""
    named = Path(__file__).read_text()
    assert [knob for knob in KNOBS if f'"{knob}"' not in named] == []


def _clients_unknown(fleet: Fleet) -> bool:
    daemon = fleet.daemon_of(GPU)
    return daemon is not None and not daemon.clients.known
