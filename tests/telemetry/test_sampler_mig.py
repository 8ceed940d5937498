import asyncio
from typing import Any

import pynvml
import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.metrics.samples import Slice
from nodeagent.simulation import SimulatedNode
from tests.gpu.steps_of import create, destroy, disable, laid_out
from tests.rig import driving
from tests.telemetry.sampler_rig import (
    ACTIVE,
    ALL_EACH_TIME,
    FB_USED,
    POWER,
    UTILISATION,
    parts,
    rows,
    sampler_of,
    succeeded,
    whole,
)


async def test_a_repartition_in_the_middle(known: Driver) -> None:
    gpu = await laid_out(known, 0, at0="3g.40gb", at4="1g.10gb")
    one = gpu.instances[1].id
    sampler = sampler_of(known, rows(FB_USED, ACTIVE, POWER))
    await sampler.round()
    await known.apply(destroy(gpu, gpu.instances[0]))
    gone = await sampler.round()
    assert set(parts(gone, FB_USED)) == {(0, "1g.10gb", one)}
    assert set(parts(gone, ACTIVE)) == {(0, "1g.10gb", one)}
    (left,) = gone.slices[gpu.uuid]
    assert isinstance(left.entity, Slice)
    assert left.entity.id == one
    await known.apply(create(gpu, "2g.20gb", 0))
    new = await sampler.round()
    assert {profile for _, profile, _ in parts(new, FB_USED)} == {"1g.10gb", "2g.20gb"}
    assert set(parts(new, ACTIVE)) == {(0, "1g.10gb", one)}  # a metric needs two samples
    assert {profile for _, profile, _ in parts(await sampler.round(), ACTIVE)} == {
        "1g.10gb",
        "2g.20gb",
    }
    assert not new.problems


async def test_what_a_change_did_is_read_of_its_gpu_alone(known: Driver) -> None:
    gpu = await laid_out(known, 0)
    sampler = sampler_of(known, rows(FB_USED))

    async def read(*, only_changed: bool) -> list[int]:
        sampled = await sampler.round(only_changed=only_changed)
        assert [one.gpu.index for one in sampled.latest] == [0, 1]
        return [one.index for one in sampled.gpus]

    assert await read(only_changed=True) == [0, 1]
    await known.apply(create(gpu, "3g.40gb", 0))
    assert await read(only_changed=True) == [0]
    assert await read(only_changed=True) == []
    assert await read(only_changed=False) == [0, 1]


async def test_repartitions_leave_nothing_behind(known: Driver) -> None:
    sampler = sampler_of(known, rows(ACTIVE))
    gpu = await laid_out(known, 0)
    allocated = set()
    for _ in range(4):
        await known.apply(create(gpu, "3g.40gb", 0))
        for _ in range(2):
            await sampler.round()
        allocated.add(len(pynvml.nvmlLib.session.allocated))
        made = await known.observe_gpu(gpu.uuid)
        await known.apply(destroy(made, made.instances[0]))
        await sampler.round()
    assert len(allocated) == 1


async def test_the_same_instance_made_again_is_another(known: Driver) -> None:
    gpu = await laid_out(known, 0, at0="3g.40gb")
    sampler = sampler_of(known, rows(FB_USED))
    (before,) = (await sampler.round()).slices[gpu.uuid]
    await known.apply(destroy(gpu, gpu.instances[0]))
    await known.apply(create(gpu, "3g.40gb", 0))
    (after,) = (await sampler.round()).slices[gpu.uuid]
    assert isinstance(before.entity, Slice)
    assert isinstance(after.entity, Slice)
    assert (after.entity.id, after.entity.profile) == (before.entity.id, before.entity.profile)
    assert after.entity.generation == before.entity.generation + 1


async def test_instances_outlive_a_restart_of_nvml(known: Driver) -> None:
    gpu = await laid_out(known, 0, at0="3g.40gb", at4="1g.10gb")
    sampler = sampler_of(known, rows(FB_USED))
    before = (await sampler.round()).slices[gpu.uuid]
    await known.pool.restart()
    assert (await sampler.round()).slices[gpu.uuid] == before


