"""What the kernel reports besides the driver: the PCI bus, the boot and the time since it."""

import time
from pathlib import Path
from typing import Final

from nodeagent.errors import NodeagentError
from nodeagent.health.findings import Moment

PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAYS = ("0x0300", "0x0302")  # VGA-compatible and 3D controllers: GPUs of all kinds
_NVIDIA_DRIVER = "nvidia"
_BOOT_ID = "proc/sys/kernel/random/boot_id"


def gpu_addresses(devices: Path = PCI_DEVICES) -> tuple[str, ...] | None:
    """The addresses of NVIDIA's GPUs, such as `0000:1a:00.0`; None where the bus is unreadable.

    Blocks. Whether NVML lists the GPUs makes no difference.
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
    try:
        return (device / "driver").readlink().name == _NVIDIA_DRIVER
    except OSError:  # it has none
        return True


def boot_id(root: Path = Path("/")) -> str:
    """The id of this boot, which changes with each reboot; raises NodeagentError."""
    try:
        return (root / _BOOT_ID).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise NodeagentError(f"{root / _BOOT_ID} cannot be read: {error}") from error


def now() -> Moment:
    """The present moment, in seconds since boot (suspended ones included) and by the wall clock."""
    return Moment(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
