"""Claims on a simulated node, from the API server's object to the CDI file and back."""

import asyncio
import json
import threading

import pytest

from nodeagent.claims.model import ClaimRecord, RecordPhase
from nodeagent.claims.records import read_records
from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.files.cdi import Edits
from nodeagent.simulation import SimulatedNode, simulated
from tests.claims.machine import UIDS, Home, capabilities, laid_out, pool, pool_of
from tests.machine_load import stretched


async def test_a_slice_comes_with_the_claim_and_goes_with_it(
    node: SimulatedNode, home: Home
) -> None:
    """On an empty card out of MIG mode; the record and the CDI file come and go with it."""
    async with home.agent() as (claims, rig):
        name = home.claim(0, (pool(rig), "mig-1g-10gb-6"))
        [device] = await claims.prepare(*name)
        assert laid_out(node) == [(6, 1)]
        assert home.records() == [f"{UIDS[0]}.json"]
        [file] = home.files()
        assert file == f"nodeagent.io-claim_{UIDS[0]}.json"
        document = json.loads((home.cdi / file).read_text())
        [entry] = document["devices"]
        assert device.cdi_id == f"nodeagent.io/claim={entry['name']}"
        paths = [node["path"] for node in entry["containerEdits"]["deviceNodes"]]
        known = {what: number for number, what in capabilities().items()}
        assert device.instance is not None
        caps = [known[0, device.instance, None], known[0, device.instance, device.compute]]
        assert paths == ["/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{n}" for n in caps)]
        [record] = read_records(home.records_dir)
        assert record in claims.store.records
        assert claims.store.records[0].phase is RecordPhase.READY
        await claims.release(UIDS[0])
        assert laid_out(node) == []
        assert (home.records(), home.files()) == ([], [])
        await claims.release(UIDS[0])  # the kubelet may ask once more


async def test_each_slice_comes_and_goes_in_few_driver_calls(
    node: SimulatedNode, home: Home
) -> None:
    """However many there are on the card."""
    async with home.core() as (claims, hardware):
        names = [home.claim(n, (pool_of(node), f"mig-1g-10gb-{n}")) for n in range(7)]
        await claims.prepare(*names[0])  # switches MIG on, and learns the profile
        await claims.release(UIDS[0])
        await hardware.observe()
        calls: dict[str, list[int]] = {"prepare": [], "release": []}
        for name in names:
            node.journal.clear()
            await claims.prepare(*name)
            calls["prepare"].append(node.journal.total())
        for uid in UIDS[:7]:
            node.journal.clear()
            await claims.release(uid)
            calls["release"].append(node.journal.total())
        assert max(calls["prepare"] + calls["release"]) <= 30, calls


async def test_work_that_is_cancelled_ends_with_its_write(node: SimulatedNode, home: Home) -> None:
    """The driver's socket is closed while a file is written: the next work of the claim, which the
    kubelet's next call begins, meets none that is still being written.
    """
    begun, go_on, read = threading.Event(), threading.Event(), home.toolkit

    def slow() -> Edits:
        begun.set()
        go_on.wait(stretched(30))
        return read()

    home.toolkit = slow
    async with home.core() as (claims, _):
        name = home.claim(0, (pool_of(node), "mig-1g-10gb-6"))
        preparing = asyncio.create_task(claims.prepare(*name))
        await asyncio.to_thread(begun.wait, 30)
        preparing.cancel()
        for _ in range(100):
            await asyncio.sleep(0)
        is_over = preparing.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await preparing
        assert not is_over
        assert len(await claims.prepare(*name)) == 1


async def test_one_that_has_to_wait_holds_up_no_other(node: SimulatedNode, home: Home) -> None:
    """A card has one instance with media extensions; other claims come and go beside who waits."""
    async with home.agent() as (claims, rig):
        waits = home.claim(2, (pool(rig), "mig-1g-10gb-me-6"))
        await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-me-0")))
        await claims.prepare(*home.claim(1, (pool(rig), "mig-1g-10gb-3")))
        with pytest.raises(StillInUse, match=r"1g.10gb\+me at slice 0 \(claim team/trainer-0\)"):
            await claims.prepare(*waits)
        await claims.prepare(*home.claim(3, (pool(rig), "mig-1g-10gb-4")))
        await claims.release(UIDS[1])
        assert laid_out(node) == [(0, 1), (4, 1)]
        await claims.release(UIDS[0])
        await claims.prepare(*waits)
        assert laid_out(node) == [(4, 1), (6, 1)]


async def test_a_foreign_instance_that_goes(node: SimulatedNode, home: Home) -> None:
    """As the remedy says. The claim's own, which comes in its place with its id, is known."""
    async with home.agent() as (claims, rig):
        card = node.card(0)
        await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-5")))
        with node.changes():
            foreign = card.create_instance(profile=19, place=(0, 1)).id
        name = home.claim(1, (pool(rig), "mig-1g-10gb-0"))
        with pytest.raises(StillInUse, match=r"1g.10gb at slice 0 \(of no claim\)") as caught:
            await claims.prepare(*name)
        assert caught.value.remedy == (
            "end its pods, `nodeagent claims` lists them, or see with `nodeagent status --gpu 0` "
            "what has no claim, and how it is removed, or request what fits beside it"
        )
        with node.changes():
            card.state.instances[:] = [i for i in card.state.instances if i.id != foreign]
        [device] = await claims.prepare(*name)
        assert device.instance == foreign
        await claims.release(UIDS[1])
        assert laid_out(node) == [(5, 1)]


