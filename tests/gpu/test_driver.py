"""One GPU's trouble stays its own, the driver as a whole recovers, and resets are for the idle."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pynvml
import pytest

from nodeagent.errors import DeadlineExceeded, DriverError, DriverUnavailable, GpuInUse, GpuLost
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.usage import UsageProbe
from nodeagent.planning.observed import Access, MigMode, Placement
from nodeagent.planning.steps import ResetGpu, SetMigMode, StopMps
from nodeagent.simulation import SimulatedNode, Switches, simulated
from tests.gpu.steps_of import create, destroy, enable, laid_out, layout

QUICK = 0.15  # seconds; a deadline for calls that hang


@pytest.fixture
async def hasty(node: SimulatedNode) -> AsyncIterator[Driver]:
    """A driver with short deadlines; calls that hang are let go at the end."""
    async with Driver(observe_deadline=QUICK, step_deadline=QUICK) as driver:
        try:
            yield driver
        finally:
            node.clear_faults()
            await _settled(driver)


async def _settled(driver: Driver) -> None:
    for _ in range(100):
        if not any(worker.stuck for worker in driver._workers):
            return
        await asyncio.sleep(0.01)


# --- isolation ------------------------------------------------------------------------------------


async def test_a_gpu_that_hangs_leaves_the_others(hasty: Driver, node: SimulatedNode) -> None:
    """It is unknown with its last known picture; the other is observed and changed."""
    await laid_out(hasty, 1, at0="3g.40gb")
    before = (await hasty.observe()).gpus[1]
    node.inject("nvmlDeviceGetMigMode", gpu=1, hang=True)
    first, second = (await hasty.observe()).gpus
    assert first.access is Access.OK
    assert second.access is Access.UNKNOWN
    assert "did not return within" in second.access_reason
    assert second.instances == before.instances
    began = time.monotonic()
    assert "stuck" in (await hasty.observe_gpu(second.uuid)).access_reason
    with pytest.raises(DeadlineExceeded, match=r"GPU 1 is stuck .* not even tried"):
        await hasty.apply(destroy(second, second.instances[0]))
    assert time.monotonic() - began < QUICK
    assert layout(await laid_out(hasty, 0, at4="3g.40gb")) == {Placement(4, 4): ("3g.40gb",)}


async def test_a_gpu_that_hung_comes_back_by_itself(hasty: Driver, node: SimulatedNode) -> None:
    """As soon as its call returns."""
    before = (await hasty.observe()).gpus[0]
    node.inject("nvmlDeviceGetMigMode", gpu=0, hang=True)
    assert (await hasty.observe()).gpus[0].access is Access.UNKNOWN
    node.clear_faults()
    await _settled(hasty)
    assert (await hasty.observe()).gpus[0] == before


async def test_all_gpus_hanging_is_told_for_each(hasty: Driver, node: SimulatedNode) -> None:
    """NVML is not shut down under calls that are still inside."""
    await hasty.observe()
    node.inject("nvmlDeviceGetMigMode", hang=True, times=None)
    seen = (await hasty.observe()).gpus
    assert [gpu.access for gpu in seen] == [Access.UNKNOWN] * 2
    assert node.journal.total("nvmlShutdown") == 0


async def test_a_lost_gpu_is_told_as_lost(driver: Driver, node: SimulatedNode) -> None:
    """With what was last known of it; steps are refused, the other GPU is well."""
    before = await laid_out(driver, 0, at0="3g.40gb")
    node.lose(0)
    first, second = (await driver.observe()).gpus
    assert first.access is Access.LOST
    assert "fallen off the bus" in first.access_reason
    assert (first.uuid, first.instances) == (before.uuid, before.instances)
    assert second.access is Access.OK
    with pytest.raises(GpuLost, match="GPU 0: "):
        await driver.apply(destroy(before, before.instances[0]))


@pytest.mark.parametrize("code", ["UNKNOWN", "NO_PERMISSION", "IRQ_ISSUE", "CORRUPTED_INFOROM"])
async def test_a_gpu_whose_query_fails_is_unknown(
    driver: Driver, node: SimulatedNode, code: str
) -> None:
    """And well again when the query works again."""
    before = (await driver.observe()).gpus
    node.inject("nvmlDeviceGetMigMode", gpu=0, error=code)
    first, second = (await driver.observe()).gpus
    assert first.access is Access.UNKNOWN
    assert "nvmlDeviceGetMigMode" in first.access_reason
    assert second == before[1]
    assert (await driver.observe()).gpus == before


async def test_a_gpu_that_cannot_even_be_identified_is_shown(node: SimulatedNode) -> None:
    """Without UUID, at its index, with the reason."""
    node.inject("nvmlDeviceGetHandleByIndex_v2", gpu=1, error="UNKNOWN", times=None)
    node.inject("nvmlDeviceGetUUID", gpu=1, error="UNKNOWN", times=None)
    async with Driver(observe_deadline=2, step_deadline=2) as driver:
        first, second = (await driver.observe()).gpus
    assert first.access is Access.OK
    assert (second.index, second.uuid, second.access) == (1, "", Access.UNKNOWN)
    assert "UNKNOWN" in second.access_reason.upper()


async def test_one_gpu_of_the_node_is_observed_alone(driver: Driver, node: SimulatedNode) -> None:
    """The others are not asked anything."""
    gpu = (await driver.observe()).gpus[1]
    node.journal.clear()
    assert await driver.observe_gpu(gpu.uuid) == gpu
    assert {call.gpu for call in node.journal.calls} == {1}


async def test_a_gpu_that_is_not_there_is_told(driver: Driver) -> None:
    """For observing and for steps alike."""
    with pytest.raises(DriverError, match="the driver knows no GPU GPU-nowhere"):
        await driver.observe_gpu("GPU-nowhere")
    with pytest.raises(DriverError, match="the driver knows no GPU GPU-nowhere"):
        await driver.apply(SetMigMode("GPU-nowhere", enabled=True, reason=""))


async def test_gpus_are_observed_side_by_side(node: SimulatedNode) -> None:
    """Two GPUs take as long as one."""
    node.inject("nvmlDeviceGetMigMode", delay=1.0, times=2)
    async with Driver(observe_deadline=5, step_deadline=5) as driver:
        began = time.monotonic()
        await driver.observe()
        assert time.monotonic() - began < 1.9


# --- steps ----------------------------------------------------------------------------------------


async def test_a_step_needs_no_observation_before(node: SimulatedNode) -> None:
    """The agent may have been started just now."""
    async with Driver(observe_deadline=2, step_deadline=2) as driver:
        uuid = (await driver.observe()).gpus[0].uuid
    async with Driver(observe_deadline=2, step_deadline=2) as driver:
        await driver.apply(SetMigMode(uuid, enabled=True, reason=""))
        assert (await driver.observe_gpu(uuid)).mig == MigMode(current=True, pending=True)


async def test_a_step_that_is_cancelled_is_finished_first(
    driver: Driver, node: SimulatedNode
) -> None:
    """SIGTERM in the middle of a creation leaves no half-made instance."""
    gpu = await laid_out(driver, 0)
    node.inject("nvmlDeviceCreateGpuInstanceWithPlacement", delay=0.1)
    step = asyncio.create_task(driver.apply(create(gpu, "3g.40gb", 0)))
    await asyncio.sleep(0.03)
    step.cancel()
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
    await _settled(hasty)
    assert layout(await hasty.observe_gpu(gpu.uuid)) == {Placement(0, 4): ("3g.40gb",)}


async def test_errors_name_the_gpu(driver: Driver) -> None:
    """A node has several."""
    gpu = await laid_out(driver, 1, at0="7g.80gb")
    with pytest.raises(DriverError, match=r"^GPU 1: the GPU has no free room"):
        await driver.apply(create(gpu, "1g.10gb", 0))


# --- the driver as a whole ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("DRIVER_NOT_LOADED", "kernel driver is not loaded"),
        ("NO_PERMISSION", "does not permit"),
        ("LIB_RM_VERSION_MISMATCH", "of different versions"),
    ],
)
async def test_a_driver_that_cannot_be_used_is_told_at_the_start(
    node: SimulatedNode, code: str, words: str
) -> None:
    """In one sentence, of one kind whatever the code."""
    node.inject("nvmlInitWithFlags", error=code)
    with pytest.raises(DriverUnavailable, match=words):
        async with Driver(observe_deadline=2, step_deadline=2):
            pytest.fail("it must not begin")


async def test_a_driver_that_hangs_at_the_start_is_told(node: SimulatedNode) -> None:
    """The command ends instead of hanging with it; an NVML that starts late is shut down."""
    before = set(threading.enumerate())
    node.inject("nvmlInitWithFlags", hang=True)
    with pytest.raises(DriverUnavailable, match="starting NVML did not return within"):
        async with Driver(observe_deadline=QUICK, step_deadline=2):
            pytest.fail("it must not begin")
    node.clear_faults()
    for thread in set(threading.enumerate()) - before:
        await asyncio.to_thread(thread.join)
    assert node.journal.total("nvmlShutdown") == 1


@pytest.mark.parametrize("function", ["nvmlDeviceGetMigMode", "nvmlDeviceGetCount_v2"])
async def test_who_leaves_a_driver_that_hangs_does_not_wait_for_it(
    node: SimulatedNode, function: str
) -> None:
    """Ctrl-C during a look at it ends soon, however patient the deadlines are."""
    clock = asyncio.get_running_loop().time

    async def look() -> None:
        async with Driver(observe_deadline=60, step_deadline=60) as driver:
            await driver.observe()

    node.inject(function, hang=True, times=None)
    looking = asyncio.create_task(look())
    await asyncio.sleep(0.1)
    began = clock()
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert clock() - began < 3
    assert node.journal.total("nvmlShutdown") == 0
    node.clear_faults()


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
async def test_entered_again_a_driver_that_hangs_is_known(
    node: SimulatedNode, function: str
) -> None:
    """The call is not repeated in one more thread, and afterwards all is well."""
    driver = Driver(observe_deadline=QUICK, step_deadline=2)

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
    assert len(words) == 2  # when it began to hang, and ever since: told once each
    node.clear_faults()
    for _ in range(100):
        if not driver._session._worker.stuck:
            break
        await asyncio.sleep(0.01)
    assert await look() == 2
    assert await look() == 2
    assert pynvml._nvmlLib_refcount == 0


async def test_a_version_that_is_not_told_stops_nothing(node: SimulatedNode) -> None:
    """It is only shown; whatever else fails then will say so itself."""
    node.inject("nvmlSystemGetDriverVersion", error="UNKNOWN", times=None)
    async with Driver(observe_deadline=2, step_deadline=2) as driver:
        seen = await driver.observe()
    assert seen.driver_version == ""
    assert len(seen.gpus) == 2


async def test_nvml_is_shut_down_as_often_as_it_was_started(node: SimulatedNode) -> None:
    """Also when the observation restarted it in between."""
    async with Driver(observe_deadline=2, step_deadline=2) as driver:
        await driver.observe()
        node.inject("nvmlDeviceGetMigMode", error="UNKNOWN", times=2)
        assert all(gpu.access is Access.OK for gpu in (await driver.observe()).gpus)
    assert node.journal.total("nvmlInitWithFlags") == 2
    assert node.journal.total("nvmlShutdown") == 2
    assert pynvml._nvmlLib_refcount == 0


async def test_a_driver_that_is_unloaded_and_loaded_again_is_found_again(
    driver: Driver, node: SimulatedNode
) -> None:
    """In between the GPUs are unknown, with what was last known of them."""
    before = (await driver.observe()).gpus
    node.unload_driver()
    seen = (await driver.observe()).gpus
    assert [gpu.uuid for gpu in seen] == [gpu.uuid for gpu in before]
    assert all(gpu.access is Access.UNKNOWN for gpu in seen)
    assert "kernel driver is not loaded" in seen[0].access_reason
    node.load_driver()
    assert (await driver.observe()).gpus == before


async def test_a_reboot_is_survived(driver: Driver, node: SimulatedNode) -> None:
    """Handles have gone stale, the mode and the instances are gone on Hopper."""
    await laid_out(driver, 0, at0="3g.40gb")
    node.reboot()
    gpu = (await driver.observe()).gpus[0]
    assert gpu.access is Access.OK
    assert gpu.mig == MigMode(current=False, pending=False)
    assert gpu.instances == ()


async def test_a_driver_that_never_told_of_a_gpu_raises(node: SimulatedNode) -> None:
    """There is nothing to show as unknown."""
    async with Driver(observe_deadline=2, step_deadline=2) as driver:
        node.inject("nvmlDeviceGetCount_v2", error="UNKNOWN", times=None)
        with pytest.raises(DriverError, match="nvmlDeviceGetCount"):
            await driver.observe()


# --- users of other sources -----------------------------------------------------------------------


async def test_open_capability_files_are_in_the_picture(tmp_path: Path) -> None:
    """They come from the machine's /proc and are mapped by the GPU's device file."""
    proc = tmp_path / "proc"
    fds = proc / "4711/fd"
    fds.mkdir(parents=True)
    (proc / "1").mkdir()
    minors = proc / "driver/nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True)
    with simulated("h100-80gb:1"):
        usage = UsageProbe(proc)
        async with Driver(observe_deadline=2, step_deadline=2, usage=usage) as driver:
            gpu = await laid_out(driver, 0, at0="3g.40gb", at4="3g.40gb")
            assert gpu.idle
            (fds / "7").symlink_to("/dev/nvidia-caps/nvidia-cap13")
            minors.write_text(f"gpu0/gi{gpu.instances[1].id}/ci0/access 13\n")
            for seen in (await driver.observe_gpu(gpu.uuid), (await driver.observe()).gpus[0]):
                assert not seen.instances[0].in_use
                (user,) = seen.instances[1].compute[0].usage.processes
                assert (user.pid, user.source) == (4711, "capability")
            with pytest.raises(GpuInUse, match="pid 4711"):
                await driver.apply(destroy(gpu, gpu.instances[1]))


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
    async with Driver(observe_deadline=5, step_deadline=5, nvidia_smi=smi) as driver:
        gpu, other = (await driver.observe()).gpus
        await driver.apply(enable(gpu))
        await driver.apply(ResetGpu(gpu.uuid, "MIG mode is pending"))
        after = await driver.observe()
        assert after.gpus[0].mig == MigMode(current=True, pending=True)
        assert after.gpus[1] == other
        assert layout(await laid_out(driver, 0, at0="3g.20gb")) == {Placement(0, 4): ("3g.20gb",)}


async def test_a_gpu_in_use_is_not_reset(ampere: tuple[SimulatedNode, list[str]]) -> None:
    """It is looked at right before; the process is named."""
    node, _ = ampere
    async with Driver(observe_deadline=5, step_deadline=5, nvidia_smi=["false"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        process = node.occupy(0)
        with pytest.raises(GpuInUse, match=f"not proven idle: pid {process.pid}"):
            await driver.apply(ResetGpu(gpu.uuid, ""))


async def test_a_gpu_whose_users_are_unknown_is_not_reset(
    ampere: tuple[SimulatedNode, list[str]],
) -> None:
    """Nor one that does not answer."""
    node, _ = ampere
    async with Driver(observe_deadline=5, step_deadline=5, nvidia_smi=["false"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMigMode"):
            node.inject(function, error="UNKNOWN", times=1)
            with pytest.raises(GpuInUse, match=f"not proven idle: .*{function}"):
                await driver.apply(ResetGpu(gpu.uuid, ""))


async def test_a_reset_that_fails_is_told_and_nvml_works_again(
    ampere: tuple[SimulatedNode, list[str]],
) -> None:
    """With what the program said."""
    async with Driver(observe_deadline=5, step_deadline=5, nvidia_smi=["false"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        with pytest.raises(DriverError, match=r"GPU 0: .*--gpu-reset -i .* ended with 1"):
            await driver.apply(ResetGpu(gpu.uuid, ""))
        assert (await driver.observe()).gpus[0] == gpu


async def test_a_reset_that_changes_nothing_is_found_out(
    ampere: tuple[SimulatedNode, list[str]],
) -> None:
    """The mode is read back."""
    async with Driver(observe_deadline=5, step_deadline=5, nvidia_smi=["true"]) as driver:
        gpu = (await driver.observe()).gpus[0]
        await driver.apply(enable(gpu))
        with pytest.raises(DriverError, match="its MIG mode is still pending"):
            await driver.apply(ResetGpu(gpu.uuid, ""))


async def test_a_cancelled_reset_is_finished_first(tmp_path: Path) -> None:
    """NVML is started again before the cancellation goes on."""
    with simulated("a100-40gb:1"):
        smi = ["sh", "-c", "sleep 0.2"]
        async with Driver(observe_deadline=5, step_deadline=5, nvidia_smi=smi) as driver:
            gpu = (await driver.observe()).gpus[0]
            reset = asyncio.create_task(driver.apply(ResetGpu(gpu.uuid, "")))
            await asyncio.sleep(0.05)
            reset.cancel()
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
        await _settled(driver)


# --- what is no matter of the driver --------------------------------------------------------------


async def test_a_step_of_an_mps_daemon_is_refused(driver: Driver, node: SimulatedNode) -> None:
    """It goes to who supervises daemons; here it would be taken for done."""
    gpu = (await driver.observe()).gpus[0]
    calls = node.journal.total()
    with pytest.raises(DriverError, match="by who has only the driver"):
        await driver.apply(StopMps(gpu.uuid, gpu.uuid, "a test wants it"))
    assert node.journal.total() == calls


# --- what it costs to have it ---------------------------------------------------------------------


def test_importing_the_driver_is_cheap() -> None:
    """Commands that only plan pay for it too."""
    heavy = "psutil pydantic aiohttp rich structlog yaml concurrent.futures.thread"
    program = (
        f"import nodeagent.gpu.driver, sys; print([m for m in {heavy.split()} if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"
