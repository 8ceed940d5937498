import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import pytest

from nodeagent.errors import DriverError, GpuInUse
from nodeagent.gpu.capability_files import CapabilityHolders, CapabilityUsers, Instance
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.recent import FRESH
from nodeagent.gpu.users import GpuRef, MigDeviceRef, UsageReading, UsageSource
from nodeagent.plan.observed import Gpu, Placement
from nodeagent.plan.users import Usage, User
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.structs import replace
from tests.gpu.steps_of import create, destroy, destroy_compute, disable, laid_out, layout
from tests.machine_load import stretched, until
from tests.rig import driving

DESTROYS = "nvml*InstanceDestroy"


@pytest.mark.parametrize("kind", ["compute", "graphics", "mps"])
async def test_a_later_process_is_found(driver: Driver, node: SimulatedNode, kind: str) -> None:
    gpu = await laid_out(driver, 0)
    await driver.apply(create(gpu, "3g.40gb", 0, (2, 1)))
    gpu = await driver.observe_gpu(gpu.uuid)
    instance = gpu.instances[0]
    process = node.occupy(instance.compute[1].uuid, kind=kind)
    for step in (destroy(gpu, instance), destroy_compute(gpu, instance, instance.compute[1])):
        with pytest.raises(GpuInUse, match=rf"in use by pid {process.pid} \(python\)"):
            await driver.apply(step)
    assert node.journal.total(DESTROYS) == 0
    assert layout(await driver.observe_gpu(gpu.uuid)) == layout(gpu)


@pytest.mark.parametrize("code", ["UNKNOWN", "NOT_SUPPORTED"])
async def test_unknown_users_are_users(driver: Driver, node: SimulatedNode, code: str) -> None:
    gpu = await laid_out(driver, 0, at0="3g.40gb")
    node.inject("nvmlDeviceGetComputeRunningProcesses_v3", error=code, times=None)
    with pytest.raises(GpuInUse, match="unknown users"):
        await driver.apply(destroy(gpu, gpu.instances[0]))
    assert node.journal.total(DESTROYS) == 0


class Source:
    """A source of users that reports the same for every device."""

    def __init__(self) -> None:
        self.reported: Callable[[MigDeviceRef], Usage] = lambda _: Usage()
        self.looks = 0

    def read(self) -> UsageReading:
        self.looks += 1
        return self

    def users(self, device: MigDeviceRef) -> Usage:
        return self.reported(device)

    def users_of_gpu(self, gpu: GpuRef) -> Usage:
        return Usage()


async def test_who_holds_a_half_made_instance_is_found() -> None:
    """Its capability file is there before its first device."""
    source = Source()
    opened = [CapabilityUsers(source.read, deadline=30)]
    async with driving("h100-80gb:1", sources=opened) as (driver, _):
        gpu = await laid_out(driver, 0)
        await driver.apply(create(gpu, "3g.40gb", 0, ()))
        gpu = await driver.observe_gpu(gpu.uuid)
        held: Instance = (0, gpu.instances[0].id, None)
        source.reported = CapabilityHolders({held: (User(4711),)}).users
        with pytest.raises(GpuInUse, match="pid 4711"):
            await driver.apply(destroy(gpu, gpu.instances[0]))


