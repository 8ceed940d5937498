"""Daemons as plans and people want them: started, changed, drained, restarted, stopped, listed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nodeagent.errors import StillInUse, UnknownDevice
from nodeagent.mps.control.commands import get_default_memory_limit, get_default_threads
from nodeagent.mps.files.directories import DirectoryRefused
from nodeagent.mps.fleet import Fleet, NotReady, survey
from nodeagent.mps.lifecycle.model import Subject
from nodeagent.mps.processes import CONTROL
from nodeagent.processes import ProcessIdentity, age, identify
from nodeagent.simulation.mps.clients import ClientError, SimulatedClient
from tests.mps.fleet_rig import (
    GPU,
    IS_ROOT,
    OTHER_GPU,
    US,
    FleetRig,
    quick,
    ready,
    status,
    until,
    wanted,
)
from tests.simulation.mps.rig import gone

as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")


@pytest.fixture
def rig() -> Iterator[FleetRig]:
    """Folders of their own."""
    with FleetRig() as made:
        yield made


@pytest.fixture
async def fleet(rig: FleetRig) -> AsyncIterator[Fleet]:
    """With one daemon that is Ready."""
    async with rig.fleet() as made:
        await made.start(GPU, wanted())
        yield made


@pytest.fixture
def client(rig: FleetRig, fleet: Fleet) -> Iterator[SimulatedClient]:
    """One that its server has taken."""
    with rig.client() as made:
        made.wait_until_accepted()
        yield made


async def limits(fleet: Fleet) -> tuple[str, float]:
    """What is really in force."""
    [daemon] = fleet.running()
    memory, threads = await daemon.control.ask_each(
        get_default_memory_limit(), get_default_threads()
    )
    return str(memory), threads


# --- start ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["535", "550", "555", "580", "615"])
async def test_start_and_stop(version: str) -> None:
    """Ready means that the limits are in force, as the plan's user; stopped, nothing is left."""
    with FleetRig(version) as rig:
        async with rig.fleet() as fleet:
            await fleet.start(GPU, wanted(1500, 33.33))
            state = status(fleet)
            assert (state.is_ready, state.why, state.restarts) == (True, "", 0)
            assert await limits(fleet) == ("1G", 33.3)
            [daemon] = rig.processes(CONTROL)
            assert (daemon.pid, daemon.uid) == (state.pid, US)
            with rig.client() as client:
                assert client.wait_until_accepted()["limit"] == 1500 << 20
                await until(lambda: bool(status(fleet).clients))
            await fleet.stop(GPU)
            assert (fleet.statuses(), fleet.daemon_of(GPU), fleet.running()) == ((), None, ())
        assert rig.processes() == []
        assert list((rig.run_dir / "mps").iterdir()) == []


async def test_start_again_is_no_change(rig: FleetRig, fleet: Fleet) -> None:
    """The same plan disturbs nothing."""
    before = status(fleet)
    await fleet.start(GPU, wanted())
    assert status(fleet) == before


async def test_other_limits_without_another_process(rig: FleetRig, fleet: Fleet) -> None:
    """Also for a server that is there already: its later clients get them."""
    before = status(fleet).pid
    with rig.client() as early, rig.client() as late:
        early.wait_until_accepted()
        late.wait_until_accepted()
    await fleet.start(GPU, wanted(2048, 25.0))
    assert (await limits(fleet), status(fleet).pid) == (("2G", 25.0), before)
    with rig.client() as client:
        terms = client.wait_until_accepted()
    assert (terms["limit"], terms["percentage"]) == (2048 << 20, 25.0)


@as_root
async def test_another_user_takes_another_process(rig: FleetRig, fleet: Fleet) -> None:
    """The old one ends first, its directories go, and the new one's are the new user's."""
    before = status(fleet).pid
    await fleet.start(GPU, wanted(uid=1234))
    [daemon] = rig.processes(CONTROL)
    assert (daemon.uid, daemon.pid == before) == (1234, False)
    assert rig.log().parent.stat().st_uid == 1234
    async with rig.fleet():  # its record came back with the directory
        pass
    assert (rig.pipes().parent / "record.json").exists()


