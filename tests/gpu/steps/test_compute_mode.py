"""Compute mode is read off every device, set where it is meant, and costs no GPU its picture."""

from __future__ import annotations

import pynvml
import pytest

from nodeagent.errors import DriverError, NodeagentError
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.shares import ComputeMode
from nodeagent.plan.steps import SetComputeMode
from nodeagent.simulation import SimulatedNode, Switches, simulated
from tests.gpu.steps_of import REASON, compute_mode, laid_out

GET, SET = "nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode"
EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


def modes(gpu: Gpu) -> list[ComputeMode | None]:
    """Of the MIG devices, in order."""
    return [device.compute_mode for instance in gpu.instances for device in instance.compute]


@pytest.mark.parametrize("answer", ["NOT_SUPPORTED", "INVALID_ARGUMENT", "DEFAULT"])
async def test_a_gpu_in_mig_mode_is_not_asked(answer: str) -> None:
    """Whatever it would answer, the mode is one of its MIG devices."""
    with simulated("h100-80gb", switches=Switches(compute_mode_of_mig_parent=answer)) as node:
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            gpu = await laid_out(driver, 0, at0="1g.10gb")
            node.journal.clear()
            driver.details = frozenset({gpu.instances[0].compute[0].uuid})
            again = await driver.observe_gpu(gpu.uuid)
            assert again.compute_mode is None
            assert node.journal.total(GET) == 1
            with pytest.raises(NodeagentError):
                await driver.apply(compute_mode(gpu, EXCLUSIVE))


async def test_a_mode_that_is_there_already_is_not_set_again(
    driver: Driver, node: SimulatedNode
) -> None:
    """So a repeated step needs no privilege and disturbs no user."""
    gpu = (await driver.observe()).gpus[0]
    await driver.apply(compute_mode(gpu, ComputeMode.DEFAULT))
    assert node.journal.total(SET) == 0


@pytest.mark.parametrize(("mig", "error"), [(False, "NOT_SUPPORTED"), (True, "UNKNOWN")])
async def test_a_mode_that_is_not_reported_is_unknown_and_the_gpu_is_well(
    driver: Driver, node: SimulatedNode, error: str, mig: bool
) -> None:
    """It matters to MPS only; the layout and the users are seen all the same."""
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
    with simulated("h100-80gb", switches=Switches(mig_compute_modes=False)):
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            gpu = await laid_out(driver, 0, at0="1g.10gb")
            assert modes(gpu) == [None]
            with pytest.raises(
                NodeagentError, match=r"NotSupported, NVML code 3\]\), so it is not changed"
            ):
                await driver.apply(compute_mode(gpu, EXCLUSIVE, gpu.instances[0].compute[0]))


async def test_a_driver_that_forgets_the_mode_is_found_out(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports success all the same."""
    gpu = (await driver.observe()).gpus[0]
    monkeypatch.setitem(pynvml._nvmlGetFunctionPointer_cache, SET, lambda *_: 0)
    with pytest.raises(DriverError, match=r"was to become exclusiveProcess .* but it is default"):
        await driver.apply(compute_mode(gpu, EXCLUSIVE))


async def test_a_mode_that_is_not_read_back_is_not_called_set(
    driver: Driver, node: SimulatedNode
) -> None:
    """A driver that no longer reports it."""
    gpu = (await driver.observe()).gpus[0]
    node.inject(GET, error="UNKNOWN", skip=1, times=None)
    with pytest.raises(DriverError, match=GET):
        await driver.apply(compute_mode(gpu, EXCLUSIVE))
    assert node.cards[0].state.compute_mode == 3


async def test_a_mode_that_is_not_read_back_in_passing_is_read_again(
    driver: Driver, node: SimulatedNode
) -> None:
    """One error is no failure of the step."""
    gpu = (await driver.observe()).gpus[0]
    node.inject(GET, error="UNKNOWN", skip=1, times=2)
    await driver.apply(compute_mode(gpu, EXCLUSIVE))
    assert node.cards[0].state.compute_mode == 3


async def test_a_device_that_is_gone_or_not_made_is_named(driver: Driver) -> None:
    """Nothing else gets the mode in its place."""
    gpu = await laid_out(driver, 0, at0="1g.10gb")
    gone = SetComputeMode(gpu.uuid, "MIG-00000000-0000-0000-0000-000000000000", EXCLUSIVE, REASON)
    with pytest.raises(DriverError, match="there is no MIG device MIG-0000"):
        await driver.apply(gone)
    with pytest.raises(DriverError, match="there is no MIG device"):
        await driver.apply(SetComputeMode(gpu.uuid, "", EXCLUSIVE, REASON))
    assert modes(await driver.observe_gpu(gpu.uuid)) == [ComputeMode.DEFAULT]
