"""Steps come to their ends, whatever happens meanwhile; resets are for the idle."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.errors import DeadlineExceeded, DriverError, GpuInUse
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import Access, MigMode, Placement
from nodeagent.plan.steps import ResetGpu, SetMigMode
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.structs import replace
from tests.gpu.hanging import QUICK, settled
from tests.gpu.steps_of import create, destroy, enable, laid_out, layout
from tests.machine_load import stretched


async def test_a_step_needs_no_observation_before(node: SimulatedNode) -> None:
    """The agent may have been started just now."""
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        uuid = (await driver.observe()).gpus[0].uuid
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        await driver.apply(SetMigMode(uuid, enabled=True, reason=""))
        assert (await driver.observe_gpu(uuid)).mig == MigMode(current=True, pending=True)


async def test_a_step_that_is_cancelled_is_finished_first(
    driver: Driver, node: SimulatedNode
) -> None:
    """SIGTERM in the middle of a creation leaves no half-made instance."""
    gpu = await laid_out(driver, 0)
    hang = node.inject("nvmlDeviceCreateGpuInstanceWithPlacement", hang=True)
    step = asyncio.create_task(driver.apply(create(gpu, "3g.40gb", 0)))
    async with asyncio.timeout(stretched(30)):
        while hang.times:
            await asyncio.sleep(0.001)
    step.cancel()
    await asyncio.sleep(0.02)
    assert not step.done()
    node.clear_faults()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert layout(await driver.observe_gpu(gpu.uuid)) == {Placement(0, 4): ("3g.40gb",)}


async def test_a_step_that_hangs_ends_at_its_deadline(hasty: Driver, node: SimulatedNode) -> None:
    """And its GPU is unknown until the call returns; then what came of it is seen."""
    gpu = await laid_out(hasty, 0)
    node.inject("nvmlGpuInstanceCreateComputeInstance", hang=True)
    with pytest.raises(DeadlineExceeded, match=r"creating 3g\.40gb at 0:4 did not return"):
        await hasty.apply(create(gpu, "3g.40gb", 0))
    assert (await hasty.observe_gpu(gpu.uuid)).access is Access.UNKNOWN
    node.clear_faults()
    await settled(hasty)
    assert layout(await hasty.observe_gpu(gpu.uuid)) == {Placement(0, 4): ("3g.40gb",)}


async def test_errors_name_the_gpu(driver: Driver) -> None:
    """A node has several."""
    gpu = await laid_out(driver, 1, at0="7g.80gb")
    with pytest.raises(DriverError, match=r"^GPU 1: the GPU has no free room"):
        await driver.apply(create(gpu, "1g.10gb", 0))


# --- reset ----------------------------------------------------------------------------------------

RESET = """\
import sys
from pathlib import Path
from nodeagent.simulation import simulated
assert sys.argv[2:4] == ["--gpu-reset", "-i"], sys.argv
with simulated(state=Path(sys.argv[1])) as node:
    node.reset(node.find(sys.argv[4])[0].index)
