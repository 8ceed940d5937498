import asyncio

import pynvml
import pytest

from nodeagent.gpu import kernel
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.event_listener import Binding, Event, EventListener, Timing
from nodeagent.health import readings
from nodeagent.health.evaluate import evaluate
from nodeagent.health.state import HealthState
from nodeagent.health.xids import default_table
from nodeagent.metrics.samples import Entity, Slice, WholeGpu
from nodeagent.metrics.sources import Number
from nodeagent.plan.observed import Access
from nodeagent.simulation import SimulatedNode
from nodeagent.telemetry.event_values import EventValues
from nodeagent.telemetry.sampler import Intervals, Sampler
from tests.gpu.steps_of import destroy, laid_out
from tests.machine_load import cancelled, stretched, until

SHORT = Timing(wait=0.01, deadline=0.5, pause=0.01)
LONG = Timing(wait=0.01, waits=10**6, deadline=60)
NO_ERROR = {"err_code": "0", "err_msg": "No Error"}


@pytest.fixture
async def listener(driver: Driver) -> EventListener:
    await driver.observe()
    made = EventListener(driver, timing=SHORT)
    assert await made.listen() == ()
    return made


def xids(heard: tuple[Event, ...]) -> list[int]:
    assert all(isinstance(event, readings.XidEvent) for event in heard)
    return [event.xid for event in heard if isinstance(event, readings.XidEvent)]


async def test_xids(listener: EventListener, driver: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(driver, 1, at0="1g.10gb")
    await listener.listen()
    instance = gpu.instances[0].id
    node.xid(0, 79)
    node.xid(f"1/{instance}/0", 13)
    heard = await listener.listen()
    first, second = (event for event in heard if isinstance(event, readings.XidEvent))
    assert (first.xid, first.instance, first.compute) == (79, None, None)
    assert (second.xid, second.source, second.gpu) == (13, readings.XidSource.NVML, gpu.uuid)
    assert (second.instance, second.compute) == (instance, 0)
    assert await listener.listen() == ()


async def test_a_changed_layout(listener: EventListener, driver: Driver) -> None:
    """NVML reports it on its own, though it is not among the supported types."""
    await laid_out(driver, 0, at0="1g.10gb")
    heard = await listener.listen()
    assert {type(event) for event in heard} == {readings.GpuEvent}
    assert {event.kind for event in heard if isinstance(event, readings.GpuEvent)} == {
        readings.GpuEventKind.FOREIGN_MIG_CHANGE
    }


@pytest.mark.parametrize(
    "kind", [k for k in readings.GpuEventKind if k.name != "FOREIGN_MIG_CHANGE"]
)
async def test_other_events_of_health(
    kind: readings.GpuEventKind, listener: EventListener, node: SimulatedNode
) -> None:
    node.report(0, getattr(pynvml, kind.value))
    (event,) = await listener.listen()
    assert isinstance(event, readings.GpuEvent)
    assert event.kind is kind


async def test_the_driver_taken_off_a_gpu(listener: EventListener, node: SimulatedNode) -> None:
    node.bind(1, bound=False)
    node.bind(1, bound=True)
    heard = (*await listener.listen(), *await listener.listen())
    assert [(type(e), e.kind, e.gpu) for e in heard if isinstance(e, Binding)] == [
        (Binding, 1, 0x2700),
        (Binding, 2, 0x2700),
    ]


async def test_a_driver_without_system_events(driver: Driver, node: SimulatedNode) -> None:
    """Older drivers do not have them; GPUs are heard all the same."""
    await driver.observe()
    node.inject("nvmlSystemEventSetCreate", error="FUNCTION_NOT_FOUND", times=None)
    listener = EventListener(driver, timing=SHORT)
    await listener.listen()
    node.xid(0, 31)
    assert len(xids(await listener.listen())) == 1


async def test_sets_that_cannot_be_made_leave_nothing(driver: Driver, node: SimulatedNode) -> None:
    """Each attempt frees what it made, for it may be one a second for days."""
    await driver.observe()
    node.inject("nvmlSystemRegisterEvents", error="UNKNOWN", times=None)
    listener = EventListener(driver, timing=SHORT)
    for _ in range(3):
        assert await listener.listen() == ()
        assert listener.failure is not None
    for kind in ("nvmlEventSet", "nvmlSystemEventSet"):
        assert node.journal.counts[f"{kind}Free"] == node.journal.counts[f"{kind}Create"] == 3


@pytest.mark.parametrize("error", ["UNKNOWN", "INVALID_ARGUMENT", "GPU_IS_LOST"])
async def test_a_set_that_is_lost(error: str, listener: EventListener, node: SimulatedNode) -> None:
    node.inject("nvmlEventSetWait_v2", error=error)
    assert await listener.listen() == ()
    assert listener.failure is not None
    await listener.listen()
    node.xid(1, 48)
    assert len(xids(await listener.listen())) == 1
    assert listener.failure is None


async def test_events_before_a_failure(listener: EventListener, node: SimulatedNode) -> None:
    """NVML reports the XID first and then that the GPU is lost; the set is not left behind."""
    node.xid(0, 79)
    node.inject("nvmlEventSetWait_v2", error="GPU_IS_LOST", skip=1)
    assert len(xids(await listener.listen())) == 1
    assert listener.failure is not None
    await listener.listen()
    assert node.journal.counts["nvmlEventSetFree"] == 1
    assert node.journal.counts["nvmlSystemEventSetFree"] == 1


async def test_a_lost_gpu_leaves_others_heard(listener: EventListener, node: SimulatedNode) -> None:
    node.lose(0)
    await listener.listen()
    await listener.listen()
    node.xid(1, 48)
    assert len(xids(await listener.listen())) == 1


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"]
)
async def test_registration_is_retried(function: str, driver: Driver, node: SimulatedNode) -> None:
    """A call may fail in passing; the GPU's XIDs are not missed for as long as the agent lives."""
    await driver.observe()
    now = 1000.0
    node.inject(function, gpu=0, error="UNKNOWN")
    listener = EventListener(driver, timing=SHORT, uptime=lambda: now)
    await listener.listen()
    node.xid(1, 48)
    assert len(xids(await listener.listen())) == 1, "the other is heard at once"
    now += 60.0
    await listener.listen()
    node.xid(0, 48)
    assert len(xids(await listener.listen())) == 1
    for _ in range(3):
        now += 60.0
        await listener.listen()
    assert node.journal.counts["nvmlEventSetCreate"] == 2, "a whole set stays"
    assert node.journal.counts["nvmlEventSetFree"] == 1


