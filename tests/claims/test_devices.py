"""Attributes and capacity: NVIDIA's names and the standard ones, in the form Kubernetes takes."""

from __future__ import annotations

import pytest

from nodeagent.claims.offering.devices import GpuFacts, Version, version, whole_gpu
from nodeagent.plan.observed import Gpu
from nodeagent.structs import replace
from tests.claims.boards import MIG_BOARDS
from tests.plan.cards import card

FACTS = GpuFacts("580.65.06", "13.0", "Nvidia", "pci0000:17")


def test_whole_gpu() -> None:
    """Of an H100."""
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
        "resource.kubernetes.io/pciBusID": "0000:1a:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:17",
        "resource.kubernetes.io/numaNode": 1,
    }
    assert device.capacity == {"gpu.nvidia.com/memory": 81559 << 20}


@pytest.mark.parametrize("board", [*MIG_BOARDS, "t4", "l40s"])
def test_every_board_has_an_architecture(board: str) -> None:
    """By the compute capability that the driver reports."""
    word = whole_gpu(card(board), FACTS, {}).attributes["gpu.nvidia.com/architecture"]
    assert word in {"Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"}


def test_versions() -> None:
    """Three numbers without zeros in front; what is no version is left out."""
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
