"""What the kernel reports besides the driver: its log, the PCI bus, and the boot.

The driver writes XIDs to the log, which is followed in an event loop. Each read of /dev/kmsg gives
one record, oldest first; the kernel keeps a ring, and reports with EPIPE that records were
overwritten before they were read. Other readers get the same records.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeagent.errors import NodeagentError
from nodeagent.health.findings import Moment

DEVICE: Final = Path("/dev/kmsg")
REMEDY: Final = (
    "give the agent CAP_SYSLOG, and in a pod the device /dev/kmsg; until then XIDs are known only "
    "from NVML's events"
)

_DRIVER = b"NVRM"  # what all lines of NVIDIA's driver begin with
_RECORD = 16 * 1024  # bytes; the kernel's longest record has 8 KiB
_AT_ONCE = 256  # records, so that a full ring does not block the event loop

PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAYS = ("0x0300", "0x0302")  # VGA-compatible and 3D controllers: GPUs of all kinds
_NVIDIA_DRIVER = "nvidia"
_BOOT_ID = "proc/sys/kernel/random/boot_id"


@dataclass(slots=True)
class KernelLog:
    """Follows the log from its oldest record on, from `open` to `close`.

    `deliver` gets the driver's lines, several at once; `lost` is called when records were
    overwritten before they were read; `ended` with why when the log cannot be read any more.
    `caught_up`: what is delivered is read as it comes, for all that was there before is read.
    """

    deliver: Callable[[Sequence[str]], None]
    lost: Callable[[], None] = field(kw_only=True)
    ended: Callable[[str], None] = field(kw_only=True)
    path: Path = field(default=DEVICE, kw_only=True)
    caught_up: bool = field(default=False, init=False)
    _file: int | None = None

    def open(self) -> None:
        """Begin to follow; raises NodeagentError where there is no log, or it may not be read."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NodeagentError(
                f"{self.path} cannot be opened: {error.strerror}",
                remedy=REMEDY,
            ) from error
        try:
            asyncio.get_running_loop().add_reader(file, self._read)
        except OSError as error:  # a plain file cannot be waited for
            os.close(file)
            raise NodeagentError(f"{self.path} cannot be followed: {error.strerror}") from error
        self._file, self.caught_up = file, False

    def close(self) -> None:
        """Follow no longer."""
        file, self._file = self._file, None
        if file is not None:
            asyncio.get_running_loop().remove_reader(file)
            os.close(file)

    def _read(self) -> None:
        """Some of what is there; the loop calls again while there is more."""
        lines: list[str] = []
        record: bytes | None = b""
        for _ in range(_AT_ONCE):
            record = self._next()
            if record is None:
                break
            lines += _lines_of(record)
        if lines:
            self.deliver(lines)
        self.caught_up |= record is None

    def _next(self) -> bytes | None:
        """One record, or nothing for now."""
        if self._file is None:
            return None
        try:
            record = os.read(self._file, _RECORD)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EPIPE:  # the next read goes on with the oldest there is
                self.lost()
                return b""
            self._end(error.strerror or str(error))
            return None
        if not record:  # what is no kernel log may have an end
            self._end("it has ended")
            return None
        return record

    def _end(self, why: str) -> None:
        self.close()
        self.ended(f"{self.path} cannot be read any more: {why}")


def _lines_of(record: bytes) -> list[str]:
    """The driver's lines; what follows them with a blank in front describes devices."""
    if _DRIVER not in record:
        return []
    text = record.decode("utf-8", "replace")
    return [line for line in text.split("\n") if "NVRM" in line and not line.startswith(" ")]


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
    """This moment: in seconds since boot, suspended ones included, and in the time of day."""
    return Moment(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
