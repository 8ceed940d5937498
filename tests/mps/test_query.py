"""What answers mean: who the clients are, and whether limits are in force."""

from __future__ import annotations

import pytest

from nodeagent.mps.control.client import Seen, SeenServer, ask_everything, differences
from nodeagent.mps.control.commands import (
    MemoryLimit,
    UnexpectedReply,
    UnknownServer,
    get_server_list,
    get_server_status,
    get_threads,
)
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import ServerStatus
from nodeagent.structs import replace
from tests.mps.fleet_rig import GPU, FleetRig, status, until, wanted
from tests.mps.plans import daemon_spec, with_limits

SPEC = with_limits(daemon_spec("/p", "GPU-1"), 1500, 33.33)
SERVER = SeenServer(50, ServerStatus.ACTIVE, (), MemoryLimit(1, "G"), 33.3)
SEEN = Seen((SERVER,), MemoryLimit(1, "G"), 33.3)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (SEEN, ()),
        (replace(SEEN, memory_limit=None), ("memory limit is not set, wanted 1500M",)),
        (replace(SEEN, memory_limit=MemoryLimit(2, "G")), ("memory limit is 2G, wanted 1500M",)),
        (replace(SEEN, threads=100.0), ("thread percentage is 100.0, wanted 33.33",)),
        (
            replace(SEEN, servers=(replace(SERVER, threads=100.0),)),
            ("server 50: thread percentage is 100.0, wanted 33.33",),
        ),
        (
            replace(
                SEEN, servers=(replace(SERVER, clients=None, threads=None, memory_limit=None),)
            ),
            (),  # busy: it is asked again
        ),
        (
            replace(SEEN, memory_limit=UnexpectedReply("what?")),
            ("memory limit not known (what?)",),
        ),
    ],
)
def test_differences(seen: Seen, words: tuple[str, ...]) -> None:
    """Each named with both values; the floor of the getter is no difference."""
    assert differences(seen, SPEC) == words


def test_no_limit_wanted() -> None:
    """Then there must be none."""
    free = with_limits(SPEC, None, 33.33)
    assert differences(replace(SEEN, servers=(), memory_limit=None), free) == ()
    assert differences(replace(SEEN, servers=()), free) == ("memory limit is 1G, wanted none",)


def test_unknown_clients_are_not_no_clients() -> None:
    """A busy server may have clients."""
    assert SEEN.knows_clients
    assert not replace(SEEN, servers=(replace(SERVER, clients=None),)).knows_clients


async def daemon(rig: FleetRig, fleet: Fleet) -> None:
    """One that is Ready, with a server."""
    await fleet.start(GPU, wanted())
    with rig.client() as client:
        client.wait_until_accepted()
        await until(lambda: bool(status(fleet).clients))


async def test_a_server_that_the_caller_did_not_know(rig: FleetRig) -> None:
    """Is asked too, and one that is gone is left out."""
    async with rig.fleet() as fleet:
        await daemon(rig, fleet)
        [running] = fleet.running()
        [server] = rig.servers()
        for known in ((), (server,), (4_000_000,), (server, 4_000_000)):
            seen = await ask_everything(running.control, known)
            assert [(s.pid, s.status) for s in seen.servers] == [(server, ServerStatus.ACTIVE)]
            assert differences(seen, running.spec) == ()


async def test_a_version_without_statuses() -> None:
    """That is noticed, and does no harm."""
    with FleetRig("535") as rig:
        async with rig.fleet() as fleet:
            await daemon(rig, fleet)
            [running] = fleet.running()
            seen = await ask_everything(running.control, ())
            assert (seen.reports_status, seen.servers[0].status) == (False, None)
            assert seen.servers[0].clients is not None


async def test_errors_come_in_their_places(rig: FleetRig) -> None:
    """One command that fails takes no other's answer away."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        [running] = fleet.running()
        first, error, last = await running.control.ask_each(
            get_threads(4_000_000), get_server_status(4_000_000), get_server_list()
        )
        assert isinstance(first, UnknownServer)
        assert isinstance(error, UnknownServer)
        assert last == ()
