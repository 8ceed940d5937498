import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.errors import DriverError, GpuInUse
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import Access, Gpu, MigMode, Placement
from nodeagent.plan.steps import ResetGpu
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.structs import replace
from tests.gpu.conftest import quick, settled
from tests.gpu.steps_of import create, destroy, enable, laid_out, layout
from tests.machine_load import until

SMI = [sys.executable, "-m", "nodeagent.simulation.nvidia_smi"]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedNode]:
    """Two Ampere cards that the stand-in for nvidia-smi resets, if no process has NVML open."""
    state = tmp_path / "node.json"
    monkeypatch.setenv("NODEAGENT_SIMULATED_STATE", str(state))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    switches = Switches(reset_needs_nvml_closed=True)
    with simulated("a100-40gb:2", state=state, switches=switches) as node:
        yield node


def driver_with(nvidia_smi: list[str]) -> Driver:
    return Driver(observe_deadline=30, step_deadline=30, nvidia_smi=nvidia_smi)


@asynccontextmanager
async def under_reset(folder: Path) -> AsyncIterator[tuple[Driver, Gpu, asyncio.Task[None], Path]]:
    """The first GPU while nvidia-smi runs, which reports success once the path exists."""
    begun, go = folder / "begun", folder / "go"
    waits = ["sh", "-c", f"touch {begun}; while [ ! -e {go} ]; do sleep 0.01; done"]
    async with driver_with(waits) as driver:
        gpu = (await driver.observe()).gpus[0]
        reset = asyncio.create_task(driver.apply(ResetGpu(gpu.uuid, "")))
        await until(begun.exists)
        yield driver, gpu, reset, go


def fall_off_the_bus(node: SimulatedNode) -> None:
    """The first GPU; the one behind it moves up."""
    with node.changes():
        node.cards = node.cards[1:]
        node.cards[0].index = 0


async def test_a_pending_mode_becomes_current_with_a_reset(node: SimulatedNode) -> None:
    async with driver_with(SMI) as driver:
        gpu, other = (await driver.observe()).gpus
        await driver.apply(enable(gpu))
        await driver.apply(ResetGpu(gpu.uuid, "MIG mode is pending"))
        after = await driver.observe()
        assert after.gpus[0].mig == MigMode(current=True, pending=True)
        assert after.gpus[1] == other
        assert layout(await laid_out(driver, 0, at0="3g.20gb")) == {Placement(0, 4): ("3g.20gb",)}


async def test_a_reset_and_the_steps_of_another_gpu_take_turns(node: SimulatedNode) -> None:
    """No call meets the NVML that is shut down for it."""
    async with driver_with(SMI) as driver:
        for gpu in (await driver.observe()).gpus:
            await driver.apply(enable(gpu))
            await driver.apply(ResetGpu(gpu.uuid, "MIG mode is pending"))
        first, second = (await driver.observe()).gpus
        reset = asyncio.create_task(driver.apply(ResetGpu(second.uuid, "")))
        while not reset.done():
            await driver.apply(create(first, "3g.20gb", 0))
            made = await driver.observe_gpu(first.uuid)
            await driver.apply(destroy(made, made.instances[0]))
        await reset
        assert layout(await driver.observe_gpu(first.uuid)) == {}


async def test_a_gpu_that_has_another_number_by_now_is_not_reset(tmp_path: Path) -> None:
    called = tmp_path / "called"
    with simulated("a100-40gb:2") as node:
        async with driver_with(["touch", str(called)]) as driver:
            first, second = (await driver.observe()).gpus
            fall_off_the_bus(node)
            assert await driver.pool.restart()
            with pytest.raises(DriverError, match=f"GPU 0 is not {first.uuid} any more but"):
                await driver.apply(ResetGpu(first.uuid, "MIG mode is pending"))
            assert not called.exists(), f"{second.uuid} was reset in its place"


