import asyncio
import time
from pathlib import Path

import pytest

from nodeagent.errors import DeadlineExceeded, DriverError, GpuInUse, GpuLost
from nodeagent.gpu.capability_files import CapabilityUsers, UsageProbe
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import Access, Placement
from nodeagent.plan.steps import SetMigMode
from nodeagent.simulation import SimulatedNode, simulated
from tests.gpu.conftest import quick
from tests.gpu.steps_of import destroy, laid_out, layout
from tests.machine_load import stretched, until

LOOKS = 100


async def test_a_gpu_that_hangs_leaves_the_others(hasty: Driver, node: SimulatedNode) -> None:
    await laid_out(hasty, 1, at0="3g.40gb")
    before = (await hasty.observe()).gpus[1]
    node.inject("nvmlDeviceGetMigMode", gpu=1, hang=True)
    first, second = (await hasty.observe()).gpus
    assert first.access is Access.OK
    assert second.access is Access.UNKNOWN
    assert "did not return within" in second.access_reason
    assert second.instances == before.instances
    began = time.monotonic()
    for _ in range(LOOKS):
        assert "has hung" in (await hasty.observe_gpu(second.uuid)).access_reason
        with pytest.raises(DeadlineExceeded, match=r"GPU 1 has hung .* not tried"):
            await hasty.apply(destroy(second, second.instances[0]))
    assert time.monotonic() - began < LOOKS * quick()  # each that waits adds this
    assert layout(await laid_out(hasty, 0, at4="3g.40gb")) == {Placement(4, 4): ("3g.40gb",)}


async def test_a_gpu_that_answers_slowly_is_well(node: SimulatedNode) -> None:
    """The deadline is for each call: a look of many may take several; the slow GPU is reported."""
    node.inject(delay=stretched(0.04), gpu=0, times=None)
    async with Driver(observe_deadline=stretched(0.6), step_deadline=2) as driver:
        observed = await driver.observe()
        assert [gpu.access for gpu in observed.gpus] == [Access.OK, Access.OK]
        ((index, calls),) = observed.slow
        assert index == 0
        assert "driver calls, the slowest nvml" in calls
        node.clear_faults()
        async with asyncio.timeout(stretched(30)):
            while (await driver.observe()).slow:
                pass


async def test_all_gpus_hanging_is_reported_for_each(hasty: Driver, node: SimulatedNode) -> None:
    """NVML is not shut down under calls that are still inside."""
    await hasty.observe()
    node.inject("nvmlDeviceGetMigMode", hang=True, times=None)
    seen = (await hasty.observe()).gpus
    assert [gpu.access for gpu in seen] == [Access.UNKNOWN] * 2
    assert node.journal.total("nvmlShutdown") == 0


async def test_a_lost_gpu_is_reported_as_lost(driver: Driver, node: SimulatedNode) -> None:
    before = await laid_out(driver, 0, at0="3g.40gb")
    node.lose(0)
    first, second = (await driver.observe()).gpus
    assert first.access is Access.LOST
    assert "fallen off the bus" in first.access_reason
    assert (first.uuid, first.instances) == (before.uuid, before.instances)
    assert second.access is Access.OK
    with pytest.raises(GpuLost, match="GPU 0: "):
        await driver.apply(destroy(before, before.instances[0]))


async def test_a_gpu_whose_query_fails_is_unknown(driver: Driver, node: SimulatedNode) -> None:
    before = (await driver.observe()).gpus
    node.inject("nvmlDeviceGetMigMode", gpu=0, error="IRQ_ISSUE")
    first, second = (await driver.observe()).gpus
    assert first.access is Access.UNKNOWN
    assert "nvmlDeviceGetMigMode" in first.access_reason
    assert second == before[1]
    assert (await driver.observe()).gpus == before


