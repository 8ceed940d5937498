"""Clients are seen as they are, and each offence is reported once."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from nodeagent.mps.clients.watch import RunningDaemon
from nodeagent.mps.files.publisher import Publisher
from nodeagent.mps.shares import DaemonSpec
from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.simulation.mps.installation import shared_interpreter
from nodeagent.structs import replace
from tests.mps.client_watch.rig import GIB, TERMINATE, Start, Watch, look, slot
from tests.mps.plans import GPU, memory_of, wanted
from tests.mps.simulated_daemon import asking, running, start
from tests.simulation.mps.rig import Rig, gone
from tests.views.daemons import mps_client


def env_files(folder: Path, spec: DaemonSpec) -> dict[str, dict[str, str]]:
    """Publish, and read back what each slot's client is given."""
    publisher = Publisher(run_dir=folder / "run", cdi_dir=folder / "cdi")
    assert publisher.publish([spec]) == ()
    files = (folder / "run/mps" / spec.device / "env").iterdir()
    return {
        path.stem: dict(line.split("=", 1) for line in path.read_text().splitlines())
        for path in files
    }


async def test_each_env_file(rig: Rig, start_client: Start, tmp_path: Path) -> None:
    """A client started with it, as the plan's user, has the limits that its server says it has."""
    plan = wanted()
    spec = start(rig, plan)
    files = env_files(tmp_path, spec)
    assert sorted(files) == ["large-0", "small-0", "small-1"]
    uid = 1000 if os.geteuid() == 0 else os.geteuid()
    clients = {name: start_client(uid, **values) for name, values in files.items()}
    control = asking(rig)
    async with Watch() as watch:
        watch.used = {clients["large-0"].pid: 3 * GIB}
        states = await look(watch, running(rig, plan, control))
    assert {state.slot for state in states} == set(files)
    for state in states:
        client = clients[state.slot]
        terms = client.terms
        assert (state.pid, state.user) == (client.pid, uid)
        assert (memory_of(state).limit, state.threads) == (terms["limit"], terms["percentage"])
        assert state.share == state.slot.partition("-")[0]
        assert state.findings == ()
        assert state.command
    large = next(state for state in states if state.share == "large")
    assert (memory_of(large).limit, large.threads, memory_of(large).used) == (
        40 * GIB,
        40.0,
        3 * GIB,
    )
    assert watch.reported == []
    assert watch.asked == [GPU]


_CONTAINER = """#!/bin/sh
exec unshare -m /bin/sh -c '
set -e
{mounts}
if touch {pipes}/file 2>/dev/null; then exit 9; fi
test -w /dev/shm/.
exec setpriv --reuid=1000 --regid=1000 --clear-groups {python} "$@"
' sh "$@"
"""


def can_mount() -> bool:
    """Whether this process may make mounts that only it sees."""
    made = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return os.geteuid() == 0 and made.returncode == 0


def _make_shm(path: Path) -> None:
    path.mkdir()
    path.chmod(0o1777)


@pytest.mark.skipif(not can_mount(), reason="needs root and mounts of its own")
async def test_in_a_container(rig: Rig, tmp_path: Path) -> None:
    """With the CDI device's mounts and environment alone, in a mount namespace of its own, a
    client gets in, but can change nothing in the pipe directory.
    """
    plan = wanted()
    spec = replace(start(rig, plan), private_shm=True)
    _make_shm(Path(spec.shm))
    publisher = Publisher(run_dir=tmp_path / "run", cdi_dir=tmp_path)
    assert publisher.publish([spec]) == ()
    document = json.loads((tmp_path / "nodeagent.io-mps.json").read_text())
    edits = next(d for d in document["devices"] if d["name"] == f"{GPU}-small-1")["containerEdits"]
    mounts = "\n".join(
        f"mount --bind {m['hostPath']} {m['containerPath']}\n"
        f"mount -o remount,{','.join(m['options'])} {m['containerPath']}"
        for m in edits["mounts"]
    )
    container = tmp_path / "container"
    container.write_text(
        _CONTAINER.format(mounts=mounts, pipes=rig.pipes, python=shared_interpreter())
    )
    container.chmod(0o755)
    environment = dict(variable.split("=", 1) for variable in edits["env"])
    with SimulatedClient(
        rig.pipes,
        environment=environment | {"PATH": os.defpath + ":/usr/sbin:/sbin"},
        python=container,
    ) as client:
        client.wait_until_accepted()
        control = asking(rig)
        async with Watch() as watch:
            [state] = await look(watch, running(rig, plan, control))
        assert state.pid == client.pid
    assert (state.user, state.slot, state.findings) == (1000, "small-1", ())
    assert (memory_of(state).limit, state.threads) == (8 * GIB, 15.0)
    assert client.terms["limit"] == 8 * GIB


async def test_an_offence_is_reported_once(rig: Rig, start_client: Start) -> None:
    """For as long as it lasts; the next offender's is another."""
    plan = wanted()
    start(rig, plan)
    first = start_client()
    control = asking(rig)
    async with Watch() as watch:
        for _ in range(2):
            await look(watch, running(rig, plan, control))
        [state] = await look(watch, running(rig, plan, control))
        assert len(state.findings) == 1
        assert watch.kinds() == [(first.pid, "noShare")]
        second = start_client()
        await look(watch, running(rig, plan, control))
        assert watch.kinds() == [(first.pid, "noShare"), (second.pid, "noShare")]
        [(device, offence), *_] = watch.reported
        assert (device, offence.client, offence.outcome) == (GPU, state, "")
        await watch.settle()
    assert not gone(first.pid)
    assert not gone(second.pid)


async def test_a_driver_that_does_not_answer(rig: Rig, start_client: Start) -> None:
    """Memory is not known then, and all else is."""
    plan = wanted()
    start(rig, plan)
    start_client(**slot("small-0"))
    control = asking(rig)
    async with Watch() as watch:
        watch.driver_fails = True
        [state] = await look(watch, running(rig, plan, control))
    assert (state.slot, memory_of(state).used, memory_of(state).limit) == ("small-0", None, 8 * GIB)


async def test_whom_nothing_is_known_of(rig: Rig) -> None:
    """A client in another pid namespace, and one that has just ended: both are shown."""
    plan = TERMINATE
    spec = start(rig, plan)
    control = asking(rig)
    async with Watch() as watch:
        daemon = RunningDaemon(spec, control, None, ((5, 0), (5, 2**22 - 1)))
        unseen, ended = await look(watch, daemon)
        await watch.settle()
    assert unseen.pid == 0
    assert "another pid namespace" in unseen.findings[0]
    assert ended == mps_client(2**22 - 1)
    assert watch.reported == []
