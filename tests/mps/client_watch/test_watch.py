import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.mps.clients.assess import Offence
from nodeagent.mps.clients.watch import ClientWatch, RunningDaemon
from nodeagent.mps.files.publisher import Publisher
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.shares import MIB, WantedMps
from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.simulation.mps.installation import shared_interpreter
from nodeagent.structs import replace
from nodeagent.views.shapes import MpsClient
from tests.machine_load import stretched
from tests.mps.client_watch.conftest import Start, asking, running, start
from tests.mps.conftest import may_mount
from tests.mps.plans import GPU, memory_of, wanted
from tests.simulation.mps.rig import Rig, gone
from tests.views.daemons import mps_client

GIB = 1024 * MIB
TERMINATE = wanted(enforce="terminate", uid=os.geteuid())


class Watch(ClientWatch):
    """Keeps its reports. Its driver lists the clients that daemons named last, without `unlisted`
    and with `hidden` ones, and their memory from `used`.
    """

    def __init__(self, rig: Rig, plan: WantedMps, *, grace: float = 5.0) -> None:
        self.rig, self.plan, self.control = rig, plan, asking(rig)
        self.reported: list[tuple[str, Offence]] = []
        self.used: dict[int, int] = {}
        self.asked: list[str] = []
        self.driver_fails = False
        self.named: set[int] = set()
        self.unlisted: set[int] = set()
        self.hidden: set[int] = set()
        self.unused: set[str] = set()  # devices that nobody is on
        super().__init__(
            listed=self._memory_of,
            report=lambda device, offence: self.reported.append((device, offence)),
            deadline=60.0,
            grace=grace,
        )

    async def _memory_of(self, device: str) -> Mapping[int, int | None]:
        self.asked.append(device)
        if self.driver_fails:
            raise NodeagentError("the driver does not answer")
        listed = (self.named | self.hidden) - self.unlisted if device not in self.unused else ()
        return {pid: self.used.get(pid) for pid in listed}

    @property
    def daemon(self) -> RunningDaemon:
        return running(self.rig, self.plan, self.control)

    async def look(self, daemon: RunningDaemon | None = None) -> tuple[MpsClient, ...]:
        """At the one daemon; until no client is being ended any more."""
        daemon = daemon or self.daemon
        self.named = {pid for _, pid in daemon.clients}
        found = await self.check([daemon])
        assert list(found) == [daemon.device]
        while ending := [t for t in asyncio.all_tasks() if t.get_name().startswith("mps end")]:
            await asyncio.wait(ending)
        return found[daemon.device]

    def kinds(self) -> list[tuple[int, str]]:
        return [(offence.client.pid, offence.kind.value) for _, offence in self.reported]


def slot(name: str) -> dict[str, str]:
    """What the env file of a slot of the two usual shares says, but for the pipe directory."""
    memory, threads = ("40960", "40") if name.startswith("large") else ("8192", "15")
    return {
        "NODEAGENT_MPS_SLOT": f"{GPU}/{name}",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory}M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": threads,
    }


# --- states ---------------------------------------------------------------------------------------


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
    plan = wanted()
    spec = start(rig, plan)
    files = env_files(tmp_path, spec)
    assert sorted(files) == ["large-0", "small-0", "small-1"]
    uid = 1000 if os.geteuid() == 0 else os.geteuid()
    clients = {name: start_client(uid, **values) for name, values in files.items()}
    async with Watch(rig, plan) as watch:
        watch.used = {clients["large-0"].pid: 3 * GIB}
        states = await watch.look()
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


def _make_shm(path: Path) -> None:
    path.mkdir()
    path.chmod(0o1777)


@may_mount
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
        async with Watch(rig, plan) as watch:
            [state] = await watch.look()
        assert state.pid == client.pid
    assert (state.user, state.slot, state.findings) == (1000, "small-1", ())
    assert (memory_of(state).limit, state.threads) == (8 * GIB, 15.0)
    assert client.terms["limit"] == 8 * GIB


async def test_an_offence_is_reported_once(rig: Rig, start_client: Start) -> None:
    plan = wanted()
    start(rig, plan)
    first = start_client()
    async with Watch(rig, plan) as watch:
        for _ in range(2):
            await watch.look()
        [state] = await watch.look()
        assert len(state.findings) == 1
        assert watch.kinds() == [(first.pid, "noShare")]
        second = start_client()
        await watch.look()
        assert watch.kinds() == [(first.pid, "noShare"), (second.pid, "noShare")]
        [(device, offence), *_] = watch.reported
        assert (device, offence.client, offence.outcome) == (GPU, state, "")
    assert not gone(first.pid)
    assert not gone(second.pid)


async def test_a_driver_that_does_not_answer(rig: Rig, start_client: Start) -> None:
    plan = wanted()
    start(rig, plan)
    start_client(**slot("small-0"))
    async with Watch(rig, plan) as watch:
        watch.driver_fails = True
        [state] = await watch.look()
    assert (state.slot, memory_of(state).used, memory_of(state).limit) == ("small-0", None, 8 * GIB)


async def test_whom_nothing_is_known_of(rig: Rig) -> None:
    plan = TERMINATE
    spec = start(rig, plan)
    async with Watch(rig, plan) as watch:
        daemon = RunningDaemon(spec, watch.control, None, ((5, 0), (5, 2**22 - 1)))
        unseen, ended = await watch.look(daemon)
    assert unseen.pid == 0
    assert "another pid namespace" in unseen.findings[0]
    assert ended == mps_client(2**22 - 1)
    assert watch.reported == []