async def test_compute_mode_counts(rig: FleetRig) -> None:
    """Ready is not said while something else about the device is not as it has to be, nor later."""
    rig.differences = ("compute mode is default and not exclusiveProcess",)
    async with rig.fleet() as fleet:
        with pytest.raises(NotReady, match="compute mode is default"):
            await fleet.start(GPU, wanted())
        rig.differences = ()
        await fleet.restart(GPU)
        assert status(fleet).is_ready
        rig.differences = ("compute mode is prohibited",)
        await until(lambda: not status(fleet).is_ready)
        assert "compute mode is prohibited" in status(fleet).why
        rig.differences = ()
        assert (await ready(fleet)).restarts == status(fleet).restarts


async def test_a_place_that_is_not_ours(rig: FleetRig) -> None:
    """A symlink where the directory should be is refused by name, and nothing is started."""
    (rig.run_dir / "mps").mkdir(parents=True)
    (rig.run_dir / "mps" / GPU).symlink_to("/tmp")
    async with rig.fleet() as fleet:
        with pytest.raises(DirectoryRefused, match="is a symlink"):
            await fleet.start(GPU, wanted())
    assert rig.processes() == []


# --- stop, and who is in the way ------------------------------------------------------------------


async def test_stop_is_refused_while_clients_are_there(
    rig: FleetRig, fleet: Fleet, client: SimulatedClient
) -> None:
    """They are named, while they are there; all is as it was, for new clients too."""
    with pytest.raises(StillInUse, match=rf"has clients: pid {client.pid} \(") as caught:
        await fleet.stop(GPU)
    assert isinstance(caught.value, StillInUse)
    await ready(fleet)
    client.allocate(1 << 20)
    with rig.client() as another:
        another.wait_until_accepted()
    assert rig.said(Subject.EXITED) == []


async def test_stop_of_what_there_is_not(rig: FleetRig, fleet: Fleet) -> None:
    """Is done already."""
    await fleet.stop(OTHER_GPU)


async def test_stop_of_one_that_hangs(rig: FleetRig) -> None:
    """Without a server it has no clients, whatever it does not say."""
    rig.impatient = True
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        rig.knobs().turn("hang")
        await asyncio.sleep(0.15)
        await fleet.stop(GPU)
    assert rig.processes() == []


async def test_stop_of_one_that_failed(rig: FleetRig) -> None:
    """There is nothing to end, only to take away."""
    rig.knobs().turn("start_error", "no")
    async with rig.fleet() as fleet:
        with pytest.raises(NotReady):
            await fleet.start(GPU, wanted())
        await fleet.stop(GPU)
        assert fleet.statuses() == ()
    assert list((rig.run_dir / "mps").iterdir()) == []


async def test_other_shares_are_a_change_though_the_daemon_has_nothing_to_do(rig: FleetRig) -> None:
    """Its clients have to be judged by them at once, not only at the next look."""
    async with rig.fleet(quick(check_interval=60.0), served=60.0) as fleet:
        await fleet.start(GPU, wanted(count=1))
        await asyncio.sleep(1.0)  # so that nothing is still to be looked at
        before = rig.changes
        await fleet.start(GPU, wanted(count=1))
        assert rig.changes == before
        await fleet.start(GPU, wanted(count=2))
        assert rig.changes > before


# --- closed to clients ----------------------------------------------------------------------------