"""


@pytest.fixture
def ampere(tmp_path: Path) -> Iterator[tuple[SimulatedNode, list[str]]]:
    """A node that other processes share, and the nvidia-smi that resets its GPUs."""
    state, script = tmp_path / "state", tmp_path / "smi.py"
    script.write_text(RESET)
    switches = Switches(reset_needs_nvml_closed=True)
    with simulated("a100-40gb:2", state=state, switches=switches) as node:
        yield node, [sys.executable, str(script), str(state)]


@pytest.fixture(autouse=True)
def _package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *sys.path[:1]]))


async def test_a_pending_mode_becomes_current_with_a_reset(
    ampere: tuple[SimulatedNode, list[str]],
) -> None:
    """The GPU is let go for it by this process too, and the other GPU is as before."""
    _, smi = ampere
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
        gpu, other = (await driver.observe()).gpus
        await driver.apply(enable(gpu))
        await driver.apply(ResetGpu(gpu.uuid, "MIG mode is pending"))
        after = await driver.observe()
        assert after.gpus[0].mig == MigMode(current=True, pending=True)
        assert after.gpus[1] == other
        assert layout(await laid_out(driver, 0, at0="3g.20gb")) == {Placement(0, 4): ("3g.20gb",)}


async def test_a_reset_between_the_steps_of_another_gpu(
    ampere: tuple[SimulatedNode, list[str]],
) -> None:
    """NVML is started anew for it; what was planned for the other GPU goes on."""
    _, smi = ampere
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
        for gpu in (await driver.observe()).gpus:
            await driver.apply(enable(gpu))
        first, second = (await driver.observe()).gpus
        await driver.apply(ResetGpu(first.uuid, "MIG mode is pending"))
        await driver.apply(ResetGpu(second.uuid, "MIG mode is pending"))
        await driver.apply(create(first, "3g.20gb", 0))
        first = await driver.observe_gpu(first.uuid)
        await driver.apply(ResetGpu(second.uuid, ""))
        await driver.apply(destroy(first, first.instances[0]))
        assert layout(await driver.observe_gpu(first.uuid)) == {}


async def test_a_gpu_that_has_another_number_by_now_is_not_reset(tmp_path: Path) -> None:
    """One fell off the bus during another's reset, and those behind it moved up."""
    called = tmp_path / "called"
    smi = [sys.executable, "-c", f"import pathlib; pathlib.Path({str(called)!r}).touch()"]
    with simulated("a100-40gb:2") as node:
        async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
            first, second = (await driver.observe()).gpus
            node.cards = node.cards[1:]
            node.cards[0].index = 0
            assert await driver.pool.restart()
            with pytest.raises(DriverError, match=f"GPU 0 is not {first.uuid} any more but"):
                await driver.apply(ResetGpu(first.uuid, "MIG mode is pending"))
            assert not called.exists(), f"{second.uuid} was reset in its place"


async def test_a_gpu_that_is_gone_after_its_reset_was_not_reset(tmp_path: Path) -> None:
    """Another has its number by then, and answers."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    smi = ["sh", "-c", f"touch {begun}; while [ ! -e {go} ]; do sleep 0.01; done"]
    with simulated("a100-40gb:2") as node:
        async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
            first, second = (await driver.observe()).gpus
            reset = asyncio.create_task(driver.apply(ResetGpu(first.uuid, "")))
            async with asyncio.timeout(stretched(30)):
                while not begun.exists():
                    await asyncio.sleep(0.01)
            node.cards = node.cards[1:]
            node.cards[0].index = 0
            go.touch()
            with pytest.raises(DriverError, match=f"not {first.uuid} any more but {second.uuid}"):
                await reset


async def test_a_gpu_that_does_not_answer_after_its_reset_was_not_reset(tmp_path: Path) -> None:
    """Whatever nvidia-smi says of it."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    smi = ["sh", "-c", f"touch {begun}; while [ ! -e {go} ]; do sleep 0.01; done"]
    with simulated("a100-40gb:2") as node:
        async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
            gpu = (await driver.observe()).gpus[0]
            reset = asyncio.create_task(driver.apply(ResetGpu(gpu.uuid, "")))
            async with asyncio.timeout(stretched(30)):
                while not begun.exists():
                    await asyncio.sleep(0.01)
            node.inject("nvmlDeviceGetMigMode", error="GPU_IS_LOST", gpu=0, times=None)
            go.touch()
            with pytest.raises(DriverError, match=r"was reset, but then .*fallen off the bus"):
                await reset


