"""Sampling goes on whatever happens: layouts that change, GPUs that hang, fail or are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pynvml
import pytest
from msgspec import structs

from nodeagent.gpu.driver import Driver
from nodeagent.health.readings import Silence
from nodeagent.metrics.catalogue import Field, TextField, catalogue
from nodeagent.metrics.samples import Slice, WholeGpu
from nodeagent.metrics.selection import default_selection
from nodeagent.metrics.sources import DeviceCall, Number
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.telemetry.samples import SampleBatch
from tests.gpu.steps_of import create, destroy, disable, laid_out

POWER, SM_CLOCK, UTILISATION, FB_USED, ACTIVE = 155, 100, 203, 252, 1001
REMAPPED, ENERGY = 393, 156
QUICK = Intervals(patience=30, deadline=0.4)  # a call that hangs is found out within a round


def rows(*numbers: int) -> list[Field]:
    """Fields by their numbers."""
    return [row for row in catalogue().fields if row.id in numbers]


def whole(sampled: SampleBatch, number: int) -> dict[int, Number]:
    """A field of whole GPUs, by index."""
    return {
        subject.entity.gpu.index: value
        for sample in sampled.samples.values()
        for subject, value in sample.values.get(number, ())
        if isinstance(subject.entity, WholeGpu)
    }


def parts(sampled: SampleBatch, number: int) -> dict[tuple[int, str, int], Number]:
    """A field of instances, by GPU index, profile and id."""
    return {
        (subject.entity.gpu.index, subject.entity.profile, subject.entity.id): value
        for sample in sampled.samples.values()
        for subject, value in sample.values.get(number, ())
        if isinstance(subject.entity, Slice)
    }


def succeeded(sampled: SampleBatch, name: str = "fast") -> dict[str, bool]:
    """How the readers of a tier fared, by GPU."""
    return {reader.gpu: reader.succeeded for reader in sampled.readers if reader.name == name}


def sampler_of(
    driver: Driver,
    fields: Iterable[Field],
    texts: Iterable[TextField] = (),
    *,
    health: bool = False,
) -> Sampler:
    """A sampler with short deadlines."""
    return Sampler(driver, fields, texts, intervals=QUICK, health=health)


@pytest.fixture
async def known(driver: Driver) -> Driver:
    """The driver of two H100, which were counted."""
    await driver.observe()
    return driver


# --- what is there --------------------------------------------------------------------------------


async def test_only_what_is_wanted_is_asked(known: Driver, node: SimulatedNode) -> None:
    """One call for each GPU, where one field is chosen; GPUs are not asked for more."""
    sampler = sampler_of(known, rows(POWER))
    await sampler.round()
    node.journal.clear()
    sampled = await sampler.round()
    assert whole(sampled, POWER) == {0: 70.0, 1: 70.0}
    assert node.journal.counts == {"nvmlDeviceGetPowerUsage": 2}


async def test_what_a_card_does_not_have_is_asked_once(known: Driver, node: SimulatedNode) -> None:
    """It is absent, not 0, and no failure; after NVML was started anew it is asked again."""
    sampler = sampler_of(known, rows(191, 120))  # fan speed, auto boost
    sampler._intervals = Intervals(slow=0.0)
    for _ in range(3):
        sampled = await sampler.round()
        assert not any(sample.values for sample in sampled.samples.values())
        assert succeeded(sampled, "slow") == {"0": True, "1": True}
    assert node.journal.counts["nvmlDeviceGetFanSpeed"] == 2
    node.unload_driver()
    await known.observe()
    node.load_driver()
    await known.observe()
    await sampler.round()
    assert node.journal.counts["nvmlDeviceGetFanSpeed"] == 4


async def test_a_missing_function_is_asked_for_once(known: Driver, node: SimulatedNode) -> None:
    """An older driver has no such function."""
    node.inject("nvmlDeviceGetMarginTemperature", error="FUNCTION_NOT_FOUND", times=None)
    sampler = sampler_of(known, rows(153))
    for _ in range(3):
        sampled = await sampler.round()
        assert succeeded(sampled) == {"0": True, "1": True}
    assert node.journal.counts["nvmlDeviceGetMarginTemperature"] == 2


async def test_field_values_go_in_one_batch(known: Driver, node: SimulatedNode) -> None:
    """One call for a GPU, also where metrics of both tiers and health need some."""
    sampler = sampler_of(known, catalogue().fields, health=True)
    await sampler.round()
    assert node.journal.counts["nvmlDeviceGetFieldValues"] <= 4  # two of them are the driver's


async def test_nothing_that_blocks_is_called(known: Driver, node: SimulatedNode) -> None:
    """nvmlDeviceGetPcieThroughput takes 20 ms by definition."""
    sampler = sampler_of(known, catalogue().fields)
    await sampler.round()
    assert node.journal.total("nvmlDeviceGetPcieThroughput") == 0


async def test_texts_come_with_the_slow_tier(known: Driver) -> None:
    """Text fields of the node and of each GPU, by their numbers."""
    sampled = await sampler_of(known, (), catalogue().texts).round()
    assert sampled.samples["node"].node_texts[1] == "595.58.03"
    (texts,) = sampled.samples["slow/1"].gpu_texts.values()
    assert texts[50] == "NVIDIA H100 80GB HBM3"
    assert texts[57] == "00000000:27:00.0"
    assert texts[172] == "01020304-0506-0708-090a-0b0c0d0e0f10"


async def test_the_slow_tier_is_not_read_each_time(known: Driver, node: SimulatedNode) -> None:
    """Its samples come when they are due; those that do not change come with them."""
    sampler = sampler_of(known, rows(POWER, 202, 235))
    first, second = await sampler.round(), await sampler.round()
    assert set(first.samples) == {"fast/0", "slow/0", "fast/1", "slow/1", "node"}
    assert set(second.samples) == {"fast/0", "fast/1"}
    sampler._intervals = Intervals(slow=0.0)
    for post in sampler._gpus:
        post.slow_at = 0.0
    third = await sampler.round()
    assert whole(third, 202) == whole(first, 202) == {0: 0, 1: 0}
    assert whole(third, 235) == whole(first, 235) == {0: 5, 1: 5}
    assert node.journal.counts["nvmlDeviceGetMaxPcieLinkGeneration"] == 2


@pytest.mark.parametrize(
    ("board", "present", "absent"),
    [
        ("t4", {UTILISATION, 390, 391}, {ACTIVE, REMAPPED, 140, 171}),
        ("a100-80gb", {UTILISATION, REMAPPED, 140}, {ACTIVE, 390, 391, 170}),
        ("h100-80gb", {UTILISATION, REMAPPED, 140, ACTIVE, 170}, {390, 391}),
    ],
)
async def test_what_the_generations_have(board: str, present: set[int], absent: set[int]) -> None:
    """GPM from Hopper on, remapped rows from Ampere on, retired pages before it."""
    with simulated(board) as node:
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            await driver.observe()
            sampler = sampler_of(driver, catalogue().fields)
            first, second = await sampler.round(), await sampler.round()
    found = {n for sampled in (first, second) for s in sampled.samples.values() for n in s.values}
    assert present <= found
    assert not absent & found
    assert node.store.closed


# --- MIG ------------------------------------------------------------------------------------------


async def test_values_of_instances(known: Driver, node: SimulatedNode) -> None:
    """GPM and memory of each instance; utilization of the whole GPU is not there any more."""
    gpu = await laid_out(known, 0, at0="3g.40gb", at4="1g.10gb")
    node.load(f"0/{gpu.instances[0].id}/0", 0.5)
    sampler = sampler_of(known, default_selection().fields)
    await sampler.round()
    sampled = await sampler.round()
    three, one = (i.id for i in gpu.instances)
    assert parts(sampled, ACTIVE) == {
        (0, "3g.40gb", three): pytest.approx(0.5),
        (0, "1g.10gb", one): 0.0,
    }
    assert parts(sampled, UTILISATION)[0, "3g.40gb", three] == pytest.approx(50)
    assert parts(sampled, FB_USED) == {(0, "3g.40gb", three): 37, (0, "1g.10gb", one): 13}
    assert whole(sampled, UTILISATION) == {1: 0}
    assert whole(sampled, POWER)[0] > 70


async def test_remapped_rows_are_absent_while_there_are_instances(known: Driver) -> None:
    """They come back with the last instance gone."""
    sampler = sampler_of(known, rows(REMAPPED))
    sampler._intervals = Intervals(slow=0.0)
    assert whole(await sampler.round(), REMAPPED) == {0: 0, 1: 0}
    gpu = await laid_out(known, 0, at0="1g.10gb")
    assert whole(await sampler.round(), REMAPPED) == {1: 0}
    await known.apply(destroy(gpu, gpu.instances[0]))
    assert whole(await sampler.round(), REMAPPED) == {0: 0, 1: 0}


async def test_a_repartition_in_the_middle(known: Driver) -> None:
    """The round after a step has the new instance and not the old; siblings keep their GPM."""
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


async def test_repartitions_leave_nothing_behind(known: Driver) -> None:
    """GPM samples of instances that are gone are used for those that come."""
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
    """It has another generation, so that its counters are known to begin anew."""
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


@pytest.mark.parametrize("answer", ["INVALID_ARGUMENT", "NOT_FOUND"])
async def test_an_instance_that_another_program_destroyed(answer: str) -> None:
    """Its handle is refused; in the same look the others are read, and it is not reported."""
    with simulated("h100-80gb", switches=Switches(stale_handles=answer)) as node:
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
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


async def test_mig_switched_off_brings_back_the_whole_gpu(
    known: Driver, node: SimulatedNode
) -> None:
    """What was refused while MIG was on is asked again."""
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
    """While a step runs on a GPU it is not sampled; the other one is."""
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


# --- trouble --------------------------------------------------------------------------------------


async def test_a_call_that_hangs(known: Driver, node: SimulatedNode) -> None:
    """The other GPU is sampled; the missed deadline is reported, the age grows, it recovers."""
    sampler = sampler_of(known, rows(POWER), health=True)
    await sampler.round()
    hang = node.inject("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    sampled = await sampler.round()
    assert whole(sampled, POWER) == {1: 70.0}
    assert succeeded(sampled) == {"0": False, "1": True}
    (silent,) = [gpu for gpu in sampled.gpus if gpu.index == 0]
    assert silent.answer is not None
    assert silent.answer.silence is Silence.HANGS
    assert silent.answer.last is not None
    assert "did not return within 0.4 s" in silent.answer.reason
    again = await sampler.round()
    assert succeeded(again) == {"0": False, "1": True}
    assert _sampled_at(again, "0") < _sampled_at(again, "1")
    node.clear_faults(hang)
    async with asyncio.timeout(30):
        while 0 not in whole(sampled := await sampler.round(), POWER):
            await asyncio.sleep(0.01)
    assert succeeded(sampled) == {"0": True, "1": True}


async def test_a_gpu_that_hangs_as_soon_as_it_is_sampled(
    known: Driver, node: SimulatedNode
) -> None:
    """It was observed, so it is reported by its UUID, though no look at it ever ended."""
    node.inject("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    sampled = await sampler_of(known, rows(POWER), health=True).round()
    node.clear_faults()
    silences = {gpu.uuid: gpu.answer and gpu.answer.silence for gpu in sampled.gpus}
    names = [gpu.uuid for gpu in (await known.observe()).gpus]
    assert silences == {names[0]: Silence.HANGS, names[1]: None}


async def test_a_gpu_that_always_hung(hasty: Driver, node: SimulatedNode) -> None:
    """Its UUID is not known, so the node has the trouble; that is over when it answers."""
    hang = node.inject("nvmlDeviceGetUUID", gpu=0, hang=True)
    await hasty.observe()
    sampler = sampler_of(hasty, rows(POWER), health=True)
    for sampled in [await sampler.round(), await sampler.round()]:
        assert sampled.answer is not None
        assert sampled.answer.silence is Silence.HANGS
        assert sampled.answer.reason.startswith("GPU 0")
    node.clear_faults(hang)
    async with asyncio.timeout(30):
        while (answer := (await sampler.round()).answer) is not None and answer.silence:
            pass


def _sampled_at(sampled: SampleBatch, gpu: str) -> float:
    moments = {reader.gpu: reader.at for reader in sampled.readers if reader.name == "fast"}
    at = moments[gpu]
    assert at is not None
    return at


async def test_a_round_does_not_wait_for_a_slow_gpu(known: Driver, node: SimulatedNode) -> None:
    """It comes with the round in which it is ready."""
    sampler = Sampler(
        known, rows(POWER), health=False, intervals=Intervals(patience=0.3, deadline=60)
    )
    await sampler.round()
    node.inject("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    sampled = await sampler.round()
    assert whole(sampled, POWER) == {1: 70.0}
    assert succeeded(sampled) == {"0": True, "1": True}
    node.clear_faults()
    late: dict[int, Number] = {}
    while not late:
        late = {k: v for k, v in whole(await sampler.round(), POWER).items() if k == 0}
    assert late == {0: 70.0}


async def test_a_field_that_fails_on_one_gpu(known: Driver, node: SimulatedNode) -> None:
    """It is missing there, and reported as a problem; all else is read."""
    node.inject("nvmlDeviceGetPowerUsage", gpu=0, error="UNKNOWN", times=None)
    sampler = sampler_of(known, rows(POWER, SM_CLOCK))
    sampled = await sampler.round()
    assert whole(sampled, POWER) == {1: 70.0}
    assert whole(sampled, SM_CLOCK) == {0: 345, 1: 345}
    assert succeeded(sampled) == {"0": False, "1": True}
    ((_, (problem,)),) = sampled.problems.items()
    assert "nvmlDeviceGetPowerUsage" in problem
    node.clear_faults()
    assert whole(await sampler.round(), POWER) == {0: 70.0, 1: 70.0}


async def test_an_unforeseen_answer(known: Driver) -> None:
    """What pynvml itself cannot cope with is that GPU's failure; the agent goes on."""
    (row,) = rows(POWER)
    call = DeviceCall("nvmlDeviceGetPowerUsage", ("NVML_TEMPERATURE_GPU",))  # one too many
    odd = structs.replace(row, whole=call)
    sampler = sampler_of(known, [odd], health=True)
    for _ in range(2):
        sampled = await sampler.round()
        assert succeeded(sampled) == {"0": False, "1": False}
        assert [gpu.answer and gpu.answer.silence for gpu in sampled.gpus] == [Silence.FAILS] * 2
        assert all("TypeError" in why for (why,) in sampled.problems.values())