async def test_an_id_of_another_instance_is_left_alone(driver: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(driver, 0, at0="3g.40gb")
    step = destroy(gpu, gpu.instances[0])
    await driver.apply(step)
    with pytest.raises(DriverError, match=r"3g.40gb at 0:4\) does not exist any more"):
        await driver.apply(step)
    await driver.apply(create(gpu, "4g.40gb", 0))  # gets the same id
    node.journal.clear()
    with pytest.raises(DriverError, match=r"not 3g.40gb at 0:4 any more but 4g.40gb at 0:4"):
        await driver.apply(step)
    assert node.journal.total(DESTROYS) == 0


async def test_a_device_that_is_another_by_now_is_not_destroyed(driver: Driver) -> None:
    gpu = await laid_out(driver, 0)
    await driver.apply(create(gpu, "3g.40gb", 0, (1, 1, 1)))
    gpu = await driver.observe_gpu(gpu.uuid)
    first, second, _ = gpu.instances[0].compute
    stale = destroy_compute(gpu, gpu.instances[0], first)
    await driver.apply(stale)
    with pytest.raises(DriverError, match=f"there is no MIG device {first.uuid} any more"):
        await driver.apply(stale)
    with pytest.raises(DriverError, match="is not compute instance 0 any more but 1"):
        await driver.apply(replace(stale, device=second.uuid))


async def test_a_part_not_named_keeps_its_instance(driver: Driver, node: SimulatedNode) -> None:
    """It was made after the plan, and its maker may be about to use it; the others stay too."""
    gpu = await laid_out(driver, 0)
    await driver.apply(create(gpu, "3g.40gb", 0, (1, 1)))
    gpu = await driver.observe_gpu(gpu.uuid)
    for known in (gpu.instances[0].compute[:1], ()):
        instance = replace(gpu.instances[0], compute=known)
        with pytest.raises(DriverError, match=r"3g.40gb now also has compute instance \d"):
            await driver.apply(destroy(gpu, instance))
    assert node.journal.total(DESTROYS) == 0
    assert layout(await driver.observe_gpu(gpu.uuid)) == layout(gpu)


async def test_a_part_without_device_keeps_an_instance(driver: Driver, node: SimulatedNode) -> None:
    """There is no device that could be asked for its users."""
    gpu = await laid_out(driver, 0, at0="3g.40gb")
    hidden = replace(gpu.instances[0].compute[0], uuid="")
    with pytest.raises(DriverError, match="compute instance without MIG device"):
        await driver.apply(destroy(gpu, replace(gpu.instances[0], compute=(hidden,))))
    assert node.journal.total(DESTROYS) == 0


async def test_the_moment_after_the_last_part_went_is_waited_for() -> None:
    """The driver may refuse to destroy the GPU instance once then."""
    async with driving("h100-80gb:1", switches=Switches(gi_destroy_race=True)) as (driver, node):
        gpu = await laid_out(driver, 0, at0="3g.40gb")
        await driver.apply(destroy(gpu, gpu.instances[0]))
        assert layout(await driver.observe_gpu(gpu.uuid)) == {}
        assert node.journal.total("nvmlGpuInstanceDestroy") == 2


async def test_a_refusal_that_stays_is_reported_before_the_deadline(node: SimulatedNode) -> None:
    async with Driver(observe_deadline=30, step_deadline=1) as driver:
        gpu = await laid_out(driver, 0, at0="3g.40gb")
        node.inject("nvmlGpuInstanceDestroy", error="IN_USE", times=None)
        with pytest.raises(GpuInUse, match="GPU instance is still in use"):
            await driver.apply(destroy(gpu, gpu.instances[0]))
        assert layout(await driver.observe_gpu(gpu.uuid)) == {Placement(0, 4): ()}


async def test_nothing_is_destroyed_once_the_deadline_has_passed(node: SimulatedNode) -> None:
    """The look at the users has become old while the driver was slow."""
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        gpu = await laid_out(driver, 0, at0="3g.40gb")
    async with Driver(observe_deadline=30, step_deadline=0.1) as driver:
        assert (await driver.observe()).gpus[0] == gpu
        node.inject("nvmlDeviceGetMPSComputeRunningProcesses_v3", delay=0.2)
        # On a busy machine the deadline may have passed before the driver is asked.
        late = "did not return within|too slow for the deadline"
        with pytest.raises(DriverError, match=late):
            await driver.apply(destroy(gpu, gpu.instances[0]))
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        assert layout(await driver.observe_gpu(gpu.uuid)) == layout(gpu)
    assert node.journal.total(DESTROYS) == 0


async def test_a_wait_behind_an_observation_leaves_a_step_its_time(node: SimulatedNode) -> None:
    handles = "nvmlDeviceGetMigDeviceHandleByIndex"
    async with Driver(observe_deadline=30, step_deadline=1.5) as driver:
        gpu = await laid_out(driver, 0, **{f"at{start}": "1g.10gb" for start in range(7)})
        slow, before = node.inject(handles, delay=0.25, times=None), node.journal.total(handles)
        async with asyncio.timeout(stretched(30)):
            looking = asyncio.create_task(driver.observe())
            await until(lambda: node.journal.total(handles) != before)
            await driver.apply(destroy(gpu, gpu.instances[0]))
            await looking
        node.clear_faults(slow)
        assert len((await driver.observe_gpu(gpu.uuid)).instances) == 6


async def test_one_look_serves_several_destructions(driver: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(driver, 0, **{f"at{start}": "1g.10gb" for start in range(7)})
    steps = [destroy(gpu, instance) for instance in gpu.instances]
    process = node.occupy(gpu.instances[5].compute[0].uuid)
    with pytest.raises(GpuInUse, match=f"in use by pid {process.pid}"):
        await driver.insist_on_idle(steps)
    node.release()
    node.journal.clear()
    await driver.insist_on_idle(steps)
    for step in steps:
        await driver.apply(step)
    assert node.journal.total("nvmlDeviceGetComputeRunningProcesses*") == 1
    assert layout(await driver.observe_gpu(gpu.uuid)) == {}


async def test_a_user_after_the_look_stops_the_driver(driver: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(driver, 0, at0="1g.10gb", at1="1g.10gb")
    first, second = (destroy(gpu, instance) for instance in gpu.instances)
    await driver.insist_on_idle([first, second])
    node.occupy(gpu.instances[1].compute[0].uuid)
    await driver.apply(first)
    with pytest.raises(GpuInUse, match="a process still uses the compute instance"):
        await driver.apply(second)
    assert layout(await driver.observe_gpu(gpu.uuid)) == {Placement(1, 1): ("1g.10gb",)}


async def test_who_is_on_no_known_device_may_be_on_any(driver: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(driver, 0, at0="1g.10gb")
    process = node.occupy(0)
    with pytest.raises(GpuInUse, match=f"pid {process.pid}"):
        await driver.apply(destroy(gpu, gpu.instances[0]))
    assert node.journal.total(DESTROYS) == 0


async def test_who_is_elsewhere_is_on_none_of_these(driver: Driver, node: SimulatedNode) -> None:
    """Also where nothing is known of them: a reset of another GPU starts NVML anew."""
    gpu = await laid_out(driver, 0, at0="3g.40gb", at4="1g.10gb")
    node.occupy(gpu.instances[1].compute[0].uuid)
    assert await driver.pool.restart()
    await driver.apply(destroy(gpu, gpu.instances[0]))
    assert layout(await driver.observe_gpu(gpu.uuid)) == {Placement(4, 1): ("1g.10gb",)}


@pytest.mark.parametrize("reason", ["", "processes are hidden"])
async def test_other_sources_are_asked_before_each_destruction(reason: str) -> None:
    """A capability file opened, or an allocation made, after the look: they cost no driver call."""
    source = Source()
    opened = [CapabilityUsers(source.read, deadline=30)]
    async with driving("h100-80gb:1", sources=opened) as (driver, node):
        gpu = await laid_out(driver, 0, at0="1g.10gb", at1="1g.10gb")
        first, second = (destroy(gpu, instance) for instance in gpu.instances)
        await driver.insist_on_idle([first, second])
        await driver.apply(first)
        users = () if reason else (User(4711, "python", "capability"),)
        source.reported = lambda _: Usage(users, known=not reason, reason=reason)
        node.journal.clear()
        with pytest.raises(GpuInUse, match=reason or "pid 4711"):
            await driver.apply(second)
        assert node.journal.total(DESTROYS) == 0


# --- users that come during a wait ----------------------------------------------------------------


class Snapshot:
    def __init__(self, allocated: frozenset[str]) -> None:
        self._allocated = allocated

    def users(self, device: MigDeviceRef) -> Usage:
        given = device.uuid in self._allocated
        return Usage((User(0, "", namespace="team", pod="trainer"),) if given else ())

    def users_of_gpu(self, gpu: GpuRef) -> Usage:
        return Usage()


class Kubelet(UsageSource):
    def __init__(self) -> None:
        super().__init__()
        self.allocated: set[str] = set()
        self.asked = 0

    async def read(self) -> Snapshot:
        self.asked += 1
        return Snapshot(frozenset(self.allocated))

    async def with_users(
        self, gpus: Sequence[Gpu], asked: Awaitable[UsageReading] | None = None
    ) -> list[Gpu]:
        return list(gpus)


@pytest.mark.parametrize("look_only", [True, False])
async def test_a_device_allocated_during_the_wait_for_the_gpu_is_kept(look_only: bool) -> None:
    """The step waits behind a slow call; before it begins the kubelet is asked again."""
    kubelet, now = Kubelet(), [100.0]
    async with driving("h100-80gb:1", sources=[kubelet], clock=lambda: now[0]) as (driver, node):
        gpu = await laid_out(driver, 0, at0="1g.10gb")
        step = destroy(gpu, gpu.instances[0])
        kubelet.asked = 0
        hang = node.inject("nvmlDeviceGetMigMode", hang=True)
        async with asyncio.timeout(stretched(30)):
            looking = asyncio.create_task(driver.observe_gpu(gpu.uuid))
            await until(lambda: not hang.times)
            work = driver.insist_on_idle([step]) if look_only else driver.apply(step)
            taking = asyncio.ensure_future(work)
            await until(lambda: kubelet.asked)
            kubelet.allocated.update(d.uuid for d in gpu.instances[0].compute)
            now[0] += FRESH + 1
            node.clear_faults()
            with pytest.raises(GpuInUse, match="team/trainer"):
                await taking
            await looking
        assert kubelet.asked == 2
        assert node.journal.total(DESTROYS) == 0


@pytest.mark.parametrize("switches_off", [True, False])
async def test_a_device_allocated_during_a_slow_step_is_kept(switches_off: bool) -> None:
    """The driver may take long for the look before; then the kubelet is asked once more."""
    kubelet, now = Kubelet(), [100.0]
    async with driving("h100-80gb:1", sources=[kubelet], clock=lambda: now[0]) as (driver, node):
        gpu = await laid_out(driver, 0, at0="1g.10gb")
        sets = node.journal.total("nvmlDeviceSetMigMode")
        kubelet.asked = 0
        hang = node.inject("nvmlDeviceGetComputeRunningProcesses_v3", hang=True)
        step = disable(gpu) if switches_off else destroy(gpu, gpu.instances[0])
        async with asyncio.timeout(stretched(30)):
            taking = asyncio.create_task(driver.apply(step))
            await until(lambda: not hang.times)
            kubelet.allocated.update(d.uuid for d in gpu.instances[0].compute)
            now[0] += FRESH + 1
            node.clear_faults()
            with pytest.raises(GpuInUse, match="team/trainer"):
                await taking
        assert kubelet.asked == 2
        assert node.journal.total(DESTROYS) == 0
        assert node.journal.total("nvmlDeviceSetMigMode") == sets


async def test_a_device_allocated_while_another_source_is_slow_is_kept() -> None:
    """What the kubelet said before a long look for processes proves nothing after it."""
    kubelet, now = Kubelet(), [100.0]

    class Processes(Kubelet):
        async def read(self) -> Snapshot:
            if to_give:
                now[0] += FRESH + 1
                kubelet.allocated.add(to_give.pop())
            return Snapshot(frozenset())

    to_give: list[str] = []
    sources = [kubelet, Processes()]
    async with driving("h100-80gb:1", sources=sources, clock=lambda: now[0]) as (driver, node):
        gpu = await laid_out(driver, 0, at0="1g.10gb")
        to_give.append(gpu.instances[0].compute[0].uuid)
        with pytest.raises(GpuInUse, match="team/trainer"):
            await driver.apply(destroy(gpu, gpu.instances[0]))
        assert node.journal.total(DESTROYS) == 0


@pytest.mark.parametrize(("deadline", "readings"), [(300, 3), (1, 1)])
async def test_a_step_whose_turn_comes_too_late_is_refused(deadline: int, readings: int) -> None:
    kubelet, clock = Kubelet(), count(0.0, FRESH + 1)
    with simulated("h100-80gb:1") as node:
        async with Driver(observe_deadline=30, step_deadline=30) as plain:
            gpu = await laid_out(plain, 0, at0="1g.10gb")
        async with Driver(
            observe_deadline=30, step_deadline=deadline, sources=[kubelet], clock=clock.__next__
        ) as driver:
            with pytest.raises(GpuInUse, match=r"GPU 0: .* waited too long behind other driver"):
                await driver.apply(destroy(gpu, gpu.instances[0]))
        assert kubelet.asked == readings
        assert node.journal.total(DESTROYS) == 0
