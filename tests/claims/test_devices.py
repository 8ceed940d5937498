"""A GPU's devices: their names, both ways; attributes and capacity as Kubernetes takes them; and
what is read for these: versions, brands and roots of the PCI bus.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from nodeagent.claims import names
from nodeagent.claims.offering.devices import GpuFacts, Version, pci_address, version, whole_gpu
from nodeagent.claims.offering.gpu_facts import FactsReader, pcie_root
from nodeagent.errors import UnknownDevice
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import Access, Gpu
from nodeagent.simulation import SimulatedNode, Switches
from nodeagent.simulation.boards import board_names
from nodeagent.structs import replace
from tests.claims.boards import MIG_BOARDS, NODE
from tests.plan.cards import card
from tests.rig import driving

# --- names ----------------------------------------------------------------------------------------


def test_spelling() -> None:
    cases = [
        ("1g.10gb", 6, "mig-1g-10gb-6"),
        ("1g.10gb+me", 4, "mig-1g-10gb-me-4"),
        ("7g.80gb", 0, "mig-7g-80gb-0"),
        ("2g.48gb-me", 6, "mig-2g-48gb-nome-6"),
        ("1g.24gb+me.all", 9, "mig-1g-24gb-me-all-9"),
        ("4g.96gb+gfx", 0, "mig-4g-96gb-gfx-0"),
        ("1g.24gb+gfx,me", 3, "mig-1g-24gb-gfx-me-3"),
    ]
    for profile, start, name in cases:
        assert names.mig_device_name(profile, start) == name


@pytest.mark.parametrize("board", board_names())
def test_unique_and_back(board: str) -> None:
    gpu = replace(card(board), uuid="GPU-1F0C9A8E-0000-1111-2222-333344445555")
    pool = names.pool_name(NODE, gpu.uuid)
    assert pool == "gpu-7.example.com/gpu-1f0c9a8e-0000-1111-2222-333344445555"
    every = [(p.name, place) for p in gpu.profiles for place in p.placements]
    assert len(names.places(gpu)) == len(every)
    for profile, placement in every:
        name = names.mig_device_name(profile, placement.start)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)
        located = names.locate(pool, name, NODE, [card("t4"), gpu])
        assert located.gpu is gpu
        assert isinstance(located.part, names.DevicePlace)
        assert (located.part.profile.name, located.part.placement) == (profile, placement)
        assert located.part.name == name
    whole = names.locate(pool, names.WHOLE_GPU, NODE, [gpu])
    assert (whole.gpu, whole.part) == (gpu, None)


@pytest.mark.parametrize(
    ("pool", "device", "message"),
    [
        (f"{NODE}/gpu-h100-80gb", "mig-1g-10gb-7", r"has no device mig-1g-10gb-7 \(it has: gpu, "),
        (f"{NODE}/gpu-gone", "gpu", r"this node has no GPU gpu-gone \(it has: gpu-h100-80gb\)"),
        ("other/gpu-h100-80gb", "gpu", f"pool other/gpu-h100-80gb is not one of node {NODE}"),
        (NODE, "gpu-0", f"pool {NODE} is not one of node {NODE}"),  # as NVIDIA's driver has them
    ],
)
def test_refuses(pool: str, device: str, message: str) -> None:
    with pytest.raises(UnknownDevice, match=message):
        names.locate(pool, device, NODE, [card("h100-80gb")])


def test_unknown_profiles() -> None:
    gpu = replace(card("h100-80gb"), profiles=(), unlisted="NVML code 3")
    with pytest.raises(UnknownDevice, match=r"MIG profiles .*: NVML code 3 .*a newer"):
        names.locate(names.pool_name(NODE, gpu.uuid), "mig-1g-10gb-0", NODE, [gpu])


# --- attributes and capacity ----------------------------------------------------------------------


FACTS = GpuFacts("580.65.06", "13.0", "Nvidia", "pci0000:17", "HMM")


def test_whole_gpu() -> None:
    device = whole_gpu(replace(card("h100-80gb"), numa_node=1), FACTS, {})
    assert device.attributes == {
        "gpu.nvidia.com/type": "gpu",
        "gpu.nvidia.com/uuid": "GPU-h100-80gb",
        "gpu.nvidia.com/productName": "NVIDIA H100 80GB HBM3",
        "gpu.nvidia.com/brand": "Nvidia",
        "gpu.nvidia.com/architecture": "Hopper",
        "gpu.nvidia.com/cudaComputeCapability": Version("9.0.0"),
        "gpu.nvidia.com/driverVersion": Version("580.65.6"),
        "gpu.nvidia.com/cudaDriverVersion": Version("13.0.0"),
        "gpu.nvidia.com/addressingMode": "HMM",
        "resource.kubernetes.io/pciBusID": "0000:1a:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:17",
        "resource.kubernetes.io/numaNode": 1,
    }
    assert device.capacity == {"gpu.nvidia.com/memory": 81559 << 20}


@pytest.mark.parametrize("board", [*MIG_BOARDS, "t4", "l40s"])
def test_every_board_has_an_architecture(board: str) -> None:
    word = whole_gpu(card(board), FACTS, {}).attributes["gpu.nvidia.com/architecture"]
    assert word in {"Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"}


def test_versions() -> None:
    cases = [
        ("580.65.06", "580.65.6"),
        ("13.0", "13.0.0"),
        ("535", "535.0.0"),
        ("", None),
        ("580.65.06-grid", None),
        ("1.2.3.4", None),
        ("580.\u0661", None),
    ]
    for text, expected in cases:
        assert version(text) == (Version(expected) if expected else None)


def test_long_values_are_cut() -> None:
    """A name of NVML's greatest length does not make the device unpublishable."""
    gpu = Gpu(0, "GPU-x", name="NVIDIA " + "\u00e9" * 40)
    name = whole_gpu(gpu, FACTS, {}).attributes["gpu.nvidia.com/productName"]
    assert isinstance(name, str)
    assert gpu.name.startswith(name)
    assert 63 <= len(name.encode()) <= 64