async def test_a_lost_gpu(known: Driver, node: SimulatedNode) -> None:
    """Its readers fail, its values are to be dropped, its health says lost; the other goes on."""
    sampler = sampler_of(known, rows(POWER), health=True)
    await sampler.round()
    node.lose(0)
    sampled = await sampler.round()
    assert whole(sampled, POWER) == {1: 70.0}
    assert set(sampled.gone) == {"fast/0", "slow/0"}
    readers = {(reader.name, reader.gpu): reader.succeeded for reader in sampled.readers}
    assert {reader for reader, well in readers.items() if not well} == {
        ("fast", "0"),
        ("slow", "0"),
    }
    silences = {gpu.index: gpu.answer and gpu.answer.silence for gpu in sampled.gpus}
    assert silences == {0: Silence.LOST, 1: None}
    node.reset(0)
    sampled = await sampler.round()
    assert whole(sampled, POWER) == {0: 70.0, 1: 70.0}
    assert sampled.gone == ()
    assert all(reader.succeeded for reader in sampled.readers)


async def test_the_driver_is_reloaded(known: Driver, node: SimulatedNode) -> None:
    """All readers fail, then all handles are got anew and GPM begins anew."""
    sampler = sampler_of(known, rows(POWER, ACTIVE))
    await sampler.round()
    node.unload_driver()
    assert set(succeeded(await sampler.round()).values()) == {False}
    node.load_driver()
    await known.observe()  # which starts NVML again
    sampled = await sampler.round()
    assert whole(sampled, POWER) == {0: 70.0, 1: 70.0}
    assert whole(sampled, ACTIVE) == {}
    assert whole(await sampler.round(), ACTIVE) == {0: 0.0, 1: 0.0}


