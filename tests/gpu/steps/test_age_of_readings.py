import asyncio
from collections.abc import Awaitable, Sequence
from itertools import count

import pytest

from nodeagent.errors import GpuInUse
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.recent import FRESH
from nodeagent.gpu.users import GpuRef, MigDeviceRef, UsageReading, UsageSource
from nodeagent.plan.observed import Gpu
from nodeagent.plan.users import Usage, User
from nodeagent.simulation import simulated
from tests.gpu.steps_of import destroy, disable, laid_out
from tests.machine_load import stretched

DESTROYS = "nvml*InstanceDestroy"


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
    with simulated("h100-80gb:1") as node:
        async with Driver(
            observe_deadline=30, step_deadline=30, sources=[kubelet], clock=lambda: now[0]
        ) as driver:
            gpu = await laid_out(driver, 0, at0="1g.10gb")
            step = destroy(gpu, gpu.instances[0])
            kubelet.asked = 0
            hang = node.inject("nvmlDeviceGetMigMode", hang=True)
            async with asyncio.timeout(stretched(30)):
                looking = asyncio.create_task(driver.observe_gpu(gpu.uuid))
                while hang.times:
                    await asyncio.sleep(0.001)
                work = driver.insist_on_idle([step]) if look_only else driver.apply(step)
                taking = asyncio.ensure_future(work)
                while not kubelet.asked:
                    await asyncio.sleep(0.001)
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
    with simulated("h100-80gb:1") as node:
        async with Driver(
            observe_deadline=30, step_deadline=30, sources=[kubelet], clock=lambda: now[0]
        ) as driver:
            gpu = await laid_out(driver, 0, at0="1g.10gb")
            sets = node.journal.total("nvmlDeviceSetMigMode")
            kubelet.asked = 0
            hang = node.inject("nvmlDeviceGetComputeRunningProcesses_v3", hang=True)
            step = disable(gpu) if switches_off else destroy(gpu, gpu.instances[0])
            async with asyncio.timeout(stretched(30)):
                taking = asyncio.create_task(driver.apply(step))
                while hang.times:
                    await asyncio.sleep(0.001)
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
    with simulated("h100-80gb:1") as node:
        async with Driver(
            observe_deadline=30,
            step_deadline=30,
            sources=[kubelet, Processes()],
            clock=lambda: now[0],
        ) as driver:
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
