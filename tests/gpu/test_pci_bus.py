"""GPUs on the PCI bus, told apart from all else that is there."""

from __future__ import annotations

from pathlib import Path

from nodeagent.gpu.kernel import gpu_addresses


def _device(bus: Path, address: str, vendor: str, kind: str, driver: str = "") -> None:
    folder = bus / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    if driver:
        (folder / "driver").symlink_to(f"../../drivers/{driver}")


def test_only_nvidias_gpus_that_are_the_nodes(tmp_path: Path) -> None:
    """Not their sound devices, NVSwitches, others' cards, nor one that a virtual machine has."""
    _device(tmp_path, "0000:27:00.0", "0x10de", "0x030200", "nvidia")
    _device(tmp_path, "0000:1a:00.0", "0x10de", "0x030000")
    _device(tmp_path, "0000:1a:00.1", "0x10de", "0x040300", "snd_hda_intel")
    _device(tmp_path, "0000:05:00.0", "0x10de", "0x068000", "nvidia-nvswitch")
    _device(tmp_path, "0000:41:00.0", "0x10de", "0x030200", "vfio-pci")
    _device(tmp_path, "0000:00:02.0", "0x8086", "0x030000", "i915")
    (tmp_path / "0000:99:00.0").mkdir()
    assert gpu_addresses(tmp_path) == ("0000:1a:00.0", "0000:27:00.0")


def test_without_a_bus_nothing_is_known(tmp_path: Path) -> None:
    """As in a sandbox without /sys: no GPU is called missing for that."""
    assert gpu_addresses(tmp_path / "none") is None
