"""NVIDIA's GPUs on the PCI bus, as the kernel sees them, whether NVML lists them or not."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DEVICES: Final = Path("/sys/bus/pci/devices")

_NVIDIA = "0x10de"
_DISPLAYS = ("0x0300", "0x0302")  # VGA-compatible and 3D controllers: GPUs of all kinds
_DRIVER = "nvidia"


def gpu_addresses(devices: Path = DEVICES) -> tuple[str, ...] | None:
    """Their addresses, such as `0000:1a:00.0`, in order; None where the bus cannot be read. Blocks.

    A GPU that another driver has, such as vfio-pci for a virtual machine, is left out: it is not
    the node's to use.
    """
    try:
        found = sorted(devices.iterdir())
    except OSError:
        return None
    return tuple(device.name for device in found if _is_ours(device))


def _is_ours(device: Path) -> bool:
    try:
        vendor = (device / "vendor").read_text(encoding="ascii").strip()
        kind = (device / "class").read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # it went away meanwhile
        return False
    if vendor != _NVIDIA or not kind.startswith(_DISPLAYS):
        return False
    driver = device / "driver"
    return not driver.is_symlink() or driver.readlink().name == _DRIVER