async def test_a_closed_sampler_follows_no_steps(known: Driver) -> None:
    """Else each selection of fields would leave one behind."""
    sampler = sampler_of(known, rows(POWER))
    assert whole(await sampler.round(), POWER)
    assert len(known.after_step) == 1
    sampler.close()
    assert known.after_step == []


# --- health ---------------------------------------------------------------------------------------


async def test_health_of_a_gpu_and_its_instance(known: Driver, node: SimulatedNode) -> None:
    """What the sensors were set to stands in the reading; what the card lacks is None."""
    gpu = await laid_out(known, 0, at0="3g.40gb")
    node.set_figures(
        0,
        {
            "recovery": 2, "ecc.uncorrected.volatile": 4, "ecc.pending": 0, "temperature.gpu": 90,
            "field.75": 1_000_000, "pcie.width": 8, "pstate": 8, "power.usage": 300_000,
            "fabric.state": 2, "repair.tpc": 1, "inforom.corrupt": 1,
        },
    )  # fmt: skip
    device = f"0/{gpu.instances[0].id}/0"
    node.set_figures(device, {"ecc.uncorrected.volatile.7": 3})
    sampled = await sampler_of(known, (), health=True).round()
    reading = sampled.gpus[0]
    assert (reading.uuid, reading.mig, reading.recovery_action) == (gpu.uuid, True, 2)
    assert reading.ecc_uncorrected == 4
    assert (reading.ecc_mode, reading.ecc_pending_mode) == (True, False)
    assert (reading.temperature, reading.temperature_margin) == (90, -3)
    assert reading.held_by_heat == 1_000_000
    assert (reading.pcie_width, reading.pcie_width_max, reading.under_load) == (8, 16, False)
    assert reading.power == 300_000
    assert reading.fabric is not None
    assert reading.fabric.state == 2
    assert (reading.tpc_repair_pending, reading.channel_repair_pending) == (True, False)
    assert reading.rows is None  # not reported while there are instances
    assert reading.pages is None
    assert reading.inforom_corrupt is True
    assert reading.nvlinks == ()
    assert reading.instances is not None
    (instance,) = reading.instances
    assert (instance.instance, instance.uncorrected) == (gpu.instances[0].id, 3)
    assert instance.placement == gpu.instances[0].placement
    assert (reading.complete, sampled.gpus[1].compute_mode) == (True, 0)
    assert sampled.known == frozenset(gpu.uuid for gpu in sampled.gpus)
    assert sampled.addresses == ("00000000:1A:00.0", "00000000:27:00.0")