async def test_after_an_nvml_that_would_not_shut_down_gpus_are_reset_again(
    ampere: tuple[SimulatedNode, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted once too often, it would stay open, and the driver would reset no GPU any more."""
    node, _ = ampere
    monkeypatch.setenv("NODEAGENT_SIMULATED_STATE", str(tmp_path / "state"))
    smi = [sys.executable, "-m", "nodeagent.simulation.nvidia_smi"]  # which insists on that
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
        gpu = (await driver.observe()).gpus[0]
        node.inject("nvmlShutdown", error="UNKNOWN", times=1)
        with pytest.raises(DriverError, match="nvmlShutdown"):
            await driver.apply(ResetGpu(gpu.uuid, ""))
        assert (await driver.observe()).gpus[0] == gpu
        await driver.apply(ResetGpu(gpu.uuid, ""))


async def test_a_gpu_in_use_is_not_reset(ampere: tuple[SimulatedNode, list[str]]) -> None:
    """It is looked at right before; the process is named."""
    node, _ = ampere
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=["false"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        process = node.occupy(0)
        with pytest.raises(GpuInUse, match=f"not proven idle: pid {process.pid}"):
            await driver.apply(ResetGpu(gpu.uuid, ""))


async def test_a_gpu_whose_users_are_unknown_is_not_reset(
    ampere: tuple[SimulatedNode, list[str]],
) -> None:
    """Nor one that does not answer."""
    node, _ = ampere
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=["false"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMigMode"):
            node.inject(function, error="UNKNOWN", times=1)
            with pytest.raises(GpuInUse, match=f"not proven idle: .*{function}"):
                await driver.apply(ResetGpu(gpu.uuid, ""))


async def test_a_reset_that_fails_is_reported_and_nvml_works_again(
    ampere: tuple[SimulatedNode, list[str]],
) -> None:
    """With what the program said, which is remembered as the machine's answer."""
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=["false"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        with pytest.raises(DriverError, match=r"GPU 0: .*--gpu-reset -i .* ended with 1"):
            await driver.apply(ResetGpu(gpu.uuid, ""))
        again = (await driver.observe()).gpus[0]
        assert "ended with 1" in again.no_reset
        assert replace(again, no_reset="") == gpu


async def test_a_reset_that_changes_nothing_is_found_out(
    ampere: tuple[SimulatedNode, list[str]],
) -> None:
    """The mode is read back."""
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=["true"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        await driver.apply(enable(gpu))
        with pytest.raises(DriverError, match="the MIG mode is still pending"):
            await driver.apply(ResetGpu(gpu.uuid, ""))


async def test_a_cancelled_reset_is_finished_first(tmp_path: Path) -> None:
    """NVML is started again before the cancellation goes on."""
    with simulated("a100-40gb:1"):
        begun, go = tmp_path / "begun", tmp_path / "go"
        smi = ["sh", "-c", f"touch {begun}; while [ ! -e {go} ]; do sleep 0.01; done"]
        async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
            gpu = (await driver.observe()).gpus[0]
            reset = asyncio.create_task(driver.apply(ResetGpu(gpu.uuid, "")))
            async with asyncio.timeout(stretched(30)):
                while not begun.exists():
                    await asyncio.sleep(0.01)
            reset.cancel()
            await asyncio.sleep(0.02)
            assert not reset.done()
            go.touch()
            with pytest.raises(asyncio.CancelledError):
                await reset
            assert (await driver.observe()).gpus[0] == gpu


async def test_while_another_gpu_hangs_nothing_is_reset(node: SimulatedNode) -> None:
    """NVML cannot be shut down under its call."""
    async with Driver(observe_deadline=QUICK, step_deadline=2, nvidia_smi=["true"]) as driver:
        first, second = (await driver.observe()).gpus
        node.inject("nvmlDeviceGetMigMode", gpu=1, hang=True)
        assert (await driver.observe_gpu(second.uuid)).access is Access.UNKNOWN
        with pytest.raises(DriverError, match="another GPU hangs in the driver"):
            await driver.apply(ResetGpu(first.uuid, ""))
        node.clear_faults()
        await settled(driver)
