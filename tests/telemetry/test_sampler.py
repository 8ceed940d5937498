"""What the sampler asks a GPU for, how often, and what it has as health readings."""

from __future__ import annotations

import asyncio
import time

from nodeagent.gpu.driver import Driver
from nodeagent.health.readings import InstanceReading
from nodeagent.metrics.catalogue import catalogue
from nodeagent.settings import SampleSettings
from nodeagent.simulation import SimulatedNode
from nodeagent.telemetry.samples import SampleBatch
from nodeagent.telemetry.sampling_service import SamplingService
from tests.gpu.steps_of import create, laid_out
from tests.machine_load import stretched
from tests.telemetry.sampler_rig import (
    ALL_EACH_TIME,
    POWER,
    QUICK,
    SM_CLOCK,
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


async def test_field_values_go_in_one_batch(known: Driver, node: SimulatedNode) -> None:
    """One call for a GPU, also where metrics of both tiers and health need some."""
    sampler = sampler_of(known, catalogue().fields)
    await sampler.round()
    assert node.journal.counts["nvmlDeviceGetFieldValues"] <= 4  # two of them are the driver's


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


async def test_a_closed_sampler_follows_no_steps(known: Driver) -> None:
    """Else each selection of fields would leave one behind."""
    sampler = sampler_of(known, rows(POWER))
    assert whole(await sampler.round(), POWER)
    assert known.applied.subscribers == 1
    sampler.close()
    assert known.applied.subscribers == 0


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


async def test_health_of_an_instance(known: Driver, node: SimulatedNode) -> None:
    """Its errors are its own, and it is known by its place; what the card then lacks is None."""
    gpu = await laid_out(known, 0, at0="3g.40gb")
    [instance] = gpu.instances
    node.set_figures(f"0/{instance.id}/0", {"ecc.uncorrected.volatile.7": 3})
    sampled = await sampler_of(known, ()).round()
    reading = sampled.gpus[0]
    assert (reading.uuid, reading.mig, reading.complete) == (gpu.uuid, True, True)
    assert (reading.rows, reading.pages, reading.nvlinks) == (None, None, ())
    assert reading.instances == (InstanceReading(instance.id, instance.placement, 3),)
    assert sampled.known == frozenset(gpu.uuid for gpu in sampled.gpus)
    assert sampled.addresses == ("00000000:1A:00.0", "00000000:27:00.0")


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
