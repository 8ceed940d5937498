"""One daemon for several GPUs: its limits on each, whom it is there for, and its clients."""

import asyncio
import json

import pytest

from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.mps.adoption import survey
from nodeagent.mps.clients.assess import OffenceKind, assess, on_all
from nodeagent.mps.commands import get_memory_limit
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.processes import CONTROL
from nodeagent.mps.requests import NotReady
from nodeagent.mps.shares import SLOT_VARIABLE, client_environment
from nodeagent.plan.shares import Share, Sharing, WantedMps
from nodeagent.structs import replace
from nodeagent.views.shapes import MpsMemory
from tests.machine_load import until
from tests.mps.fleet_rig import GPU, OTHER_GPU, FleetRig, ready, status, wanted
from tests.mps.plans import facts, spec_of

BOTH = (GPU, OTHER_GPU)


def group(*shares: Share) -> WantedMps:
    sharing = Sharing(shares or (Share("all", None, 1500, 50.0),), "report")
    return replace(wanted(), sharing=sharing, devices=BOTH)


async def printed(fleet: Fleet) -> list[str]:
    """The limits by ordinal, as the daemon has them."""
    [daemon] = fleet.running()
    asked = (get_memory_limit(ordinal=ordinal) for ordinal in range(3))
    return [str(limit) for limit in await daemon.control.ask_each(*asked)]


async def test_limits_of_each_device(rig: FleetRig) -> None:
    """Set and read back by ordinal; those of a client that works on the second are the second's."""
    on_one = Share("one", None, None, None, by_device=((OTHER_GPU, 700, None),))
    both = Share("both", None, None, None, by_device=((GPU, 500, None), (OTHER_GPU, 600, None)))
    async with rig.started(group(on_one, both)) as fleet:
        assert await printed(fleet) == ["500M", "700M", "None"]
        [daemon] = fleet.running()
        with rig.client(environment=client_environment(daemon.spec, on_one.slots[0])) as client:
            assert client.wait_until_accepted()["limit"] == 700 << 20
        await fleet.start(GPU, group(both))  # without another process
        assert await printed(fleet) == ["500M", "600M", "None"]


async def test_one_daemon_of_both(rig: FleetRig) -> None:
    async with rig.started(group()) as fleet:
        pid = status(fleet).pid
        assert fleet.daemon_of(OTHER_GPU) == fleet.daemon_of(GPU)
        with pytest.raises(NodeagentError, match=f"{OTHER_GPU} is served by the MPS .* {GPU}"):
            await fleet.start(OTHER_GPU, wanted())
        await fleet.keep_only({OTHER_GPU})  # its clients may work there
        fleet.cordon({OTHER_GPU: "too hot"})
        assert (status(fleet).pid, status(fleet).trouble) == (pid, "takes no new clients: too hot")
        fleet.cordon({})
        with rig.served():
            await until(lambda: bool(status(fleet).clients))
            with pytest.raises(StillInUse):
                await fleet.stop(OTHER_GPU)
        await fleet.stop(OTHER_GPU)
        assert (fleet.statuses(), rig.processes(CONTROL)) == ((), [])
        await fleet.start(OTHER_GPU, wanted())
        with pytest.raises(NodeagentError, match=f"{OTHER_GPU} is served"):
            await fleet.start(GPU, group())
        assert [daemon.device for daemon in fleet.statuses()] == [OTHER_GPU]


async def test_one_of_the_gpus_lacks_its_compute_mode(rig: FleetRig) -> None:
    """Nothing is started that could not be Ready; its GPU's next steps may set it."""
    rig.differences = ("compute mode is default and not exclusiveProcess",)
    async with rig.fleet() as fleet:
        with pytest.raises(NotReady, match="is not started: compute mode is default"):
            await fleet.start(GPU, group())
        assert (rig.processes(), fleet.statuses()) == ([], ())


async def test_two_that_are_started_at_once(rig: FleetRig) -> None:
    """One GPU has no two daemons: the second start is refused while the first makes its files."""
    async with rig.fleet() as fleet:
        starts = fleet.start(GPU, group()), fleet.start(OTHER_GPU, wanted())
        done = await asyncio.gather(*starts, return_exceptions=True)
        assert [type(error) for error in done if error] == [NodeagentError]
        assert len(rig.processes(CONTROL)) == 1


@pytest.mark.parametrize("damaged", [False, True])
async def test_the_next_agent_has_it_for_both(rig: FleetRig, damaged: bool) -> None:
    pid = await rig.left_daemon(group())
    record = rig.pipes().with_name("record.json")
    if damaged:
        record.write_text(json.dumps({"version": 99}))
    surveyed = await survey(rig.run_dir, programs=rig.programs)
    assert {device: daemon.pid for device, daemon in surveyed.items()} == dict.fromkeys(BOTH, pid)
    async with rig.fleet() as fleet:
        daemon = fleet.daemon_of(OTHER_GPU)
        assert daemon is not None
        assert (daemon.pid, daemon.runs.devices) == (pid, BOTH)
        await ready(fleet)


def test_a_client_is_judged_on_each_device() -> None:
    """By the limit that it has there, by what it uses there, and with what others use there."""
    amounts = (GPU, 100, 150), (OTHER_GPU, 50, None)
    plan = group(Share("s", None, None, None, by_device=amounts))
    environment = client_environment(spec_of(plan, GPU), plan.sharing.slots[0])
    one = facts(environment=environment)
    used = {GPU: 90 << 20, OTHER_GPU: 60 << 20}
    found = [assess([replace(one, memory_used=used[d])], plan, d) for d in BOTH]
    [client] = on_all(found)
    assert client.state.memory is not None
    assert (client.state.share, client.state.memory.used) == ("s", used[GPU])
    assert client.state.findings == ("uses 60Mi of memory, but its limit is 50Mi",)
    two = [facts(pid, environment=environment, memory_used=90 << 20) for pid in (1, 2)]
    _, newest = assess(two, plan, GPU)
    assert [kind for kind, _ in newest.wrongs] == [OffenceKind.TOGETHER]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("device", BOTH)
def test_a_client_of_one_of_the_devices(device: str, *, named: bool) -> None:
    """Its limits count there alone, also where it is known by them; memory counts on all."""
    one = Share("one", None, None, None, by_device=((device, 700, None),))
    plan = group(one, Share("all", None, 500, 50.0))
    environment = client_environment(spec_of(plan, GPU), one.slots[0])
    if not named:
        del environment[SLOT_VARIABLE]
    client = facts(environment=environment)
    [judged] = on_all([assess([client], plan, d) for d in BOTH])
    assert (judged.wrongs, judged.state.memory) == ([], MpsMemory(used=None, limit=700 << 20))
    used = {d: (90 << 20 if d != device else None) for d in BOTH}
    [judged] = on_all([assess([replace(client, memory_used=used[d])], plan, d) for d in BOTH])
    assert [kind for kind, _ in judged.wrongs] == [OffenceKind.MEMORY] or not named