async def test_a_late_event_says_since_when_it_may_be(driver: Driver, node: SimulatedNode) -> None:
    """The driver hung in between: the kernel log has the same XID, with its time."""
    await driver.observe()
    now = 1000.0
    listener = EventListener(driver, timing=SHORT, uptime=lambda: now)
    await listener.listen()
    now += 60.0
    node.xid(0, 119)
    [event] = await listener.listen()
    assert isinstance(event, readings.XidEvent)
    assert (event.since, event.at) == (1000.0, 1060.0)


async def test_refused_events_are_not_taken_for_none(driver: Driver, node: SimulatedNode) -> None:
    """The GPU has events, and its XIDs are missed: that is said until it can be registered."""
    await driver.observe()
    now = 1000.0
    refused = node.inject("nvmlDeviceRegisterEvents", gpu=0, error="NO_PERMISSION", times=None)
    listener = EventListener(driver, timing=SHORT, uptime=lambda: now)
    for _ in range(2):
        await listener.listen()
        assert listener.answer is not None
        assert listener.answer.silence is readings.Silence.FAILS
        assert listener.answer.reason.startswith("GPU 0: ")
        now += 60.0
    node.clear_faults(refused)
    await listener.listen()
    node.xid(0, 48)
    assert len(xids(await listener.listen())) == 1
    assert listener.answer == readings.Answer(last=now)


async def test_driver_reload(listener: EventListener, driver: Driver, node: SimulatedNode) -> None:
    """A set belongs to a session of NVML."""
    node.unload_driver()
    await listener.listen()
    assert listener.failure is not None
    node.load_driver()
    await driver.observe()
    await listener.listen()
    node.xid(0, 94)
    assert len(xids(await listener.listen())) == 1


