"""What the sampler asks a GPU for, how often, and what it has as health readings."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.metrics.catalogue import catalogue
from nodeagent.plan.shares import ComputeMode
from nodeagent.settings import SampleSettings
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.telemetry.samples import SampleBatch
from nodeagent.telemetry.sampling_service import SamplingService
from tests.gpu.steps_of import create, laid_out
from tests.machine_load import stretched
from tests.telemetry.sampler_rig import (
    ACTIVE,
    ALL_EACH_TIME,
    POWER,
    QUICK,
    REMAPPED,
    SM_CLOCK,
    UTILISATION,
    rows,
    sampler_of,
    succeeded,
    whole,
)

# --- what is there --------------------------------------------------------------------------------


async def test_only_what_is_wanted_is_asked(known: Driver, node: SimulatedNode) -> None:
    """Beside what health needs, one call for each GPU, where one field is chosen."""
    calls = []
    for fields, clocks in (((), {}), (rows(SM_CLOCK), {0: 345, 1: 345})):
        sampler = sampler_of(known, fields)
        await sampler.round()
        node.journal.clear()
        assert whole(await sampler.round(), SM_CLOCK) == clocks
        calls.append(node.journal.counts.copy())
    assert calls[1] - calls[0] == {"nvmlDeviceGetClockInfo": 2}


async def test_what_a_card_does_not_have_is_asked_once(known: Driver, node: SimulatedNode) -> None:
    """It is absent, not 0, and no failure; after NVML was started anew it is asked again."""
    fields = rows(191, 120)  # fan speed, auto boost
    sampler = sampler_of(known, fields, intervals=ALL_EACH_TIME)
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
    sampler = sampler_of(known, catalogue().fields)
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
    ahead = 0.0
    sampler = sampler_of(known, rows(POWER, 202, 235), clock=lambda: time.monotonic() + ahead)
    first, second = await sampler.round(), await sampler.round()
    assert set(first.samples) == {"fast/0", "slow/0", "fast/1", "slow/1", "node"}
    assert set(second.samples) == {"fast/0", "fast/1"}
    ahead = QUICK.slow
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


async def test_a_closed_sampler_follows_no_steps(known: Driver) -> None:
    """Else each selection of fields would leave one behind."""
    sampler = sampler_of(known, rows(POWER))
    assert whole(await sampler.round(), POWER)
    followed = weakref.ref(sampler)
    sampler.close()
    del sampler
    gc.collect()
    assert followed() is None


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
    sampled = await sampler_of(known, ()).round()
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
    assert (reading.complete, sampled.gpus[1].compute_mode) == (True, ComputeMode.DEFAULT)
    assert sampled.known == frozenset(gpu.uuid for gpu in sampled.gpus)
    assert sampled.addresses == ("00000000:1A:00.0", "00000000:27:00.0")


async def test_health_of_links_and_old_memory() -> None:
    """Links of a card without MIG, each with its counters; retired pages of a T4."""
    with simulated("h100-80gb,t4") as node:
        node.set_figures(0, {"nvlink.replay.3": 5, "link.4.up": 0})
        node.set_figures(1, {"pages.doubleBit": 2, "pages.pending": 1})
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            await driver.observe()
            sampled = await sampler_of(driver, ()).round()
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
    sampled = await sampler_of(known, ()).round()
    fabric = sampled.gpus[0].fabric
    assert fabric is not None
    assert (fabric.state, fabric.summary) == (3, 0)


# --- beside looks and steps -----------------------------------------------------------------------


async def test_a_look_waits_for_one_call_of_a_reading(known: Driver, node: SimulatedNode) -> None:
    """The reading ends there, is no failure, and the next one has all."""
    uuid = known.pool[0].uuid
    sampler = sampler_of(known, catalogue().fields)
    await sampler.round()
    held = node.inject("nvmlDeviceGetTemperature", gpu=0, hang=True)
    sampling = asyncio.create_task(sampler.round())
    async with asyncio.timeout(stretched(30)):
        while held.times:
            await asyncio.sleep(0.001)
        looking = asyncio.create_task(known.observe_gpu(uuid))
        await asyncio.sleep(0)
        begun = node.journal.begun
        node.clear_faults()
        await looking
        sampled = await sampling
    first = min(
        (c for c in node.journal.calls if c.gpu == 0 and c.number > begun), key=lambda c: c.number
    )
    assert first.name == "nvmlDeviceGetMigMode"
    assert succeeded(sampled)["0"]
    assert whole(await sampler.round(), POWER).keys() == {0, 1}


async def test_a_changed_gpu_is_read_once_it_is_free(known: Driver, node: SimulatedNode) -> None:
    """Though the reading after its step fell into a look, and the next one comes an hour later."""
    gpu = await laid_out(known, 0)
    rounds: list[SampleBatch] = []
    service = SamplingService(
        known, SampleSettings(interval=3600.0), begin=lambda: asyncio.sleep(0)
    )
    service.samples.subscribe(rounds.append)
    running = asyncio.create_task(service.run())
    async with asyncio.timeout(stretched(30)):
        while not (rounds and rounds[-1].latest):
            await asyncio.sleep(0.001)
        node.inject("nvmlDeviceGetMigMode", gpu=0, hang=True)
        making = asyncio.create_task(known.apply(create(gpu, "1g.10gb", 0)))
        looking = asyncio.create_task(known.observe_gpu(gpu.uuid))
        await making
        rounds.clear()
        while not rounds:
            await asyncio.sleep(0.001)
        node.clear_faults()
        await looking
        while not rounds[-1].latest[0].slices:
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