async def test_a_gpu_that_cannot_even_be_identified_is_shown(node: SimulatedNode) -> None:
    node.inject("nvmlDeviceGetHandleByIndex_v2", gpu=1, error="UNKNOWN", times=None)
    node.inject("nvmlDeviceGetUUID", gpu=1, error="UNKNOWN", times=None)
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        first, second = (await driver.observe()).gpus
    assert first.access is Access.OK
    assert (second.index, second.uuid, second.access) == (1, "", Access.UNKNOWN)
    assert "UNKNOWN" in second.access_reason.upper()


async def test_a_gpu_that_is_not_there_is_reported(driver: Driver) -> None:
    with pytest.raises(DriverError, match="the driver knows no GPU GPU-nowhere"):
        await driver.observe_gpu("GPU-nowhere")
    with pytest.raises(DriverError, match="the driver knows no GPU GPU-nowhere"):
        await driver.apply(SetMigMode("GPU-nowhere", enabled=True, reason=""))


async def test_gpus_are_observed_side_by_side(node: SimulatedNode) -> None:
    held = [node.inject("nvmlDeviceGetMigMode", gpu=index, hang=True) for index in range(2)]
    async with Driver(observe_deadline=60, step_deadline=60) as driver:
        looking = asyncio.create_task(driver.observe())
        await until(lambda: not any(fault.times for fault in held))
        node.clear_faults()
        assert [gpu.access for gpu in (await looking).gpus] == [Access.OK, Access.OK]


# --- users of other sources -----------------------------------------------------------------------


async def test_open_capability_files_are_in_the_picture(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    fds = proc / "4711/fd"
    fds.mkdir(parents=True)
    (proc / "1").mkdir()
    (proc / "devices").write_text("  1 nvidia-caps\n")  # as the kernel's /dev/full, its seventh
    minors = proc / "driver/nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True)
    with simulated("h100-80gb:1"):
        opened = CapabilityUsers(UsageProbe(proc).read, deadline=30)
        async with Driver(observe_deadline=30, step_deadline=30, sources=[opened]) as driver:
            gpu = await laid_out(driver, 0, at0="3g.40gb", at4="3g.40gb")
            assert gpu.idle
            (fds / "7").symlink_to("/dev/full")
            (proc / "4711/fdinfo").mkdir()
            (proc / "4711/fdinfo/7").write_text("flags:\t02\n")
            minors.write_text(f"gpu0/gi{gpu.instances[1].id}/ci0/access 7\n")
            for seen in (await driver.observe_gpu(gpu.uuid), (await driver.observe()).gpus[0]):
                assert not seen.instances[0].in_use
                (user,) = seen.instances[1].compute[0].usage.processes
                assert (user.pid, user.source) == (4711, "capability")
            with pytest.raises(GpuInUse, match="pid 4711"):
                await driver.apply(destroy(gpu, gpu.instances[1]))


GIB = 1 << 30


async def test_clients_of_a_gpu(driver: Driver, node: SimulatedNode) -> None:
    gpu = (await driver.observe()).gpus[0]
    node.occupy(0, 4711, kind="mps", memory=GIB)
    node.occupy(0, 4712, kind="mps", memory=None)
    node.occupy(0, 4713, memory=GIB)
    node.occupy(1, 4714, kind="mps", memory=GIB)
    assert await driver.mps_memory(gpu.uuid) == {4711: GIB, 4712: None}


async def test_clients_of_a_mig_device(driver: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(driver, 1, at0="1g.10gb", at4="3g.40gb")
    first, second = (instance.compute[0].uuid for instance in gpu.instances)
    node.occupy(first, 4711, kind="mps", memory=GIB)
    assert await driver.mps_memory(first) == {4711: GIB}
    assert await driver.mps_memory(second) == {}


async def test_a_device_that_was_never_observed_is_named(driver: Driver) -> None:
    gpu = await laid_out(driver, 0, at0="1g.10gb")
    with pytest.raises(DriverError, match="knows no device MIG-none"):
        await driver.mps_memory("MIG-none")
    assert await driver.mps_memory(gpu.instances[0].compute[0].uuid) == {}