async def test_events_are_heard_again_where_nvml_did_not_start(
    listener: EventListener, driver: Driver, node: SimulatedNode
) -> None:
    """It was neither shut down nor started while nothing answered. All else works afterwards, so
    that no failure has it started.
    """
    node.inject("*", error="DRIVER_NOT_LOADED", times=None)
    await driver.observe()
    await listener.listen()
    assert listener.failure is not None
    node.clear_faults()
    assert all(gpu.access is Access.OK for gpu in (await driver.observe()).gpus)
    await listener.listen()
    node.xid(0, 79)
    assert xids(await listener.listen()) == [79]


async def _waits(driver: Driver, node: SimulatedNode) -> asyncio.Task[tuple[Event, ...]]:
    await driver.observe()
    listener = EventListener(driver, timing=LONG)
    assert await listener.listen() == (), "the first time for one wait, to know that it can"
    node.journal.clear()
    listening = asyncio.create_task(listener.listen())
    await until(lambda: node.journal.counts["nvmlEventSetWait_v2"] >= 2)
    return listening


async def test_many_waits_end_with_what_happens(driver: Driver, node: SimulatedNode) -> None:
    listening = await _waits(driver, node)
    node.xid(0, 79)
    assert xids(await listening) == [79]


async def test_many_waits_do_not_keep_nvml_open(driver: Driver, node: SimulatedNode) -> None:
    """Who starts NVML anew, or resets a GPU, waits for one of them."""
    listening = await _waits(driver, node)
    async with asyncio.timeout(stretched(30)):
        assert await driver.pool.restart()
    assert await listening == ()


async def test_many_waits_end_with_their_caller(driver: Driver, node: SimulatedNode) -> None:
    """So NVML is shut down properly when the agent stops."""
    listening = await _waits(driver, node)
    await cancelled(listening)
    assert await driver.pool.shut_down()


async def test_a_wait_that_hangs(listener: EventListener, node: SimulatedNode) -> None:
    node.inject("nvmlEventSetWait_v2", hang=True)
    assert await listener.listen() == ()
    assert "did not return" in str(listener.failure)
    node.clear_faults()


async def test_event_values(listener: EventListener, driver: Driver, node: SimulatedNode) -> None:
    """The last XID of a GPU or an instance, labelled; 0 before the first, like dcgm-exporter."""
    gpu = await laid_out(driver, 0, at0="1g.10gb")
    instance = gpu.instances[0].id
    sampler, health = Sampler(driver, (), intervals=Intervals(patience=30.0)), HealthState()

    async def last_xids() -> list[tuple[type[Entity], dict[str, str], Number]]:
        nonlocal health
        heard = tuple(e for e in await listener.listen() if isinstance(e, readings.XidEvent))
        found = await sampler.round()
        reading = readings.NodeReading(kernel.now(), "boot-1", gpus=tuple(found.gpus), xids=heard)
        health = evaluate(health, reading, default_table()).state
        latest = [sample.whole for sample in found.latest]
        sampled = EventValues().sample(health.xids, sampler.whole_subjects, found.slices, latest)
        return [(type(s.entity), dict(s.attributes), value) for s, value in sampled.values[230]]

    def named(number: int) -> dict[str, str]:
        return {"err_code": str(number), "err_msg": default_table().row(number).name}

    assert await last_xids() == [
        (WholeGpu, NO_ERROR, 0),
        (WholeGpu, NO_ERROR, 0),
        (Slice, NO_ERROR, 0),
    ]
    for device, number in (("0", 31), (f"0/{instance}/0", 43), (f"0/{instance}/0", 45)):
        node.xid(device, number)
    hit = [(WholeGpu, named(31), 31), (Slice, named(45), 45), (WholeGpu, NO_ERROR, 0)]
    assert await last_xids() == hit
    await driver.apply(destroy(gpu, gpu.instances[0]))
    assert await last_xids() == [hit[0], hit[2]]
    node.xid(0, 999)
    unknown = {"err_code": "999", "err_msg": "Unknown Error"}
    assert await last_xids() == [(WholeGpu, unknown, 999), hit[2]]
