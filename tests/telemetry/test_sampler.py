import asyncio
import time

from msgspec import structs
from structlog.testing import capture_logs

from nodeagent.gpu.driver import Driver
from nodeagent.health.readings import InstanceReading, Silence
from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.sources import DeviceCall, Number
from nodeagent.settings import SampleSettings
from nodeagent.simulation import SimulatedNode
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.telemetry.samples import SampleBatch
from nodeagent.telemetry.sampling_service import SamplingService
from tests.cluster.client.rig import running
from tests.gpu.steps_of import create, laid_out
from tests.machine_load import stretched, until
from tests.telemetry.sampler_rig import (
    ACTIVE,
    ALL_EACH_TIME,
    POWER,
    SM_CLOCK,
    rows,
    sampler_of,
    succeeded,
    whole,
)

# --- what is there --------------------------------------------------------------------------------


async def test_only_what_is_wanted_is_asked(known: Driver, node: SimulatedNode) -> None:
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
    sampler = sampler_of(known, catalogue().fields)
    await sampler.round()
    assert node.journal.counts["nvmlDeviceGetFieldValues"] <= 4  # two of them are the driver's


async def test_texts_come_with_the_slow_tier(known: Driver) -> None:
    sampled = await sampler_of(known, (), catalogue().texts).round()
    assert sampled.samples["node"].node_texts[1] == "595.58.03"
    (texts,) = sampled.samples["slow/1"].gpu_texts.values()
    assert texts[50] == "NVIDIA H100 80GB HBM3"
    assert texts[57] == "00000000:27:00.0"
    assert texts[172] == "01020304-0506-0708-090a-0b0c0d0e0f10"


async def test_the_slow_tier_is_not_read_each_time(known: Driver, node: SimulatedNode) -> None:
    ahead = 0.0
    sampler = sampler_of(known, rows(POWER, 202, 235), clock=lambda: time.monotonic() + ahead)
    first, second = await sampler.round(), await sampler.round()
    assert set(first.samples) == {"fast/0", "slow/0", "fast/1", "slow/1", "node"}
    assert set(second.samples) == {"fast/0", "fast/1"}
    ahead = Intervals().slow
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


async def test_who_awaits_a_round_outlives_closing(known: Driver, node: SimulatedNode) -> None:
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


async def test_an_older_drivers_word_on_the_fabric(known: Driver, node: SimulatedNode) -> None:
    node.inject("nvmlDeviceGetGpuFabricInfoV", gpu=0, error="ARGUMENT_VERSION_MISMATCH")
    sampled = await sampler_of(known, ()).round()
    fabric = sampled.gpus[0].fabric
    assert fabric is not None
    assert (fabric.state, fabric.summary) == (3, 0)


# --- beside looks and steps -----------------------------------------------------------------------


async def test_a_look_waits_for_one_call_of_a_reading(known: Driver, node: SimulatedNode) -> None:
    uuid = known.pool[0].uuid
    sampler = sampler_of(known, catalogue().fields)
    await sampler.round()
    held = node.inject("nvmlDeviceGetTemperature", gpu=0, hang=True)
    sampling = asyncio.create_task(sampler.round())
    async with asyncio.timeout(stretched(30)):
        await until(lambda: not held.times)
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
    gpu = await laid_out(known, 0)
    rounds: list[SampleBatch] = []
    service = SamplingService(
        known, SampleSettings(interval=3600.0), begin=lambda: asyncio.sleep(0)
    )
    service.samples.subscribe(rounds.append)
    async with running(service.run()), asyncio.timeout(stretched(30)):
        await until(lambda: rounds and rounds[-1].latest)
        node.inject("nvmlDeviceGetMigMode", gpu=0, hang=True)
        making = asyncio.create_task(known.apply(create(gpu, "1g.10gb", 0)))
        looking = asyncio.create_task(known.observe_gpu(gpu.uuid))
        await making
        rounds.clear()
        await until(lambda: rounds)
        node.clear_faults()
        await looking
        await until(lambda: rounds[-1].latest[0].slices)


