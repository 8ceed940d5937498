import pynvml
import pytest

from nodeagent.errors import DriverError, GpuInUse, NodeagentError
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import Access, Gpu, MigMode
from nodeagent.plan.shares import ComputeMode
from nodeagent.plan.steps import SetComputeMode
from nodeagent.simulation import SimulatedNode, Switches
from tests.gpu.steps_of import REASON, compute_mode, disable, enable, laid_out
from tests.rig import driving

GET, SET = "nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode"
EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


def modes(gpu: Gpu) -> list[ComputeMode | None]:
    return [device.compute_mode for instance in gpu.instances for device in instance.compute]


@pytest.mark.parametrize("answer", ["NOT_SUPPORTED", "INVALID_ARGUMENT", "DEFAULT"])
async def test_a_gpu_in_mig_mode_is_not_asked(answer: str) -> None:
    """Whatever it would answer, the mode is one of its MIG devices."""
    async with driving("h100-80gb", switches=Switches(compute_mode_of_mig_parent=answer)) as (
        driver,
        node,
    ):
        gpu = await laid_out(driver, 0, at0="1g.10gb")
        node.journal.clear()
        driver.details = frozenset({gpu.instances[0].compute[0].uuid})
        again = await driver.observe_gpu(gpu.uuid)
        assert again.compute_mode is None
        assert node.journal.total(GET) == 1
        with pytest.raises(NodeagentError):
            await driver.apply(compute_mode(gpu, EXCLUSIVE))


async def test_a_mode_that_is_there_is_not_set_again(driver: Driver, node: SimulatedNode) -> None:
    gpu = (await driver.observe()).gpus[0]
    await driver.apply(compute_mode(gpu, ComputeMode.DEFAULT))
    assert node.journal.total(SET) == 0


@pytest.mark.parametrize(("mig", "error"), [(False, "NOT_SUPPORTED"), (True, "UNKNOWN")])
async def test_a_mode_that_is_not_reported_is_unknown_and_the_gpu_is_well(
    driver: Driver, node: SimulatedNode, error: str, mig: bool
) -> None:
    if mig:
        await laid_out(driver, 0, at0="3g.40gb")
    node.inject(GET, error=error, times=None)
    gpu = (await driver.observe()).gpus[0]
    driver.details = frozenset(device.uuid for device in gpu.devices())
    gpu = await driver.observe_gpu(gpu.uuid)
    assert (gpu.access, gpu.compute_mode) == (Access.OK, None)
    assert gpu.usage.known
    assert modes(gpu) == [None] * mig


async def test_mig_devices_that_refuse_are_reported_as_such() -> None:
    """Nothing is changed that could not be restored."""
    async with driving("h100-80gb", switches=Switches(mig_compute_modes=False)) as (driver, _):
        gpu = await laid_out(driver, 0, at0="1g.10gb")
        assert modes(gpu) == [None]
        with pytest.raises(
            NodeagentError, match=r"NotSupported, NVML code 3\]\), so it is not changed"
        ):
            await driver.apply(compute_mode(gpu, EXCLUSIVE, gpu.instances[0].compute[0]))