async def test_ids_of_before_a_reboot_mean_nothing(node: SimulatedNode, home: Home) -> None:
    """Another program made an instance with the same id in the same place; it stays."""
    async with home.core() as (claims, _):
        [device] = await claims.prepare(*home.claim(0, (pool_of(node), "mig-1g-10gb-2")))
    node.reboot()
    home.boot_id = "second"
    card = node.card(0)
    with node.changes():
        card.state.mig = card.state.pending = True
        assert card.create_instance(profile=19, place=(2, 1)).id == device.instance
    async with home.core() as (claims, _):
        await claims.release(UIDS[0])
        assert (laid_out(node), home.records()) == ([(2, 1)], [])


async def test_a_record_says_since_when_its_phase_is(node: SimulatedNode, home: Home) -> None:
    """Verifying it again begins no new phase, nor does another agent; a release does."""
    async with home.agent() as (claims, rig):
        name = home.claim(0, (pool(rig), "mig-1g-10gb-0"))
        [device] = await claims.prepare(*name)
        ready = claims.store.records[0].since
        assert ready > 0
        (home.cdi / home.files()[0]).unlink()
        await claims.prepare(*name)
        assert claims.store.records[0].since == ready
    async with home.agent() as (claims, _):
        assert claims.store.records[0].since == ready
        node.occupy(device.uuid, pid=4711, command="train")
        with pytest.raises(StillInUse):
            await claims.release(UIDS[0])
        [record] = read_records(home.records_dir)
        assert isinstance(record, ClaimRecord)
        assert record.phase is RecordPhase.RELEASING
        assert record.since > ready


async def test_a_card_whose_mig_mode_waits_for_a_reset(home: Home) -> None:
    """A claim that was prepared on it is not called prepared again, and gets no other device file:
    the card's own, without the slice, would be all of it.
    """
    with simulated("a100-40gb:1") as node:
        card = node.card(0).state
        card.mig = card.pending = True
        async with home.agent() as (claims, rig):
            name = home.claim(0, (pool(rig), "mig-1g-5gb-0"))
            await claims.prepare(*name)
            card.instances.clear()
            card.mig = card.pending = False
            before = (home.cdi / home.files()[0]).read_text()
            for _ in range(2):  # the mode is set by the first
                with pytest.raises(NodeagentError, match="only at a GPU reset"):
                    await claims.prepare(*name)
            assert (home.cdi / home.files()[0]).read_text() == before
            node.reset(0)
            await claims.prepare(*name)
            assert laid_out(node) == [(0, 1)]


# --- releases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["mig-3g-40gb-4", "gpu"])
async def test_a_claim_on_two_gpus_is_released_whole_or_not(
    node: SimulatedNode, home: Home, device: str
) -> None:
    """While a device on one GPU is used, the one on the other stays, whichever comes first."""
    async with home.agent() as (claims, rig):
        first, last = sorted((0, 1), key=lambda index: rig.gpu(index).uuid)
        both = home.claim(0, (pool(rig, first), "mig-1g-10gb-0"), (pool(rig, last), device))
        used = next(d for d in await claims.prepare(*both) if d.gpu == rig.gpu(last).uuid)
        before = laid_out(node, first), laid_out(node, last)
        node.occupy(used.device_uuid, pid=4711, command="train")
        for _ in range(2):
            with pytest.raises(StillInUse, match="4711"):
                await claims.release(UIDS[0])
            assert (laid_out(node, first), laid_out(node, last)) == before
        assert len(home.files()) == len(home.records()) == 1
        node.release(pid=4711)
        await claims.release(UIDS[0])
        assert (laid_out(node, first), laid_out(node, last)) == ([], [])
        assert home.files() == home.records() == []


async def test_a_release_that_is_finished_late(node: SimulatedNode, home: Home) -> None:
    """What another program made meanwhile, in the same place and with the same id, stays."""
    async with home.agent() as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-0")))
        kept = home.cdi.rename(home.folder / "kept")
        home.cdi.write_text("a file in the directory's place")
        with pytest.raises(NodeagentError, match="cannot be used"):
            await claims.release(UIDS[0])
        assert laid_out(node) == []
        with node.changes():
            node.card(0).create_instance(profile=19, place=(0, 1))
        home.cdi.unlink()
        kept.rename(home.cdi)
        await claims.release(UIDS[0])
        assert (laid_out(node), home.records(), home.files()) == ([(0, 1)], [], [])


async def test_a_release_that_fails_on_its_second_gpu(node: SimulatedNode, home: Home) -> None:
    """What another program made on the first one meanwhile, with the same id, stays."""
    async with home.agent() as (claims, rig):
        first, last = sorted((0, 1), key=lambda index: rig.gpu(index).uuid)
        places = [(pool(rig, index), "mig-1g-10gb-0") for index in (first, last)]
        await claims.prepare(*home.claim(0, *places))
        fault = node.inject("nvmlComputeInstanceDestroy", error="UNKNOWN", times=None, gpu=last)
        with pytest.raises(NodeagentError):
            await claims.release(UIDS[0])
        assert (laid_out(node, first), laid_out(node, last)) == ([], [(0, 1)])
        with node.changes():
            node.card(first).create_instance(profile=19, place=(0, 1))
        node.clear_faults(fault)
        await claims.release(UIDS[0])
        assert (laid_out(node, first), laid_out(node, last)) == ([(0, 1)], [])
        assert home.files() == home.records() == []