async def test_a_call_that_hangs(known: Driver, node: SimulatedNode) -> None:
    sampler = sampler_of(known, rows(POWER))
    await sampler.round()
    hang = node.inject("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    sampled = await sampler.round()
    assert whole(sampled, POWER) == {1: 70.0}
    assert succeeded(sampled) == {"0": False, "1": True}
    (silent,) = [gpu for gpu in sampled.gpus if gpu.index == 0]
    assert silent.answer is not None
    assert silent.answer.silence is Silence.HANGS
    assert silent.answer.last is not None
    assert "did not return within" in silent.answer.reason
    again = await sampler.round()
    assert succeeded(again) == {"0": False, "1": True}
    assert _sampled_at(again, "0") < _sampled_at(again, "1")
    node.clear_faults(hang)
    async with asyncio.timeout(stretched(30)):
        while 0 not in whole(sampled := await sampler.round(), POWER):
            await asyncio.sleep(0.01)
    assert succeeded(sampled) == {"0": True, "1": True}


async def test_a_gpu_that_always_hung(hasty: Driver, node: SimulatedNode) -> None:
    hang = node.inject("nvmlDeviceGetUUID", gpu=0, hang=True)
    await hasty.observe()
    sampler = sampler_of(hasty, rows(POWER))
    for sampled in [await sampler.round(), await sampler.round()]:
        assert sampled.answer is not None
        assert sampled.answer.silence is Silence.HANGS
        assert sampled.answer.reason.startswith("GPU 0")
    node.clear_faults(hang)
    async with asyncio.timeout(stretched(30)):
        while (answer := (await sampler.round()).answer) is not None and answer.silence:
            pass


def _sampled_at(sampled: SampleBatch, gpu: str) -> float:
    moments = {reader.gpu: reader.at for reader in sampled.readers if reader.name == "fast"}
    at = moments[gpu]
    assert at is not None
    return at


async def test_a_round_does_not_wait_for_a_slow_gpu(known: Driver, node: SimulatedNode) -> None:
    sampler = Sampler(known, rows(POWER), intervals=Intervals(patience=0.3, deadline=60))
    await sampler.round()
    node.inject("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    async with asyncio.timeout(stretched(30)):
        while not (in_time := whole(sampled := await sampler.round(), POWER)):
            pass
    assert in_time == {1: 70.0}
    assert succeeded(sampled) == {"0": True, "1": True}
    node.clear_faults()
    late: dict[int, Number] = {}
    while not late:
        late = {k: v for k, v in whole(await sampler.round(), POWER).items() if k == 0}
    assert late == {0: 70.0}


async def test_a_field_that_fails_on_one_gpu(known: Driver, node: SimulatedNode) -> None:
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


async def test_what_cannot_be_read_is_logged_once(known: Driver, node: SimulatedNode) -> None:
    for function in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetPcieReplayCounter"):
        node.inject(function, gpu=0, error="UNKNOWN", times=None)
    found: list[tuple[str, ...]] = []
    settings = SampleSettings(interval=0.02, slow_interval=0.3)
    service = SamplingService(known, settings, begin=lambda: asyncio.sleep(0))
    service.samples.subscribe(lambda batch: found.extend(batch.problems.values()))
    with capture_logs() as lines:
        async with running(service.run()):
            await until(lambda: [len(why) for why in found].count(2) >= 3)
    assert {len(why) for why in found} == {1, 2}
    logged = [line["why"] for line in lines if line["event"].startswith("not all values")]
    assert [len(why) for why in logged] == [2]


async def test_an_unforeseen_answer(known: Driver) -> None:
    (row,) = rows(POWER)
    call = DeviceCall("nvmlDeviceGetPowerUsage", ("NVML_TEMPERATURE_GPU",))  # one too many
    odd = structs.replace(row, whole=call)
    sampler = sampler_of(known, [odd])
    for _ in range(2):
        sampled = await sampler.round()
        assert succeeded(sampled) == {"0": False, "1": False}
        assert [gpu.answer and gpu.answer.silence for gpu in sampled.gpus] == [Silence.FAILS] * 2
        assert all("TypeError" in why for (why,) in sampled.problems.values())


async def test_a_lost_gpu(known: Driver, node: SimulatedNode) -> None:
    """Its readers fail, its values are to be dropped, its health says lost; the other goes on."""
    sampler = sampler_of(known, rows(POWER))
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