async def test_a_daemon_of_a_sick_device_takes_no_new_clients(
    rig: FleetRig, fleet: Fleet, client: SimulatedClient
) -> None:
    """A new client finds no MPS, a connected one works on, and so does the daemon; when the
    device is well again, it is as before. Others are not concerned.
    """
    await fleet.start(OTHER_GPU, wanted())
    before = status(fleet).pid
    fleet.close_to_clients({GPU: "uncorrected memory errors"})
    with rig.client() as late:
        assert late.wait_until_connected() is False
    client.allocate(1 << 20)
    closed = status(fleet)
    assert (closed.phase, closed.pid) == ("Ready", before)
    assert closed.trouble == "takes no new clients: uncorrected memory errors"
    assert status(fleet, OTHER_GPU).trouble == ""
    await fleet.start(GPU, wanted(2048, 25.0))  # a plan may still change what those inside have
    assert (rig.pipes(OTHER_GPU) / "control").exists()
    fleet.close_to_clients({})
    with rig.client() as another:
        another.wait_until_accepted()
    assert (status(fleet).trouble, status(fleet).pid) == ("", before)


async def test_a_daemon_that_starts_on_a_sick_device_takes_no_clients(rig: FleetRig) -> None:
    """It is Ready, and cannot be found; nor after its end and new start."""
    async with rig.fleet() as fleet:
        fleet.close_to_clients({GPU: "sick"})
        await fleet.start(GPU, wanted())
        assert not (rig.pipes() / "control").exists()
        await fleet.restart(GPU)
        assert (status(fleet).is_ready, status(fleet).trouble) == (
            True,
            "takes no new clients: sick",
        )
        assert not (rig.pipes() / "control").exists()


# --- drain ----------------------------------------------------------------------------------------


