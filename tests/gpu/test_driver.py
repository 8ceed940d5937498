import asyncio
import subprocess
import sys
import threading

import pynvml
import pytest

from nodeagent.errors import DeadlineExceeded, DriverError, DriverUnavailable
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import Access, MigMode, Placement
from nodeagent.plan.steps import SetMigMode, StopMps
from nodeagent.simulation import SimulatedNode, Switches
from tests.gpu.conftest import quick, settled
from tests.gpu.steps_of import create, laid_out, layout
from tests.machine_load import cancelled, stretched, until
from tests.rig import driving


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("DRIVER_NOT_LOADED", "kernel driver is not loaded"),
        ("NO_PERMISSION", "does not permit"),
        ("LIB_RM_VERSION_MISMATCH", "of different versions"),
    ],
)
async def test_a_driver_that_cannot_be_used(node: SimulatedNode, code: str, words: str) -> None:
    node.inject("nvmlInitWithFlags", error=code)
    with pytest.raises(DriverUnavailable, match=words):
        async with Driver(observe_deadline=30, step_deadline=30):
            pytest.fail("it must not begin")


async def test_a_driver_that_hangs_at_the_start_is_reported(node: SimulatedNode) -> None:
    """The command ends instead of hanging with it; an NVML that starts late is shut down."""
    before = set(threading.enumerate())
    node.inject("nvmlInitWithFlags", hang=True)
    with pytest.raises(DriverUnavailable, match="starting NVML did not return within"):
        async with Driver(observe_deadline=quick(), step_deadline=stretched(2)):
            pytest.fail("it must not begin")
    node.clear_faults()
    for thread in set(threading.enumerate()) - before:
        await asyncio.to_thread(thread.join)
    assert node.journal.total("nvmlShutdown") == 1


@pytest.mark.parametrize("function", ["nvmlDeviceGetMigMode", "nvmlDeviceGetCount_v2"])
async def test_who_leaves_a_hanging_driver_does_not_wait(
    node: SimulatedNode, function: str
) -> None:
    clock = asyncio.get_running_loop().time

    async def look() -> None:
        async with Driver(observe_deadline=60, step_deadline=60) as driver:
            await driver.observe()

    hang = node.inject(function, hang=True, times=1000)
    looking = asyncio.create_task(look())
    await until(lambda: hang.times != 1000)
    began = clock()
    await cancelled(looking)
    assert clock() - began < 30
    assert node.journal.total("nvmlShutdown") == 0
    node.clear_faults()


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
async def test_a_hanging_driver_entered_again_is_known(node: SimulatedNode, function: str) -> None:
    driver = Driver(observe_deadline=quick(), step_deadline=stretched(2))

    async def look() -> int:
        async with driver:
            return len((await driver.observe()).gpus)

    node.inject(function, hang=True)
    words = set()
    threads = set()
    for _ in range(4):
        with pytest.raises(DriverError) as caught:
            await look()
        words.add(str(caught.value))
        threads.add(threading.active_count())
    assert len(threads) == 1
    assert len(words) == 2  # when it began to hang, and ever since: reported once each
    node.clear_faults()
    await until(lambda: not driver.pool._worker.stuck)
    assert await look() == 2
    assert await look() == 2
    assert pynvml._nvmlLib_refcount == 0


async def test_a_version_that_is_not_reported_stops_nothing(node: SimulatedNode) -> None:
    """It is only shown; whatever else fails then will say so itself."""
    node.inject("nvmlSystemGetDriverVersion", error="UNKNOWN", times=None)
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        seen = await driver.observe()
    assert seen.driver_version == ""
    assert len(seen.gpus) == 2


async def test_nvml_is_shut_down_as_often_as_it_was_started(node: SimulatedNode) -> None:
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        await driver.observe()
        node.inject("nvmlDeviceGetMigMode", error="UNKNOWN", times=4)
        assert all(gpu.access is Access.OK for gpu in (await driver.observe()).gpus)
    assert node.journal.total("nvmlInitWithFlags") == 2
    assert node.journal.total("nvmlShutdown") == 2
    assert pynvml._nvmlLib_refcount == 0


async def test_an_error_in_passing_costs_no_card_its_instances() -> None:
    """Without persistence mode the driver forgets a card that nobody has open, this agent neither:
    with what a pod was given and has not opened yet.
    """
    switches = Switches(persistence_mode=False)
    async with driving("h100-80gb:1", switches=switches) as (driver, node):
        before = await laid_out(driver, 0, at0="3g.40gb")
        node.inject("nvmlDeviceGetMigMode", error="UNKNOWN", times=1)
        assert layout((await driver.observe()).gpus[0]) == layout(before)


async def test_a_driver_that_is_loaded_again_is_found(driver: Driver, node: SimulatedNode) -> None:
    before = (await driver.observe()).gpus
    node.unload_driver()
    seen = (await driver.observe()).gpus
    assert [gpu.uuid for gpu in seen] == [gpu.uuid for gpu in before]
    assert all(gpu.access is Access.UNKNOWN for gpu in seen)
    assert "kernel driver is not loaded" in seen[0].access_reason
    node.load_driver()
    assert (await driver.observe()).gpus == before


async def test_a_driver_that_never_listed_a_gpu_raises(node: SimulatedNode) -> None:
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        node.inject("nvmlDeviceGetCount_v2", error="UNKNOWN", times=None)
        with pytest.raises(DriverError, match="nvmlDeviceGetCount"):
            await driver.observe()


async def test_a_step_of_an_mps_daemon_is_refused(driver: Driver, node: SimulatedNode) -> None:
    """Its supervisor applies it; here it would be taken for done."""
    gpu = (await driver.observe()).gpus[0]
    calls = node.journal.total()
    with pytest.raises(DriverError, match="asked to start or stop an MPS daemon"):
        await driver.apply(StopMps(gpu.uuid, gpu.uuid, "a test wants it"))
    assert node.journal.total() == calls


def test_importing_the_driver_is_cheap() -> None:
    heavy = "psutil pydantic aiohttp structlog yaml concurrent.futures.thread"
    program = (
        f"import nodeagent.gpu.driver, sys; print([m for m in {heavy.split()} if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


async def test_a_step_needs_no_observation_before(node: SimulatedNode) -> None:
    """The agent may have been started just now."""
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        uuid = (await driver.observe()).gpus[0].uuid
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        await driver.apply(SetMigMode(uuid, enabled=True, reason=""))
        assert (await driver.observe_gpu(uuid)).mig == MigMode(current=True, pending=True)


async def test_a_step_that_hangs_ends_at_its_deadline(hasty: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(hasty, 0)
    node.inject("nvmlGpuInstanceCreateComputeInstance", hang=True)
    with pytest.raises(DeadlineExceeded, match=r"creating 3g\.40gb at 0:4 did not return"):
        await hasty.apply(create(gpu, "3g.40gb", 0))
    assert (await hasty.observe_gpu(gpu.uuid)).access is Access.UNKNOWN
    node.clear_faults()
    await settled(hasty)
    assert layout(await hasty.observe_gpu(gpu.uuid)) == {Placement(0, 4): ("3g.40gb",)}
