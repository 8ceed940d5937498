"""A change of the layout is read back in few driver calls, and nothing else is missed by that."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from nodeagent.execute.node_reader import LastObservation
from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import Policy
from nodeagent.reconcile.gpu_changes import GpuChanges
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.structs import replace
from tests.claims.machine import Hardware
from tests.gpu.steps_of import create, destroy, enable
from tests.reconcile.test_gpu_changes import made, released

MOST_CALLS = 30

Rig = tuple[SimulatedNode, Hardware, GpuChanges, str]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """An H100 in MIG mode, of which all is known that does not change, and its UUID."""
    with simulated("h100-80gb:1") as node:
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            hardware = Hardware(driver, lambda _: None, LastObservation())
            changes = GpuChanges(Policy(), changed=lambda: None)
            changes.open(hardware)
            gpu = (await hardware.observe()).gpus[0]
            await driver.apply(enable(gpu))
            for profile in ("1g.10gb", "3g.40gb"):
                await changes.change(gpu.uuid, made((profile, 0)))
                await changes.change(gpu.uuid, released(profile, 0))
            await hardware.observe()
            yield node, hardware, changes, gpu.uuid
            await changes.close()


def identities(gpu: Gpu) -> list[tuple[object, ...]]:
    """All by which its instances and devices are known."""
    return [
        (
            one.id,
            one.profile_id,
            one.placement,
            [replace(device, memory=None, compute_mode=None) for device in one.compute],
        )
        for one in gpu.instances
    ]


async def test_each_slice_takes_few_calls(rig: Rig) -> None:
    """However many there are already; and it is read as the loop's next look reads it."""
    node, hardware, changes, uuid = rig
    for number, start in enumerate(reversed(range(7)), start=1):
        node.journal.clear()
        outcome = await changes.change(uuid, made(("1g.10gb", start)), adds=True)
        assert node.journal.total() <= MOST_CALLS
        assert outcome.problems == ()
        assert len(outcome.after.instances) == number
        (whole,) = (await hardware.observe()).gpus
        assert identities(outcome.after) == identities(whole)
    for number, start in enumerate(range(7), start=1):
        outcome = await changes.change(uuid, released("1g.10gb", start))
        assert outcome.problems == ()
        (whole,) = (await hardware.observe()).gpus
        assert identities(outcome.after) == identities(whole)
        assert len(whole.instances) == 7 - number


async def test_a_slice_of_several(rig: Rig) -> None:
    """Its size is asked for, since a part of it may be meant."""
    node, hardware, changes, uuid = rig
    await changes.change(uuid, made(("1g.10gb", 0)), adds=True)
    node.journal.clear()
    outcome = await changes.change(uuid, made(("3g.40gb", 4)), adds=True)
    assert node.journal.total() <= MOST_CALLS
    (whole,) = (await hardware.observe()).gpus
    assert identities(outcome.after) == identities(whole)
    assert [one.profile for one in whole.instances] == ["1g.10gb", "3g.40gb"]


async def test_what_another_program_did_is_read_anew(rig: Rig) -> None:
    """One that came, one that went, and one in the place of another: the goal is given them."""
    _, hardware, changes, uuid = rig
    given: list[list[tuple[str, int]]] = []

    async def looked(gpu: Gpu) -> DesiredGpu:
        given.append([(one.profile, one.placement.start) for one in gpu.instances])
        return await made(("1g.10gb", 6))(gpu)

    async with Driver(observe_deadline=30, step_deadline=30) as other:
        (gpu,) = (await other.observe()).gpus
        await other.apply(create(gpu, "1g.10gb", 0))
        await changes.change(uuid, looked, adds=True)
        assert given[-1] == [("1g.10gb", 0)]
        (gpu,) = (await other.observe()).gpus
        await other.apply(destroy(gpu, gpu.instances[0]))
        await other.apply(create(gpu, "2g.20gb", 0))
        await changes.change(uuid, looked, adds=True)
        assert given[-1] == [("2g.20gb", 0), ("1g.10gb", 6)]
    (whole,) = (await hardware.observe()).gpus
    assert [one.profile for one in whole.instances] == ["2g.20gb", "1g.10gb"]


async def test_more_than_an_addition_is_planned_with_all_that_is_known(rig: Rig) -> None:
    """A process that came since the last look keeps its device, whatever the goal was called."""
    node, hardware, changes, uuid = rig
    outcome = await changes.change(uuid, made(("1g.10gb", 0)), adds=True)
    node.occupy(outcome.after.instances[0].compute[0].uuid, pid=4711)
    seen = hardware.seen
    assert seen is not None
    assert not seen.gpus[0].instances[0].compute[0].usage.in_use
    kept = await changes.change(uuid, released("1g.10gb", 0), adds=True)
    assert "4711" in kept.plan.problems[0].message
    assert len((await hardware.observe()).gpus[0].instances) == 1