async def test_drain(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    """New clients find no MPS, the old one works on; when it has gone the daemon is down, and
    stays so until it is wanted.
    """
    draining = asyncio.create_task(fleet.drain(GPU, seconds=60.0))
    await until(
        lambda: status(fleet).phase == "Draining" and not (rig.pipes() / "control").exists()
    )
    with rig.client() as late:
        assert late.wait_until_connected() is False
    client.allocate(1 << 20)
    await asyncio.sleep(0.6)
    assert not draining.done()
    client.close()
    assert await draining == ()
    assert (status(fleet).phase, status(fleet).why) == ("Down", "drained on request")
    assert rig.processes() == []
    await asyncio.sleep(0.5)
    assert status(fleet).phase == "Down"
    fleet.retry()
    await ready(fleet)


async def test_an_idle_daemon_is_drained_at_once(rig: FleetRig) -> None:
    """It is asked for its clients then, and not when it would have been asked next."""
    async with rig.fleet(quick(check_interval=60.0), served=60.0) as fleet:
        await fleet.start(GPU, wanted())
        with rig.client() as client:
            client.wait_until_accepted()
            await until(lambda: bool(status(fleet).clients))
        await until(lambda: not status(fleet).clients)
        await asyncio.sleep(1.0)  # so that nothing is still to be looked at
        assert await fleet.drain(GPU, seconds=30.0) == ()


async def test_drain_that_is_not_done_in_time(
    rig: FleetRig, fleet: Fleet, client: SimulatedClient
) -> None:
    """The clients that are left are reported, and new ones are let in again."""
    await until(lambda: bool(status(fleet).clients))
    before = status(fleet).pid
    assert await fleet.drain(GPU, seconds=0.4) == (client.pid,)
    assert (await ready(fleet)).pid == before
    with rig.client() as another:
        another.wait_until_accepted()
    assert rig.said(Subject.STILL_IN_USE)


async def test_drain_by_force(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    """At the end of the time the client is taken off the device in the safe way."""
    await until(lambda: bool(status(fleet).clients))
    assert await fleet.drain(GPU, seconds=0.2, force=True) == ()
    with pytest.raises(ClientError) as caught:
        client.next_answer()
    assert caught.value.code == 810  # reported by its server, which was still there
    assert rig.processes() == []


async def test_drain_whose_caller_no_longer_waits(
    rig: FleetRig, fleet: Fleet, client: SimulatedClient
) -> None:
    """It is given up."""
    draining = asyncio.create_task(fleet.drain(GPU, seconds=None))
    await until(lambda: status(fleet).phase == "Draining")
    draining.cancel()
    with suppress(asyncio.CancelledError):
        await draining
    await ready(fleet)
    assert (rig.pipes() / "control").exists()


async def test_a_plan_does_not_wait_for_a_drain_without_end(rig: FleetRig) -> None:
    """The error names who has the daemon, so that plans for other devices go on; a device that is
    no more ends the drain.
    """
    async with rig.fleet(quick(answer_deadline=1.0)) as fleet:
        await fleet.start(GPU, wanted())
        with rig.client() as client:
            client.wait_until_accepted()
            draining = asyncio.create_task(fleet.drain(GPU, seconds=None))
            await until(lambda: status(fleet).phase == "Draining")
            for act in (fleet.start(GPU, wanted(2048)), fleet.stop(GPU)):
                async with asyncio.timeout(30):
                    with pytest.raises(NotReady, match="is being drained or restarted on request"):
                        await act
            assert status(fleet).phase == "Draining"
            assert not draining.done()
            await fleet.keep_only(())
            assert await draining == ()
            assert (fleet.statuses(), rig.processes()) == ((), [])


async def test_drained_stays_down_for_the_next_agent(rig: FleetRig) -> None:
    """And the one after; a restart brings it back."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        assert await fleet.drain(GPU, seconds=30.0) == ()
    for _ in range(2):
        async with rig.fleet() as fleet:
            await asyncio.sleep(0.2)
            assert (status(fleet).phase, status(fleet).why) == ("Down", "drained on request")
    async with rig.fleet() as fleet:
        await fleet.restart(GPU)
        assert status(fleet).is_ready


# --- restart --------------------------------------------------------------------------------------


async def test_restart(rig: FleetRig, fleet: Fleet) -> None:
    """Another process, and Ready when it returns."""
    before = status(fleet).pid
    await fleet.restart(GPU)
    assert status(fleet).is_ready
    assert status(fleet).pid != before
    assert len(rig.processes(CONTROL)) == 1


async def test_restart_of_one_in_use(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    """Refused by name, done by force."""
    before = status(fleet).pid
    with pytest.raises(StillInUse, match=f"pid {client.pid}"):
        await fleet.restart(GPU)
    assert (await ready(fleet)).pid == before
    client.allocate(1)
    await fleet.restart(GPU, force=True)
    assert status(fleet).pid != before


async def test_requests_for_unknown_devices(rig: FleetRig, fleet: Fleet) -> None:
    """The error says which devices there are."""
    with pytest.raises(UnknownDevice, match=GPU):
        await fleet.restart(OTHER_GPU)
    with pytest.raises(UnknownDevice, match="no MPS daemon"):
        await fleet.drain("GPU-x", seconds=None)


# --- the rest -------------------------------------------------------------------------------------


async def test_keep_only(rig: FleetRig) -> None:
    """A daemon of a device that is no more is ended, even while in use; the other is left alone."""
    async with rig.fleet() as fleet:
        await asyncio.gather(fleet.start(GPU, wanted()), fleet.start(OTHER_GPU, wanted()))
        kept = status(fleet, OTHER_GPU).pid
        with rig.client() as client:
            client.wait_until_accepted()
            await fleet.keep_only({OTHER_GPU})
        assert [s.device for s in fleet.statuses()] == [OTHER_GPU]
        assert status(fleet, OTHER_GPU).pid == kept
        await fleet.keep_only(())
        assert (fleet.statuses(), rig.processes()) == ((), [])


async def test_what_the_planner_and_the_client_watch_see(
    rig: FleetRig, fleet: Fleet, client: SimulatedClient
) -> None:
    """Servers and clients, as wanted; through the door that is open."""
    await until(lambda: bool(status(fleet).clients))
    await fleet.poll()
    [server] = rig.servers()
    daemon = fleet.daemon_of(GPU)
    assert daemon is not None
    assert (daemon.runs, daemon.state, daemon.servers) == (wanted(), "Ready", (server,))
    assert [user.pid for user in daemon.clients.processes] == [client.pid]
    [running] = fleet.running()
    assert (running.wanted, running.clients) == (wanted(), ((server, client.pid),))
    assert running.spec.memory_limit == 4096


async def test_a_survey_touches_nothing(rig: FleetRig) -> None:
    """Ready only when it was asked; what is gone or was drained is reported as that."""
    assert await survey(rig.run_dir, programs=rig.programs) == {}
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        pid = status(fleet).pid
        with rig.client() as client:
            client.wait_until_accepted()
            asked = (await survey(rig.run_dir, programs=rig.programs))[GPU]
            assert (asked.state, asked.pid, asked.runs) == ("Ready", pid, wanted())
            assert [user.pid for user in asked.clients.processes] == [client.pid]
        await fleet.drain(GPU, seconds=30.0)
        drained = (await survey(rig.run_dir, programs=rig.programs))[GPU]
        assert (drained.state, drained.why) == ("Down", "drained on request")
        await fleet.restart(GPU)
    for daemon in rig.processes(CONTROL):
        os.kill(daemon.pid, 9)
        os.waitpid(daemon.pid, 0)
    lost = (await survey(rig.run_dir, programs=rig.programs))[GPU]
    assert (lost.state, lost.pid) == ("Backoff", None)


async def test_a_record_that_cannot_be_written(rig: FleetRig, fleet: Fleet) -> None:
    """Is reported; the daemon does its work without it."""
    record = rig.pipes().with_name("record.json")
    record.unlink()
    record.mkdir()
    await fleet.start(GPU, wanted(2048))
    assert "its record for the next agent cannot be written" in rig.said(Subject.START_FAILED)[0]


async def test_questions_of_our_own_wake_nothing(rig: FleetRig) -> None:
    """Each leaves lines in the log; if these led to another question, there would be no end."""
    async with rig.fleet(quick(check_interval=0.8)) as fleet:
        await fleet.start(GPU, wanted())
        await asyncio.sleep(0.3)
        began, before = time.monotonic(), rig.log().read_text().count("NEW UI")
        await until(lambda: rig.log().read_text().count("NEW UI") >= before + 2)
        asked = rig.log().read_text().count("NEW UI") - before
        assert asked <= (time.monotonic() - began) / 0.8 + 1


async def test_the_log_is_bounded(rig: FleetRig) -> None:
    """Cut off in place, its end kept beside it, and listened to on."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        with rig.log().open("a") as log:
            log.write("more than it may have\n" * 60_000)
        await until(lambda: (rig.log().with_name("daemon.log.1")).exists())
        await until(lambda: 0 < rig.log().stat().st_size < 1 << 20)
        assert rig.log().with_name("daemon.log.1").stat().st_size <= 1 << 20
        with rig.client() as client:
            client.wait_until_accepted()
            await until(lambda: bool(status(fleet).clients))


@as_root
async def test_a_client_of_another_user(
    rig: FleetRig, fleet: Fleet, client: SimulatedClient
) -> None:
    """A real one that hangs in its first call is named while it hangs."""
    with rig.client(uid=1234) as stranger:
        words = await rig.reported(Subject.FOREIGN_USER_WAITING)
        assert f"pid {stranger.pid}" in words
        assert f"of user {US} holds the device; run it as user {US}" in words
        assert [(w.pid, w.user) for w in status(fleet).waiting] == [(stranger.pid, 1234)]
    assert status(fleet).waiting == ()
    assert len(rig.said(Subject.FOREIGN_USER_WAITING)) == 1


async def test_a_steady_daemon_is_back_at_once_and_then_waits(rig: FleetRig) -> None:
    """Its first end costs no delay, a quick one after it does; other devices' daemons notice
    nothing, and no task or descriptor is left.
    """
    before = _open_files()
    async with rig.fleet(quick(first_delay=600.0, longest_delay=600.0, steady=1.0)) as fleet:
        await asyncio.gather(fleet.start(GPU, wanted()), fleet.start(OTHER_GPU, wanted()))
        other = status(fleet, OTHER_GPU)
        first = status(fleet).pid
        assert first is not None
        await until(lambda: age(_identity(first)) > 1.0)
        os.kill(first, 9)
        await until(lambda: status(fleet).pid not in {None, first})
        second = (await ready(fleet)).pid  # so the delay of 600 s was not waited for
        assert second is not None
        os.kill(second, 9)
        await until(lambda: status(fleet).phase == "Backoff")
        assert status(fleet, OTHER_GPU) == other
        assert gone(first)
    assert _open_files() == before


def _identity(pid: int) -> ProcessIdentity:
    found = identify(pid)
    assert isinstance(found, ProcessIdentity)
    return found


async def test_one_that_failed_is_tried_on(rig: FleetRig) -> None:
    """Once its cause has passed, it becomes Ready by itself."""
    rig.knobs().turn("start_error", "Cannot do it today")
    async with rig.fleet(quick(longest_delay=0.1)) as fleet:
        with pytest.raises(NotReady, match="Cannot do it today"):
            await fleet.start(GPU, wanted())
        assert "is tried every 0.1 s only" in await rig.reported(Subject.FAILED)
        rig.knobs().clear()
        await ready(fleet)
        assert len(rig.said(Subject.FAILED)) == 1


async def test_a_front_end_that_was_left_open(rig: FleetRig) -> None:
    """It has the daemon's name and pipe directory, but is none: a dead daemon comes back."""
    rig.impatient = True
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        front_end = await asyncio.create_subprocess_exec(
            rig.programs.control[0],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": rig.programs.path, "CUDA_MPS_PIPE_DIRECTORY": str(rig.pipes())},
        )
        try:
            pid = status(fleet).pid
            assert pid is not None
            await rig.reported(Subject.SILENT)  # it holds the only connection
            os.kill(pid, 9)
            await until(lambda: status(fleet).pid not in {None, pid})
            assert (await ready(fleet)).pid != pid
            assert front_end.returncode is None
        finally:
            if front_end.returncode is None:
                front_end.kill()
            await front_end.wait()


async def test_clients_may_have_a_daemon_that_comes_back(rig: FleetRig) -> None:
    """One that was Ready is published on while it is started anew, by another agent too; one that
    never was is not.
    """
    async with rig.fleet() as fleet:
        rig.knobs().turn("start_error", "no")
        with pytest.raises(NotReady):
            await fleet.start(GPU, wanted())
        assert fleet.running() == ()
        rig.knobs().clear()
        await fleet.restart(GPU)
        pid = status(fleet).pid
        assert pid is not None
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    rig.knobs().turn("start_error", "no")
    async with rig.fleet() as fleet:
        await rig.reported(Subject.FAILED)
        assert [daemon.wanted for daemon in fleet.running()] == [wanted()]


async def test_a_drain_that_cannot_keep_new_clients_out(rig: FleetRig, fleet: Fleet) -> None:
    """Then no client is known to be the last: the reason is reported once, and nothing is ended."""
    before = status(fleet).pid
    rig.back().write_text("in the way")
    with pytest.raises(StillInUse, match="not known"):
        await fleet.drain(GPU, seconds=1.0)
    assert (await ready(fleet)).pid == before
    words = [said for said in rig.said(Subject.STILL_IN_USE) if "sockets cannot be moved" in said]
    assert len(words) == 1
    with rig.client() as client:
        client.wait_until_accepted()


def _open_files() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