# --- termination ----------------------------------------------------------------------------------


async def test_over_the_count_and_ended(rig: Rig, start_client: Start) -> None:
    start(rig, TERMINATE)
    clients = [start_client(**slot(name)) for name in ("small-0", "small-1", "small-0")]
    server = rig.server()
    async with Watch(rig, TERMINATE) as watch:
        await watch.look()
        states = await watch.look()
    assert clients[2].process.wait(stretched(30)) == 1
    assert [state.pid for state in states] == [clients[0].pid, clients[1].pid]
    assert all(state.findings == () for state in states)
    assert rig.server() == server
    clients[0].allocate(GIB)
    _, (_, first), (_, last) = watch.reported
    assert (first.kind, first.outcome) == ("count", "")
    assert (last.kind, last.client.pid) == ("count", clients[2].pid)
    assert last.outcome == "the daemon ended its work, and it ended by itself"


async def test_an_older_program_that_comes_later(rig: Rig, start_client: Start) -> None:
    start(rig, TERMINATE)
    with SimulatedClient(rig.pipes, environment=slot("small-0")) as older:
        os.kill(older.pid, signal.SIGSTOP)  # before it has come to connect
        clients = [start_client(**slot(name)) for name in ("small-0", "small-1")]
        async with Watch(rig, TERMINATE) as watch:
            await watch.look(daemon := watch.daemon)
            await watch.look(replace(daemon, clients=()))  # as of a server that is busy
            os.kill(older.pid, signal.SIGCONT)
            older.wait_until_accepted()
            await watch.look()
        assert older.process.wait(stretched(30)) == 1
    assert not any(gone(client.pid) for client in clients)


async def test_looser_limits_and_ended(rig: Rig, start_client: Start) -> None:
    environment = slot("small-0") | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}
    start(rig, TERMINATE)
    client, good = start_client(**environment), start_client(**slot("large-0"))
    async with Watch(rig, TERMINATE) as watch:
        await watch.look()
    assert client.process.wait(stretched(30)) == 1
    assert not gone(good.pid)
    assert {offence.client.pid for _, offence in watch.reported} == {client.pid}


async def test_too_much_memory_and_ended(rig: Rig, start_client: Start) -> None:
    """Not at once, since it may be giving it back; when it lasts, it is."""
    start(rig, TERMINATE)
    client = start_client(**slot("small-0"))
    async with Watch(rig, TERMINATE, grace=0.5) as watch:
        watch.used = {client.pid: 9 * GIB}
        await watch.look()
        assert not gone(client.pid)
        await asyncio.sleep(0.6)
        await watch.look()
    assert gone(client.pid)
    assert [offence.outcome != "" for _, offence in watch.reported] == [False, True]


async def test_who_is_on_the_second_gpu_alone(rig: Rig, start_client: Start) -> None:
    """Its use of it is seen, and it can be ended, as the driver lists it on a GPU of its daemon."""
    plan = replace(TERMINATE, devices=(GPU, "GPU-other"))
    start(rig, plan)
    client = start_client()
    async with Watch(rig, plan) as watch:
        watch.unused, watch.used = {GPU}, {client.pid: 3 * GIB}
        [state] = await watch.look()
    assert memory_of(state).used == 3 * GIB
    assert gone(client.pid)
    assert {device for device, _ in watch.reported} == {GPU}


async def test_whom_only_the_daemon_names(rig: Rig, start_client: Start) -> None:
    """Is reported and lives on: a daemon that runs for a tenant may name any process."""
    start(rig, TERMINATE)
    client = start_client()
    async with Watch(rig, TERMINATE) as watch:
        watch.unlisted = {client.pid}
        await watch.look()
    assert not gone(client.pid)
    assert "terminate_client" not in rig.log()
    assert watch.kinds() == [(client.pid, "noShare"), (client.pid, "noShare")]
    assert watch.reported[-1][1].outcome == (
        "left alone: the driver does not list it as an MPS process of the device"
    )


async def test_whom_only_the_driver_lists(rig: Rig, start_client: Start) -> None:
    """Is ended too, where it is the plan's user's: a tenant's daemon may hide a client."""
    start(rig, TERMINATE)
    hidden = start_client()
    async with Watch(rig, TERMINATE) as watch:
        watch.hidden = {hidden.pid}
        daemon = replace(watch.daemon, clients=())
        await watch.look(daemon)
    assert hidden.process.wait(stretched(30)) == 1
    assert watch.reported[-1][1].outcome == "the daemon ended its work, and it ended by itself"


async def test_who_cannot_be_ended(rig: Rig, start_client: Start) -> None:
    start(rig, TERMINATE)
    client = start_client()
    rig.knobs.turn("terminate_code", 999)
    async with Watch(rig, TERMINATE) as watch:
        for _ in range(3):
            await watch.look()
    assert not gone(client.pid)
    first, second = (offence.outcome for _, offence in watch.reported)
    assert first == ""
    assert second == "left alone: the daemon could not end its work, CUDA error 999"
    assert rig.log().count("terminate_client") == 1


async def test_closing_ends_nothing(rig: Rig, start_client: Start) -> None:
    start(rig, TERMINATE)
    client = start_client()
    rig.knobs.turn("terminate_code", -1)
    async with Watch(rig, TERMINATE) as watch:
        watch.named = {client.pid}
        await watch.check([watch.daemon])
        await asyncio.sleep(0.3)
    assert not gone(client.pid)
