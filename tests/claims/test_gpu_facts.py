"""Versions, brands and roots of the PCI bus: read once, and never waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.claims.offering.devices import GpuFacts, pci_address
from nodeagent.claims.offering.gpu_facts import FactsReader
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import Access
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.structs import replace
from tests.rig import open_driver

BRAND = "nvmlDeviceGetBrand"


@asynccontextmanager
async def driver_of(boards: str, **switches: object) -> AsyncIterator[tuple[Driver, SimulatedNode]]:
    """An open driver."""
    known = Switches(**switches)  # type: ignore[arg-type]  # keys of Switches, by name
    with simulated(boards, switches=known) as node:
        async with open_driver() as driver:
            yield driver, node


async def test_facts_of_two_kinds(tmp_path: Path) -> None:
    """As NVIDIA's driver writes them, with what the kernel says of the bus."""
    async with driver_of("h100-80gb:1,t4:1") as (driver, _):
        gpus = (await driver.observe()).gpus
        for gpu, root in zip(gpus, ("pci0000:17", "pci0000:9d"), strict=True):
            address = pci_address(gpu.pci_bus_id)
            assert address
            device = tmp_path / "devices" / root / "0000:01:00.0" / address
            device.mkdir(parents=True)
            link = tmp_path / "bus/pci/devices" / address
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(device)
        found = await FactsReader(driver.pool, tmp_path).read(gpus)
    assert found == {
        gpus[0].uuid: GpuFacts("595.58.03", "13.2", "Nvidia", "pci0000:17"),
        gpus[1].uuid: GpuFacts("595.58.03", "13.2", "Tesla", "pci0000:9d"),
    }


async def test_each_gpu_is_asked_once() -> None:
    """For each start of NVML; without the kernel's files the root is not known."""
    async with driver_of("h100-80gb") as (driver, node):
        gpus = (await driver.observe()).gpus
        reader = FactsReader(driver.pool, Path("/nowhere"))
        first = await reader.read(gpus)
        node.inject(BRAND, error="NVML_ERROR_UNKNOWN")
        assert await reader.read(gpus) == first
        assert first[gpus[0].uuid].pcie_root == ""
        await driver.pool.restart()
        assert (await reader.read(gpus))[gpus[0].uuid].brand == ""
        node.clear_faults()
        assert await reader.read(gpus) == first


@pytest.mark.parametrize("missing", [BRAND, "nvmlSystemGetCudaDriverVersion_v2"])
async def test_what_a_driver_does_not_say_is_left_out(missing: str) -> None:
    """The rest is there."""
    async with driver_of("h100-80gb", missing_functions=(missing,)) as (driver, _):
        gpus = (await driver.observe()).gpus
        [facts] = (await FactsReader(driver.pool, None).read(gpus)).values()
        assert (facts.brand, facts.cuda_driver_version) == (
            ("", "13.2") if missing == BRAND else ("Nvidia", "")
        )


async def test_a_gpu_that_does_not_answer_is_not_asked() -> None:
    """What is published of it stays."""
    async with driver_of("h100-80gb") as (driver, _):
        gpu = replace((await driver.observe()).gpus[0], access=Access.LOST)
        assert await FactsReader(driver.pool, None).read([gpu]) == {}
