"""Sampling goes on while GPUs hang, fail, are lost, or the driver is reloaded."""

from __future__ import annotations

import asyncio

from msgspec import structs
from structlog.testing import capture_logs

from nodeagent.gpu.driver import Driver
from nodeagent.health.readings import Silence
from nodeagent.metrics.sources import DeviceCall, Number
from nodeagent.settings import SampleSettings
from nodeagent.simulation import SimulatedNode
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.telemetry.samples import SampleBatch
from nodeagent.telemetry.sampling_service import SamplingService
from tests.machine_load import stretched
from tests.telemetry.sampler_rig import ACTIVE, POWER, SM_CLOCK, rows, sampler_of, succeeded, whole


async def test_a_call_that_hangs(known: Driver, node: SimulatedNode) -> None:
    """The other GPU is sampled; the missed deadline is reported, the age grows, it recovers."""
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
    assert "did not return within 0.4 s" in silent.answer.reason
    again = await sampler.round()
    assert succeeded(again) == {"0": False, "1": True}
    assert _sampled_at(again, "0") < _sampled_at(again, "1")
    node.clear_faults(hang)
    async with asyncio.timeout(stretched(30)):
        while 0 not in whole(sampled := await sampler.round(), POWER):
            await asyncio.sleep(0.01)
    assert succeeded(sampled) == {"0": True, "1": True}


async def test_a_gpu_that_hangs_as_soon_as_it_is_sampled(
    known: Driver, node: SimulatedNode
) -> None:
    """It was observed, so it is reported by its UUID, though no look at it ever ended."""
    node.inject("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    sampled = await sampler_of(known, rows(POWER)).round()
    node.clear_faults()
    silences = {gpu.uuid: gpu.answer and gpu.answer.silence for gpu in sampled.gpus}
    names = [gpu.uuid for gpu in (await known.observe()).gpus]
    assert silences == {names[0]: Silence.HANGS, names[1]: None}


async def test_a_gpu_that_always_hung(hasty: Driver, node: SimulatedNode) -> None:
    """Its UUID is not known, so the node has the trouble; that is over when it answers."""
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
    """It comes with the round in which it is ready."""
    sampler = Sampler(known, rows(POWER), intervals=Intervals(patience=0.3, deadline=60))
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


async def test_what_cannot_be_read_is_logged_once(known: Driver, node: SimulatedNode) -> None:
    """Though one of the calls that fail is made in each round, and the other seldom."""
    for function in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetPcieReplayCounter"):
        node.inject(function, gpu=0, error="UNKNOWN", times=None)
    found: list[tuple[str, ...]] = []
    settings = SampleSettings(interval=0.02, slow_interval=0.3)
    service = SamplingService(known, settings, begin=lambda: asyncio.sleep(0))
    service.samples.subscribe(lambda batch: found.extend(batch.problems.values()))
    with capture_logs() as lines:
        running = asyncio.create_task(service.run())
        async with asyncio.timeout(stretched(30)):
            while [len(why) for why in found].count(2) < 3:
                await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert {len(why) for why in found} == {1, 2}
    logged = [line["why"] for line in lines if line["event"].startswith("not all values")]
    assert [len(why) for why in logged] == [2]


async def test_an_unforeseen_answer(known: Driver) -> None:
    """What pynvml itself cannot cope with is that GPU's failure; the agent goes on."""
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