async def test_a_driver_forgets_the_mode(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = (await driver.observe()).gpus[0]
    monkeypatch.setitem(pynvml._nvmlGetFunctionPointer_cache, SET, lambda *_: 0)
    with pytest.raises(DriverError, match=r"was to become exclusiveProcess .* but it is default"):
        await driver.apply(compute_mode(gpu, EXCLUSIVE))


async def test_a_mode_not_read_back_is_not_called_set(driver: Driver, node: SimulatedNode) -> None:
    gpu = (await driver.observe()).gpus[0]
    node.inject(GET, error="UNKNOWN", skip=1, times=None)
    with pytest.raises(DriverError, match=GET):
        await driver.apply(compute_mode(gpu, EXCLUSIVE))
    assert node.cards[0].state.compute_mode == 3


async def test_a_mode_is_read_back_more_than_once(driver: Driver, node: SimulatedNode) -> None:
    gpu = (await driver.observe()).gpus[0]
    node.inject(GET, error="UNKNOWN", skip=1, times=2)
    await driver.apply(compute_mode(gpu, EXCLUSIVE))
    assert node.cards[0].state.compute_mode == 3


async def test_a_device_that_is_gone_or_not_made_is_named(driver: Driver) -> None:
    gpu = await laid_out(driver, 0, at0="1g.10gb")
    gone = SetComputeMode(gpu.uuid, "MIG-00000000-0000-0000-0000-000000000000", EXCLUSIVE, REASON)
    with pytest.raises(DriverError, match="there is no MIG device MIG-0000"):
        await driver.apply(gone)
    with pytest.raises(DriverError, match="there is no MIG device"):
        await driver.apply(SetComputeMode(gpu.uuid, "", EXCLUSIVE, REASON))
    assert modes(await driver.observe_gpu(gpu.uuid)) == [ComputeMode.DEFAULT]


ON, OFF = MigMode(current=True, pending=True), MigMode(current=False, pending=False)


async def test_ampere_is_left_with_the_change_pending() -> None:
    """That is no error: the planner sees it in the next observation."""
    async with driving("a100-40gb:1") as (driver, _):
        gpu = (await driver.observe()).gpus[0]
        await driver.apply(enable(gpu))
        gpu = await driver.observe_gpu(gpu.uuid)
        assert gpu.mig == MigMode(current=False, pending=True)
        await driver.apply(disable(gpu))
        assert (await driver.observe_gpu(gpu.uuid)).mig == OFF


async def test_programs_that_hold_a_gpu_are_in_the_way(driver: Driver, node: SimulatedNode) -> None:
    """Monitoring agents, say, which no list has: the mode stays, and it is said what to do."""
    gpu = (await driver.observe()).gpus[0]
    node.inject("nvmlDeviceSetMigMode", error="IN_USE")
    with pytest.raises(GpuInUse, match="GPU 0: programs still hold the GPU"):
        await driver.apply(enable(gpu))
    mode = (await driver.observe_gpu(gpu.uuid)).mig
    assert mode is not None
    assert not mode.current


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("refuse", [True, False])
async def test_mig_is_not_switched_off_under_a_process(refuse: bool, whole: bool) -> None:
    """Whether the driver would refuse it or take the instances along: the agent looks first. Who is
    on the GPU as a whole may be on any of them.
    """
    switches = Switches(disable_needs_no_instances=refuse)
    async with driving("h100-80gb:1", switches=switches) as (driver, node):
        gpu = await laid_out(driver, 0, at0="3g.40gb")
        process = node.occupy(0 if whole else gpu.instances[0].compute[0].uuid)
        with pytest.raises(GpuInUse, match=f"pid {process.pid}"):
            await driver.apply(disable(gpu))
        assert node.journal.total("nvmlDeviceSetMigMode") == 1
        after = await driver.observe_gpu(gpu.uuid)
        assert after.mig == ON
        assert len(after.instances) == 1


async def test_a_mig_mode_that_cannot_be_read_back(driver: Driver, node: SimulatedNode) -> None:
    """The driver's success alone proves nothing."""
    gpu = (await driver.observe()).gpus[0]
    step = enable(gpu)
    await driver.apply(step)
    node.inject("nvmlDeviceGetMigMode", error="UNKNOWN", skip=1)
    with pytest.raises(DriverError, match="nvmlDeviceGetMigMode"):
        await driver.apply(disable(gpu))


# --- processes that came since the plan -----------------------------------------------------------

SET_MIG = "nvmlDeviceSetMigMode"
LISTS = "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.mark.parametrize("board", ["a100-40gb:1", "h100-80gb:1"])
@pytest.mark.parametrize("known", [True, False])
async def test_mig_is_not_switched_on_under_a_process(board: str, known: bool) -> None:
    """The driver of an Ampere card would take the mode, and the next reset would make it current;
    who cannot be found out counts as a user, too.
    """
    async with driving(board) as (driver, node):
        gpu = (await driver.observe()).gpus[0]
        process = node.occupy(0)
        if not known:
            node.inject(LISTS, error="UNKNOWN", times=None)
        named = f"pid {process.pid}" if known else "unknown users"
        with pytest.raises(GpuInUse, match=f"its MIG mode is not changed.*{named}"):
            await driver.apply(enable(gpu))
        assert node.journal.total(SET_MIG) == 0
        assert (await driver.observe_gpu(gpu.uuid)).mig == MigMode(False, False)
