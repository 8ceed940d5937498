"""What MPS clients use is reported by pid, of the device that was asked for."""

from __future__ import annotations

import pytest

from nodeagent.errors import DriverError
from nodeagent.gpu.driver import Driver
from nodeagent.simulation import SimulatedNode
from tests.gpu.steps_of import laid_out

GIB = 1 << 30
LIST = "nvmlDeviceGetMPSComputeRunningProcesses_v3"


async def test_clients_of_a_gpu(driver: Driver, node: SimulatedNode) -> None:
    """Other processes are none, nor are those of another GPU; unknown use is None."""
    gpu = (await driver.observe()).gpus[0]
    node.occupy(0, 4711, kind="mps", memory=GIB)
    node.occupy(0, 4712, kind="mps", memory=None)
    node.occupy(0, 4713, memory=GIB)
    node.occupy(1, 4714, kind="mps", memory=GIB)
    assert await driver.mps_memory(gpu.uuid) == {4711: GIB, 4712: None}


async def test_clients_of_a_mig_device(driver: Driver, node: SimulatedNode) -> None:
    """By its own UUID, and not its neighbour's."""
    gpu = await laid_out(driver, 1, at0="1g.10gb", at4="3g.40gb")
    first, second = (instance.compute[0].uuid for instance in gpu.instances)
    node.occupy(first, 4711, kind="mps", memory=GIB)
    assert await driver.mps_memory(first) == {4711: GIB}
    assert await driver.mps_memory(second) == {}


async def test_a_device_that_was_never_observed_is_named(driver: Driver) -> None:
    """As is one that went since."""
    gpu = await laid_out(driver, 0, at0="1g.10gb")
    with pytest.raises(DriverError, match="knows no device MIG-none"):
        await driver.mps_memory("MIG-none")
    assert await driver.mps_memory(gpu.instances[0].compute[0].uuid) == {}


async def test_a_failure_is_reported_of_the_gpu(driver: Driver, node: SimulatedNode) -> None:
    """And the next time it is asked anew."""
    gpu = (await driver.observe()).gpus[1]
    node.inject(LIST, error="UNKNOWN")
    with pytest.raises(DriverError, match=f"GPU 1: .*{LIST}"):
        await driver.mps_memory(gpu.uuid)
    assert await driver.mps_memory(gpu.uuid) == {}
