"""What is known of running daemons and their clients, and what it costs to know it."""

from __future__ import annotations

import asyncio
import os
import subprocess

from nodeagent.mps.adoption import survey
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import Subject
from nodeagent.mps.processes import CONTROL
from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.structs import replace
from tests.locked_process import locked_process
from tests.machine_load import stretched
from tests.mps.conftest import PYTHON, as_root
from tests.mps.fleet_rig import GPU, US, FleetRig, quick, status, until, wanted


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
    assert running.spec.limits.memory == 4096


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


@as_root
async def test_a_client_of_another_user(
    rig: FleetRig, fleet: Fleet, client: SimulatedClient
) -> None:
    """A real one that hangs in its first call is named while it hangs; that it waits, and that it
    no longer does, is a change that those who show the daemon hear of.
    """
    await until(lambda: bool(status(fleet).clients))
    with rig.client(uid=1234) as stranger:
        words = await rig.reported(Subject.FOREIGN_USER_WAITING)
        assert f"pid {stranger.pid}" in words
        assert f"of user {US} holds the device; run it as user {US}" in words
        assert [(w.pid, w.user) for w in status(fleet).waiting] == [(stranger.pid, 1234)]
        while_it_waits = rig.changes
    assert status(fleet).waiting == ()
    await until(lambda: rig.changes > while_it_waits)
    assert len(rig.said(Subject.FOREIGN_USER_WAITING)) == 1


@as_root
async def test_a_waiting_client_whose_memory_is_locked(
    rig: FleetRig, fleet: Fleet, client: SimulatedClient
) -> None:
    """Its words cannot be read: all else would wait for them as long as it lets that last."""
    await until(lambda: bool(status(fleet).clients))
    with locked_process(uid=1234, environment={}) as pid:
        rig.knobs().turn("stray_client", {"pid": pid, "uid": 1234})
        words = await rig.reported(Subject.FOREIGN_USER_WAITING, within=15.0)
        assert f"pid {pid} (python3" in words
        client.allocate(1 << 20)


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
    stranger = subprocess.Popen(["sleep", "60"], user=4242, group=4242, extra_groups=())
    try:
        forged, control = rig.folder / CONTROL, rig.programs.control[0]
        forged.write_text(_FORGED.format(python=PYTHON, control=control, pid=stranger.pid))
        forged.chmod(0o755)
        rig.programs = replace(rig.programs, control=(str(forged),))
        async with rig.fleet() as fleet:
            await fleet.start(GPU, wanted())
            daemon = fleet.daemon_of(GPU)
            assert daemon is not None
            assert (daemon.state, daemon.servers) == ("Ready", ())
        assert (await survey(rig.run_dir, programs=rig.programs))[GPU].servers == ()
    finally:
        stranger.kill()
        stranger.wait()


async def test_questions_of_our_own_wake_nothing(rig: FleetRig) -> None:
    """Each leaves lines in the log; if these led to another question, there would be no end."""
    async with rig.fleet(quick(check_interval=60.0)) as fleet:
        await fleet.start(GPU, wanted())
        asked = 0
        async with asyncio.timeout(stretched(30)):
            while asked < (asked := rig.log().read_text().count("NEW UI")):
                await asyncio.sleep(1.0)  # in which there would be many


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
