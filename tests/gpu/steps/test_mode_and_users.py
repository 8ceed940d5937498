"""A process that came since the plan keeps the mode as it is, on or off."""

from __future__ import annotations

import pytest

from nodeagent.errors import GpuInUse
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import MigMode
from nodeagent.simulation import Switches, simulated
from tests.gpu.steps_of import disable, enable, laid_out

SET = "nvmlDeviceSetMigMode"
LISTS = "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.mark.parametrize("board", ["a100-40gb:1", "h100-80gb:1"])
@pytest.mark.parametrize("known", [True, False])
async def test_mig_is_not_switched_on_under_a_process(board: str, known: bool) -> None:
    """The driver of an Ampere card would take the mode, and the next reset would make it current;
    who cannot be found out counts as a user, too.
    """
    with simulated(board) as node:
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            gpu = (await driver.observe()).gpus[0]
            process = node.occupy(0)
            if not known:
                node.inject(LISTS, error="UNKNOWN", times=None)
            named = f"pid {process.pid}" if known else "unknown users"
            with pytest.raises(GpuInUse, match=f"its MIG mode is not changed.*{named}"):
                await driver.apply(enable(gpu))
            assert node.journal.total(SET) == 0
            assert (await driver.observe_gpu(gpu.uuid)).mig == MigMode(False, False)


async def test_mig_is_not_switched_off_under_a_process_of_no_instance() -> None:
    """It may be on any of them."""
    with simulated("h100-80gb:1", switches=Switches(disable_needs_no_instances=False)) as node:
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            gpu = await laid_out(driver, 0, at0="3g.40gb")
            process = node.occupy(0)
            with pytest.raises(GpuInUse, match=f"pid {process.pid}"):
                await driver.apply(disable(gpu))
            assert node.journal.total(SET) == 1
            assert len((await driver.observe_gpu(gpu.uuid)).instances) == 1