async def test_a_gpu_that_is_gone_after_its_reset_was_not_reset(tmp_path: Path) -> None:
    with simulated("a100-40gb:2") as node:
        async with under_reset(tmp_path) as (_, gpu, reset, go):
            fall_off_the_bus(node)
            go.touch()
            with pytest.raises(DriverError, match=f"not {gpu.uuid} any more but GPU-"):
                await reset


async def test_a_gpu_that_does_not_answer_after_its_reset_was_not_reset(tmp_path: Path) -> None:
    with simulated("a100-40gb:2") as node:
        async with under_reset(tmp_path) as (_, _, reset, go):
            node.inject("nvmlDeviceGetMigMode", error="GPU_IS_LOST", gpu=0, times=None)
            go.touch()
            with pytest.raises(DriverError, match=r"was reset, but then .*fallen off the bus"):
                await reset


async def test_gpus_are_reset_after_an_nvml_that_would_not_shut_down(node: SimulatedNode) -> None:
    """Counted once too often, it would stay open, and the driver would reset no GPU any more."""
    async with driver_with(SMI) as driver:
        gpu = (await driver.observe()).gpus[0]
        node.inject("nvmlShutdown", error="UNKNOWN", times=1)
        with pytest.raises(DriverError, match="nvmlShutdown"):
            await driver.apply(ResetGpu(gpu.uuid, ""))
        assert (await driver.observe()).gpus[0] == gpu
        await driver.apply(ResetGpu(gpu.uuid, ""))


async def test_a_gpu_in_use_is_not_reset(node: SimulatedNode) -> None:
    async with driver_with(["false"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        process = node.occupy(0)
        with pytest.raises(GpuInUse, match=f"not proven idle: pid {process.pid}"):
            await driver.apply(ResetGpu(gpu.uuid, ""))


async def test_a_gpu_whose_users_are_unknown_is_not_reset(node: SimulatedNode) -> None:
    async with driver_with(["false"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMigMode"):
            node.inject(function, error="UNKNOWN", times=1)
            with pytest.raises(GpuInUse, match=f"not proven idle: .*{function}"):
                await driver.apply(ResetGpu(gpu.uuid, ""))


async def test_a_reset_that_fails_is_reported_and_nvml_works_again(node: SimulatedNode) -> None:
    async with driver_with(["false"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        with pytest.raises(DriverError, match=r"GPU 0: .*--gpu-reset -i .* ended with 1"):
            await driver.apply(ResetGpu(gpu.uuid, ""))
        again = (await driver.observe()).gpus[0]
        assert "ended with 1" in again.no_reset
        assert replace(again, no_reset="") == gpu


async def test_a_reset_that_changes_nothing_is_found_out(node: SimulatedNode) -> None:
    async with driver_with(["true"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        await driver.apply(enable(gpu))
        with pytest.raises(DriverError, match="the MIG mode is still pending"):
            await driver.apply(ResetGpu(gpu.uuid, ""))


async def test_a_cancelled_reset_is_finished_first(tmp_path: Path) -> None:
    with simulated("a100-40gb:1"):
        async with under_reset(tmp_path) as (driver, gpu, reset, go):
            reset.cancel()
            await asyncio.sleep(0.02)
            assert not reset.done()
            go.touch()
            with pytest.raises(asyncio.CancelledError):
                await reset
            assert (await driver.observe()).gpus[0] == gpu


async def test_while_another_gpu_hangs_nothing_is_reset() -> None:
    """NVML cannot be shut down under its call."""
    with simulated("a100-40gb:2") as node:
        async with Driver(
            observe_deadline=quick(), step_deadline=30, nvidia_smi=["true"]
        ) as driver:
            first, second = (await driver.observe()).gpus
            node.inject("nvmlDeviceGetMigMode", gpu=1, hang=True)
            assert (await driver.observe_gpu(second.uuid)).access is Access.UNKNOWN
            with pytest.raises(DriverError, match="another GPU hangs in the driver"):
                await driver.apply(ResetGpu(first.uuid, ""))
            node.clear_faults()
            await settled(driver)