def test_bus_ids() -> None:
    """NVML's eight digits become the kernel's four, more only where they are needed."""
    cases = [
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("odd", None),
    ]
    for nvml, expected in cases:
        gpu = Gpu(0, "GPU-x", pci_bus_id=nvml)
        found = whole_gpu(gpu, FACTS, {}).attributes.get("resource.kubernetes.io/pciBusID")
        assert found == expected


# --- facts ----------------------------------------------------------------------------------------


BRAND, ADDRESSING = "nvmlDeviceGetBrand", "nvmlDeviceGetAddressingMode"


def no_root(_: Gpu) -> str:
    return ""


@asynccontextmanager
async def driver_of(boards: str, **switches: object) -> AsyncIterator[tuple[Driver, SimulatedNode]]:
    known = Switches(**switches)  # type: ignore[arg-type]  # keys of Switches, by name
    async with driving(boards, switches=known) as (driver, node):
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
        found = await FactsReader(driver.pool, partial(pcie_root, tmp_path)).read(gpus)
    assert found == {
        gpus[0].uuid: GpuFacts("595.58.03", "13.2", "Nvidia", "pci0000:17", "None"),
        gpus[1].uuid: GpuFacts("595.58.03", "13.2", "Tesla", "pci0000:9d", "None"),
    }


async def test_each_gpu_is_asked_once() -> None:
    """For each start of NVML; without the kernel's files the root is not known."""
    async with driver_of("h100-80gb") as (driver, node):
        gpus = (await driver.observe()).gpus
        reader = FactsReader(driver.pool, partial(pcie_root, Path("/nowhere")))
        first = await reader.read(gpus)
        node.inject(BRAND, error="NVML_ERROR_UNKNOWN")
        assert await reader.read(gpus) == first
        assert first[gpus[0].uuid].pcie_root == ""
        await driver.pool.restart()
        assert (await reader.read(gpus))[gpus[0].uuid].brand == ""
        node.clear_faults()
        assert await reader.read(gpus) == first


@pytest.mark.parametrize("missing", [BRAND, ADDRESSING, "nvmlSystemGetCudaDriverVersion_v2"])
async def test_what_a_driver_does_not_say_is_left_out(missing: str) -> None:
    async with driver_of("h100-80gb", missing_functions=(missing,)) as (driver, _):
        gpus = (await driver.observe()).gpus
        [facts] = (await FactsReader(driver.pool, no_root).read(gpus)).values()
        assert (facts.brand, facts.addressing_mode, facts.cuda_driver_version) == (
            "" if missing == BRAND else "Nvidia",
            "" if missing == ADDRESSING else "None",
            "13.2" if missing in {BRAND, ADDRESSING} else "",
        )


async def test_how_a_gpu_addresses_memory() -> None:
    """A superchip shares the processor's page tables."""
    async with driver_of("gh200") as (driver, node):
        gpus = (await driver.observe()).gpus
        [facts] = (
            await FactsReader(driver.pool, lambda gpu: node.pcie_root(gpu.pci_bus_id)).read(gpus)
        ).values()
        assert (facts.addressing_mode, facts.pcie_root) == ("ATS", "pci0000:17")


async def test_a_gpu_that_does_not_answer_is_not_asked() -> None:
    async with driver_of("h100-80gb") as (driver, _):
        gpu = replace((await driver.observe()).gpus[0], access=Access.LOST)
        assert await FactsReader(driver.pool, no_root).read([gpu]) == {}