async def test_an_instance_that_another_program_destroyed() -> None:
    async with driving("h100-80gb") as (driver, node):
        gpu = await laid_out(driver, 0, at0="3g.40gb", at4="1g.10gb")
        sampler = sampler_of(driver, rows(FB_USED, ACTIVE))
        await sampler.round()
        with node.changes():
            card = node.cards[0]
            instance = card.instance(gpu.instances[0].id)
            card.destroy_compute(instance, instance.compute[0])
            card.destroy_instance(instance)
        sampled = await sampler.round()
    assert set(parts(sampled, FB_USED)) == {(0, "1g.10gb", gpu.instances[1].id)}
    assert len(sampled.slices[gpu.uuid]) == 1
    assert not sampled.problems


@pytest.mark.parametrize("now", ["the same", "another", "none"])
async def test_a_handle_that_may_be_of_another_instance(
    now: str, known: Driver, node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call is answered as if the handle were wrong: whose it is is asked, and where it is not of
    the same instance any more, all instances are read anew, and count as new.
    """
    gpu = await laid_out(known, 0, at0="3g.40gb")
    sampler = sampler_of(known, rows(FB_USED), intervals=ALL_EACH_TIME)
    (before,) = (await sampler.round()).slices[gpu.uuid]
    node.inject("nvmlDeviceGetMemoryErrorCounter", error="INVALID_ARGUMENT")
    function = "nvmlDeviceGetGpuInstanceId"
    # The first answer is for the layout, which is looked up with what is read seldom.
    right, others = getattr(pynvml.nvmlLib, function), [0, int(now == "another")]

    def answered(device: object, number: Any) -> int:
        code = int(right(device, number))
        number._obj.value += others.pop(0) if others else 0
        return code

    if now == "none":
        node.inject(function, error="NOT_FOUND", skip=1)
    else:
        monkeypatch.setitem(pynvml._nvmlGetFunctionPointer_cache, function, answered)
    sampled = await sampler.round()
    (after,) = sampled.slices[gpu.uuid]
    assert isinstance(before.entity, Slice)
    assert isinstance(after.entity, Slice)
    assert after.entity.generation - before.entity.generation == (now != "the same")
    assert set(parts(sampled, FB_USED)) == {(0, "3g.40gb", before.entity.id)}
    assert not sampled.problems


async def test_mig_off_brings_back_the_whole_gpu(known: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(known, 0, at0="1g.10gb")
    sampler = sampler_of(known, rows(UTILISATION))
    assert whole(await sampler.round(), UTILISATION) == {1: 0}
    await known.apply(destroy(gpu, gpu.instances[0]))
    await known.apply(disable(gpu))
    sampled = await sampler.round()
    assert whole(sampled, UTILISATION) == {0: 0, 1: 0}
    assert gpu.uuid not in sampled.slices
    assert node.journal.total() > 0


async def test_no_call_meets_a_step(known: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(known, 0, at0="3g.40gb")
    sampler = sampler_of(known, rows(FB_USED, POWER))
    await sampler.round()
    node.inject("nvmlGpuInstanceDestroy", hang=True)
    step = asyncio.create_task(known.apply(destroy(gpu, gpu.instances[0])))
    while not known.pool.is_busy(0):
        await asyncio.sleep(0)
    node.journal.clear()
    sampled = await sampler.round()
    assert whole(sampled, POWER) == {1: 70.0}
    assert succeeded(sampled) == {"0": True, "1": True}
    node.clear_faults()
    await step
    (destroyed,) = node.journal.named("nvmlGpuInstanceDestroy")
    meanwhile = [
        call
        for call in node.journal.calls
        if call.gpu == 0
        and destroyed.started < call.started < destroyed.started + destroyed.seconds
    ]
    assert meanwhile == []


async def test_samples_of_old_selections_are_used_again(known: Driver, node: SimulatedNode) -> None:
    """Another file of counters makes other readers; what the driver allocated for the first ones is
    not left with it. So it is when a handle was refused, and all is read anew.
    """
    await laid_out(known, 0, at0="1g.10gb")

    async def sampled() -> int:
        sampler = sampler_of(known, rows(ACTIVE))
        for _ in range(3):
            await sampler.round()
        assert parts(await sampler.round(), ACTIVE)
        sampler.close()
        return node.journal.total("nvmlGpmSampleAlloc")

    first = await sampled()
    for _ in range(3):
        node.inject("nvmlDeviceGetMaxMigDeviceCount", error="INVALID_ARGUMENT")
        assert await sampled() == first
