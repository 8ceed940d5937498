import os
from pathlib import Path

import pytest

from nodeagent.errors import NodeagentError
from nodeagent.gpu.kernel import boot_id, gpu_addresses, now


def test_the_boot(tmp_path: Path) -> None:
    assert boot_id() == boot_id() != ""
    first, second = now(), now()
    assert 0 < first.uptime <= second.uptime
    with pytest.raises(NodeagentError, match="boot_id"):
        boot_id(tmp_path)


# --- the PCI bus ----------------------------------------------------------------------------------


def _device(bus: Path, address: str, vendor: str, kind: str, driver: str = "") -> None:
    folder = bus / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    if driver:
        (folder / "driver").symlink_to(f"../../drivers/{driver}")


def test_only_nvidias_gpus_that_are_the_nodes(tmp_path: Path) -> None:
    _device(tmp_path, "0000:27:00.0", "0x10de", "0x030200", "nvidia")
    _device(tmp_path, "0000:1a:00.0", "0x10de", "0x030000")
    _device(tmp_path, "0000:1a:00.1", "0x10de", "0x040300", "snd_hda_intel")
    _device(tmp_path, "0000:05:00.0", "0x10de", "0x068000", "nvidia-nvswitch")
    _device(tmp_path, "0000:41:00.0", "0x10de", "0x030200", "vfio-pci")
    _device(tmp_path, "0000:00:02.0", "0x8086", "0x030000", "i915")
    (tmp_path / "0000:99:00.0").mkdir()
    assert gpu_addresses(tmp_path) == ("0000:1a:00.0", "0000:27:00.0")


def test_a_driver_that_goes_during_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it is handed to another driver; the look must go on for the agent's whole life."""
    _device(tmp_path, "0000:27:00.0", "0x10de", "0x030200", "nvidia")
    read = os.readlink

    def unbound(link: Path) -> str:
        link.unlink()
        return read(link)

    monkeypatch.setattr(os, "readlink", unbound)
    assert gpu_addresses(tmp_path) == ("0000:27:00.0",)


def test_without_a_bus_nothing_is_known(tmp_path: Path) -> None:
    """As in a sandbox without /sys: no GPU is called missing for that."""
    assert gpu_addresses(tmp_path / "none") is None
