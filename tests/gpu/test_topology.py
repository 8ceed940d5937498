import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.gpu.topology import Topology
from nodeagent.plan.observed import Access, Gpu, NvLinks
from nodeagent.simulation import SimulatedNode, Switches, simulated
from tests.gpu.steps_of import enable
from tests.machine_load import stretched

LOOKS = 100
LINKS = "nvmlDeviceGetNvLink*"
NUMA = "nvmlDeviceGetMemoryAffinity"
SWITCHED = NvLinks(18, 18, (("nvswitch", 18),))


@asynccontextmanager
async def reading(
    boards: str, *, sysfs: Path = Path("/nowhere"), patience: float = 5.0, **options: Any
) -> AsyncIterator[tuple[Driver, SimulatedNode]]:
    """A driver that reads the topology of a simulated node; calls that hang go at the end."""
    topology = Topology(patience=patience, sysfs=sysfs)
    with simulated(boards, **options) as node:
        async with Driver(observe_deadline=30, step_deadline=30, topology=topology) as driver:
            try:
                yield driver, node
            finally:
                node.clear_faults()


async def gpus_of(boards: str, **options: Any) -> tuple[Gpu, ...]:
    async with reading(boards, **options) as (driver, _):
        return (await driver.observe()).gpus


# --- what is read ---------------------------------------------------------------------------------


async def test_gpus_behind_switches() -> None:
    gpus = await gpus_of("h100-80gb:4")
    assert [gpu.nvlink for gpu in gpus] == [SWITCHED] * 4
    assert [gpu.numa_node for gpu in gpus] == [0, 0, 1, 1]


async def test_gpus_linked_in_pairs_know_each_other() -> None:
    bridge = {"h100-nvl": {"nvlinks": 12, "nvlink_peer": "pair"}}
    first, second, alone = await gpus_of("h100-nvl:3", overrides=bridge)
    assert first.nvlink == NvLinks(12, 12, ((second.uuid, 12),))
    assert second.nvlink == NvLinks(12, 12, ((first.uuid, 12),))
    assert alone.nvlink == NvLinks(12, 0)


@pytest.mark.parametrize(
    ("function", "peer"),
    [("nvmlDeviceGetNvLinkRemoteDeviceType", "other"), ("nvmlDeviceGetNvLinkState", "")],
)
async def test_an_old_driver_reports_less(function: str, peer: str) -> None:
    switches = Switches(missing_functions=(function,))
    (gpu,) = await gpus_of("h100-80gb", switches=switches)
    assert gpu.nvlink == (NvLinks(18, 18, ((peer, 18),)) if peer else None)
    assert gpu.numa_node == 0


@pytest.mark.parametrize(
    ("reported", "node"), [("1\n", 1), ("-1\n", None), ("?", None), (None, None)]
)
async def test_the_kernel_reports_the_numa_node_where_the_driver_does_not(
    tmp_path: Path, reported: str | None, node: int | None
) -> None:
    """-1 is its way to say that it does not know."""
    device = tmp_path / "bus/pci/devices/0000:1a:00.0"
    device.mkdir(parents=True)
    if reported is not None:
        (device / "numa_node").write_text(reported)
    switches = Switches(missing_functions=(NUMA,))
    (gpu,) = await gpus_of("t4", sysfs=tmp_path, switches=switches)
    assert gpu.numa_node == node


# --- how often ------------------------------------------------------------------------------------


async def test_it_is_read_once() -> None:
    async with reading("h100-80gb:2") as (driver, node):
        first = await driver.observe()
        node.journal.clear()
        assert await driver.observe() == first
        assert await driver.observe_gpu(first.gpus[0].uuid) == first.gpus[0]
        assert node.journal.total(LINKS) == node.journal.total(NUMA) == 0


async def test_it_is_read_again_when_mig_mode_changed() -> None:
    async with reading("h100-80gb:2") as (driver, node):
        gpu = (await driver.observe()).gpus[0]
        await driver.apply(enable(gpu))
        node.journal.clear()
        assert (await driver.observe()).gpus[0].nvlink == SWITCHED
        assert node.journal.total(NUMA) == 1


async def test_it_is_read_again_when_nvml_was_started_again() -> None:
    async with reading("h100-80gb:2") as (driver, node):
        before = await driver.observe()
        node.inject("nvmlDeviceGetCount_v2", error="UNKNOWN")
        node.journal.clear()
        assert await driver.observe() == before
        assert node.journal.total("nvmlInit*") == 1
        assert node.journal.total(NUMA) == 2


# --- what goes wrong ------------------------------------------------------------------------------


async def test_a_failure_is_tried_again_a_few_times() -> None:
    async with reading("h100-80gb:2") as (driver, node):
        node.inject("nvmlDeviceGetNvLinkState", gpu=0, error="UNKNOWN", times=None)
        for _ in range(5):
            first, second = (await driver.observe()).gpus
            assert first.access is Access.OK
            assert (first.nvlink, second.nvlink) == (None, SWITCHED)
        assert sum(call.gpu == 0 for call in node.journal.named(NUMA)) == 3


async def test_slow_calls_hold_a_look_up_for_a_moment_together() -> None:
    async with reading("h100-80gb:8", patience=0.3) as (driver, node):
        node.inject(LINKS, delay=0.1, times=None)
        assert all(gpu.answers for gpu in (await driver.observe()).gpus)
        assert node.journal.total(LINKS) <= 3


async def test_a_call_that_hangs_holds_up_one_look_for_a_moment() -> None:
    patience = stretched(0.3)
    async with reading("h100-80gb:1", patience=patience) as (driver, node):
        node.inject("nvmlDeviceGetNvLinkState", hang=True)
        (gpu,) = (await driver.observe()).gpus
        assert (gpu.access, gpu.nvlink) == (Access.OK, None)
        began = time.monotonic()
        for _ in range(LOOKS):
            (gpu,) = (await driver.observe()).gpus
            assert (gpu.access, gpu.nvlink) == (Access.OK, None)
        assert time.monotonic() - began < LOOKS * patience  # each that waits adds this
        node.clear_faults()
        async with asyncio.timeout(stretched(30)):
            while (await driver.observe()).gpus[0].nvlink != SWITCHED:
                await asyncio.sleep(0.01)