async def test_health_of_links_and_old_memory() -> None:
    """Links of a card without MIG, each with its counters; retired pages of a T4."""
    with simulated("h100-80gb,t4") as node:
        node.set_figures(0, {"nvlink.replay.3": 5, "link.4.up": 0})
        node.set_figures(1, {"pages.doubleBit": 2, "pages.pending": 1})
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            await driver.observe()
            sampled = await sampler_of(driver, (), health=True).round()
    links = {link.link: link for link in sampled.gpus[0].nvlinks}
    assert len(links) == 18
    assert (links[3].replays, links[3].up) == (5, True)
    assert links[4].up is False
    pages = sampled.gpus[1].pages
    assert pages is not None
    assert (pages.double_bit, pages.pending) == (2, True)
    assert sampled.gpus[1].fabric is None
    assert sampled.gpus[1].temperature_margin is None


async def test_an_old_driver_reports_the_fabric_in_its_older_way(
    known: Driver, node: SimulatedNode
) -> None:
    """The newer structure is refused; the older one has no summary."""
    node.inject("nvmlDeviceGetGpuFabricInfoV", gpu=0, error="ARGUMENT_VERSION_MISMATCH")
    sampled = await sampler_of(known, (), health=True).round()
    fabric = sampled.gpus[0].fabric
    assert fabric is not None
    assert (fabric.state, fabric.summary) == (3, 0)


async def test_who_waits_for_a_round_outlives_the_closing(
    known: Driver, node: SimulatedNode
) -> None:
    """A sampler that is closed in the middle of a round, as by a changed file of counters, ends
    the round and does not cancel a task that waits for it.
    """
    sampler = sampler_of(known, rows(POWER))
    node.inject("nvmlDeviceGetPowerUsage", delay=0.1, times=None)
    waiting = asyncio.create_task(sampler.round())
    await asyncio.sleep(0.02)
    sampler.close()
    await waiting
    assert not waiting.cancelled()
