import asyncio
import errno
import os

import pytest

from nodeagent.errors import NodeagentError, StillInUse, UnknownDevice
from nodeagent.mps.adoption import survey
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.mps.processes import CONTROL
from nodeagent.mps.requests import NotReady
from nodeagent.simulation.mps.clients import ClientError, SimulatedClient
from nodeagent.structs import replace
from tests.folders import executable
from tests.locked_process import locked_process
from tests.machine_load import cancelled, stretched, until
from tests.mps.conftest import PYTHON, as_root
from tests.mps.fleet_rig import (
    GPU,
    IS_ROOT,
    OTHER_GPU,
    POLICY,
    US,
    FleetRig,
    called_like,
    limits,
    quick,
    ready,
    status,
    wanted,
)
from tests.processes.real import process_of

# --- start ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "version",
    ["550", "615", *(pytest.param(old, marks=pytest.mark.full) for old in ("535", "555", "580"))],
)
async def test_start_and_stop(version: str) -> None:
    with FleetRig(version) as rig:
        async with rig.started(wanted(1500, 33.33)) as fleet:
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


async def test_a_full_disk_is_no_failure(rig: FleetRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was started, so nothing crashed: it is tried again soon, and the file is named."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with rig.fleet(quick(longest_delay=3600.0)) as fleet:
        with monkeypatch.context() as disk:
            disk.setattr(os, "fsync", full)
            with pytest.raises(NotReady, match=f"No space left on device.*{GPU}/record.json"):
                await fleet.start(GPU, wanted())
            await until(
                lambda: len(rig.said(ReportSubject.START_FAILED)) > 2 * POLICY.most_failures
            )
            assert rig.said(ReportSubject.FAILED) == []
        assert (await ready(fleet)).restarts == 0


async def test_other_limits_without_another_process(rig: FleetRig, fleet: Fleet) -> None:
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
    before = status(fleet).pid
    await fleet.start(GPU, wanted(uid=1234))
    [daemon] = rig.processes(CONTROL)
    assert (daemon.uid, daemon.pid == before) == (1234, False)
    assert rig.log().parent.stat().st_uid == 1234
    async with rig.fleet():  # its record came back with the directory
        pass
    assert (rig.pipes().parent / "record.json").exists()


# --- stop, and who is in the way ------------------------------------------------------------------


async def test_stop_with_clients(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    with pytest.raises(StillInUse, match=rf"has clients: pid {client.pid} \(") as caught:
        await fleet.stop(GPU)
    assert isinstance(caught.value, StillInUse)
    await ready(fleet)
    client.allocate(1 << 20)
    with rig.served():
        pass
    assert rig.said(ReportSubject.EXITED) == []


async def test_other_shares_are_a_change_though_the_daemon_has_nothing_to_do(rig: FleetRig) -> None:
    """Its clients have to be judged by them at once, not only at the next look."""
    async with rig.started(wanted(count=1), quick(check_interval=60.0), served=60.0) as fleet:
        before = -1
        async with asyncio.timeout(stretched(30)):
            while before < (before := rig.changes):  # until nothing is still to be looked at
                await asyncio.sleep(0.5)
                await fleet.start(GPU, wanted(count=1))
        await fleet.start(GPU, wanted(count=2))
        assert rig.changes > before


async def test_keep_only(rig: FleetRig) -> None:
    async with rig.fleet() as fleet:
        await asyncio.gather(fleet.start(GPU, wanted()), fleet.start(OTHER_GPU, wanted()))
        kept = status(fleet, OTHER_GPU).pid
        with rig.served():
            await fleet.keep_only({OTHER_GPU})
        assert [s.device for s in fleet.statuses()] == [OTHER_GPU]
        assert status(fleet, OTHER_GPU).pid == kept
        await fleet.keep_only(())
        assert (fleet.statuses(), rig.processes()) == ((), [])


async def test_a_cordoned_device(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    await fleet.start(OTHER_GPU, wanted())
    before = status(fleet).pid
    fleet.cordon({GPU: "uncorrected memory errors"})
    with rig.client() as late:
        assert late.wait_until_connected() is False
    client.allocate(1 << 20)
    closed = status(fleet)
    assert (closed.state, closed.pid) == ("Ready", before)
    assert closed.trouble == "takes no new clients: uncorrected memory errors"
    assert status(fleet, OTHER_GPU).trouble == ""
    await fleet.start(GPU, wanted(2048, 25.0))  # a plan may still change what those inside have
    assert (rig.pipes(OTHER_GPU) / "control").exists()
    fleet.cordon({})
    with rig.served():
        pass
    assert (status(fleet).trouble, status(fleet).pid) == ("", before)


# --- what is seen ---------------------------------------------------------------------------------


async def test_a_survey_touches_nothing(rig: FleetRig) -> None:
    assert await survey(rig.run_dir, programs=rig.programs) == {}
    async with rig.started() as fleet:
        pid = status(fleet).pid
        with rig.served() as client:
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


@as_root
async def test_another_users_client(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    await until(lambda: bool(status(fleet).clients))
    with rig.client(uid=1234) as stranger:
        words = await rig.reported(ReportSubject.FOREIGN_USER_WAITING)
        assert f"pid {stranger.pid}" in words
        assert f"of user {US} holds the device; run it as user {US}" in words
        assert [(w.pid, w.user) for w in status(fleet).waiting] == [(stranger.pid, 1234)]
        while_it_waits = rig.changes
    assert status(fleet).waiting == ()
    await until(lambda: rig.changes > while_it_waits)
    assert len(rig.said(ReportSubject.FOREIGN_USER_WAITING)) == 1


_FORGED = """#!{python} -IS
import os, sys
if len(sys.argv) > 1:
    os.execv("{control}", ["{control}", *sys.argv[1:]])
for line in sys.stdin:
    word = line.split()[0]
    if word.startswith("__"):
        print(f'Unknown command "{{word}}"')
    elif word.startswith(("get", "set_default_active")):
        numbers = dict(get_server_list="{pid}", get_server_status="ACTIVE", get_client_list="")
        print(numbers.get(word, "50.0" if "percentage" in word else "4G"))
"""


@as_root
async def test_who_is_named_as_a_server_is_its_users(rig: FleetRig) -> None:
    """A tenant can have its daemon name any process: another user's stays a user of the GPU."""
    with process_of("sleep", "60", user=4242, group=4242, extra_groups=()) as stranger:
        forged, control = rig.folder / CONTROL, rig.programs.control[0]
        executable(forged, _FORGED.format(python=PYTHON, control=control, pid=stranger.pid))
        rig.programs = replace(rig.programs, control=(str(forged),))
        async with rig.started() as fleet:
            daemon = fleet.daemon_of(GPU)
            assert daemon is not None
            assert (daemon.state, daemon.servers) == ("Ready", ())
        assert (await survey(rig.run_dir, programs=rig.programs))[GPU].servers == ()


async def test_a_locked_client_waits(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    """Its words cannot be read: all else would wait for them as long as it lets that last."""
    await until(lambda: bool(status(fleet).clients))
    with locked_process(uid=1234, environment={}) as pid:
        rig.knobs().turn("stray_client", {"pid": pid, "uid": 1234})
        words = await rig.reported(ReportSubject.FOREIGN_USER_WAITING, within=15.0)
        assert f"pid {pid} (python3" in words
        client.allocate(1 << 20)


# --- drain ----------------------------------------------------------------------------------------


async def test_drain(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    draining = asyncio.create_task(fleet.drain(GPU, seconds=60.0))
    await until(
        lambda: status(fleet).state == "Draining" and not (rig.pipes() / "control").exists()
    )
    with rig.client() as late:
        assert late.wait_until_connected() is False
    client.allocate(1 << 20)
    await asyncio.sleep(0.2)
    assert not draining.done()
    client.close()
    assert await draining == ()
    assert (status(fleet).state, status(fleet).why) == ("Down", "drained on request")
    assert rig.processes() == []
    await asyncio.sleep(0.2)
    assert status(fleet).state == "Down"
    fleet.retry()
    await ready(fleet)


async def test_drain_out_of_time(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    await until(lambda: bool(status(fleet).clients))
    before = status(fleet).pid
    assert await fleet.drain(GPU, seconds=0.4) == (client.pid,)
    assert (await ready(fleet)).pid == before
    with rig.served():
        pass
    assert rig.said(ReportSubject.STILL_IN_USE)


async def test_drain_by_force(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    await until(lambda: bool(status(fleet).clients))
    assert await fleet.drain(GPU, seconds=0.2, force=True) == ()
    with pytest.raises(ClientError) as caught:
        client.next_answer()
    assert caught.value.code == 810  # reported by its server, which was still there
    assert rig.processes() == []


async def test_drain_is_given_up(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    draining = asyncio.create_task(fleet.drain(GPU, seconds=None))
    await until(lambda: status(fleet).state == "Draining")
    await cancelled(draining)
    await ready(fleet)
    assert (rig.pipes() / "control").exists()


async def test_a_plan_does_not_wait_for_a_drain_without_end(rig: FleetRig) -> None:
    async with rig.started(wanted(), quick(answer_deadline=1.0)) as fleet:
        with rig.served():
            draining = asyncio.create_task(fleet.drain(GPU, seconds=None))
            await until(lambda: status(fleet).state == "Draining")
            for act in (fleet.start(GPU, wanted(2048)), fleet.stop(GPU)):
                async with asyncio.timeout(stretched(30)):
                    with pytest.raises(NotReady, match="is being drained or restarted on request"):
                        await act
            assert status(fleet).state == "Draining"
            assert not draining.done()
            while fleet.statuses():  # the deadline of an answer is short here, an end takes time
                await fleet.keep_only(())
            assert await draining == ()
            assert rig.processes() == []


async def test_drained_is_not_said_beside_another_daemon(rig: FleetRig, fleet: Fleet) -> None:
    with called_like(CONTROL, rig.pipes(), "-f", uid=US if IS_ROOT else None) as other:
        with pytest.raises(NodeagentError, match=rf"another MPS daemon \(pid {other}, "):
            await fleet.drain(GPU, seconds=30.0)
        assert status(fleet).state == "Down"
    assert await fleet.drain(GPU, seconds=30.0) == ()


async def test_drained_stays_down_for_the_next_agents(rig: FleetRig) -> None:
    """Although it could not be recorded at once, as in a full /run: that is reported once, and it
    is recorded as soon as it can be. A restart brings it back.
    """
    async with rig.started() as fleet:
        record = rig.pipes().with_name("record.json")
        record.unlink()
        record.mkdir()
        assert await fleet.drain(GPU, seconds=30.0) == ()
        await asyncio.sleep(1.5)  # it is tried again meanwhile
        assert len(rig.said(ReportSubject.START_FAILED)) == 1
        record.rmdir()
        await until(record.is_file)
    for _ in range(2):
        async with rig.fleet() as fleet:
            assert (status(fleet).state, status(fleet).why) == ("Down", "drained on request")
    async with rig.fleet() as fleet:
        await fleet.restart(GPU)
        assert status(fleet).is_ready


async def test_a_drain_that_cannot_keep_new_clients_out(rig: FleetRig, fleet: Fleet) -> None:
    before = status(fleet).pid
    rig.back().write_text("in the way")
    with pytest.raises(StillInUse, match="not known: its sockets cannot be moved"):
        await fleet.drain(GPU, seconds=1.0)
    assert (await ready(fleet)).pid == before
    words = [
        said for said in rig.said(ReportSubject.STILL_IN_USE) if "sockets cannot be moved" in said
    ]
    assert len(words) == 1
    with rig.served():
        pass


# --- restart --------------------------------------------------------------------------------------


async def test_restart_of_a_daemon_whose_device_goes(rig: FleetRig) -> None:
    async with rig.started(wanted(), quick(answer_deadline=1.0)) as fleet:
        restarting = asyncio.create_task(fleet.restart(GPU))
        await until(lambda: status(fleet).state == "Draining")
        async with asyncio.timeout(stretched(30)):
            while fleet.statuses():
                await fleet.keep_only(())
            with pytest.raises(NotReady, match="Down: drained on request"):
                await restarting
        assert rig.processes() == []


async def test_requests_for_unknown_devices(rig: FleetRig, fleet: Fleet) -> None:
    with pytest.raises(UnknownDevice, match=GPU):
        await fleet.restart(OTHER_GPU)
    with pytest.raises(UnknownDevice, match="no MPS daemon"):
        await fleet.drain("GPU-x", seconds=None)
