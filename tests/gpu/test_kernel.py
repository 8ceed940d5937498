"""The kernel log followed: records of a ring in order, and everything that can go wrong with it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nodeagent.errors import NodeagentError
from nodeagent.gpu.kernel import DEVICE, KernelLog, boot_id, gpu_addresses, now

XID = "3,339,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


class Heard:
    """What a follower of a FIFO in the place of /dev/kmsg heard."""

    def __init__(self, path: Path) -> None:
        self.lines: list[str] = []
        self.batches = 0
        self.ends: list[str] = []
        self.lost = 0
        self.log = KernelLog(self._hear, lost=self._lose, ended=self.ends.append, path=path)

    def _hear(self, lines: Sequence[str]) -> None:
        self.batches += 1
        self.lines += lines

    def _lose(self) -> None:
        self.lost += 1


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[int]:
    """The kernel's end of a pipe at `tmp_path/kmsg`; who follows it never sees its end."""
    os.mkfifo(tmp_path / "kmsg")
    file = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    yield file
    os.close(file)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def test_the_drivers_lines_are_heard(tmp_path: Path, writer: int) -> None:
    """Those of before and those that come later, and no other lines."""
    heard = Heard(tmp_path / "kmsg")
    os.write(writer, b"6,1,10,-;usb 1-1: new device\n" + XID.encode())
    heard.log.open()
    await until(lambda: len(heard.lines) == 1)
    os.write(writer, b"3,340,6,-;NVRM: loading\n SUBSYSTEM=pci\n DEVICE=+pci:NVRM\n")
    await until(lambda: len(heard.lines) == 2)
    heard.log.close()
    assert heard.lines == [XID.strip(), "3,340,6,-;NVRM: loading"]


async def test_nothing_is_heard_after_the_end(tmp_path: Path, writer: int) -> None:
    """Closing twice does no harm."""
    heard = Heard(tmp_path / "kmsg")
    heard.log.open()
    heard.log.close()
    heard.log.close()
    os.write(writer, XID.encode())
    await asyncio.sleep(0.01)
    assert heard.lines == []


async def test_letters_that_are_none_do_no_harm(tmp_path: Path, writer: int) -> None:
    """A log may hold any bytes."""
    heard = Heard(tmp_path / "kmsg")
    heard.log.open()
    os.write(writer, b"3,1,1,-;NVRM: \xff\xfe Xid\n")
    await until(lambda: bool(heard.lines))
    heard.log.close()
    assert heard.lines == ["3,1,1,-;NVRM: \ufffd\ufffd Xid"]


async def test_the_end_of_what_is_no_kernel_log(tmp_path: Path) -> None:
    """It is reported once, and nothing turns in a circle."""
    os.mkfifo(tmp_path / "kmsg")
    heard = Heard(tmp_path / "kmsg")
    heard.log.open()
    other = os.open(tmp_path / "kmsg", os.O_WRONLY)
    os.close(other)
    await until(lambda: bool(heard.ends))
    await asyncio.sleep(0.01)
    assert heard.ends == [f"{tmp_path}/kmsg cannot be read any more: it has ended"]


async def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    """As in a pod without the device: the error says what is missing then."""
    with pytest.raises(NodeagentError) as caught:
        Heard(tmp_path / "kmsg").log.open()
    assert "No such file" in caught.value.message
    assert "only from NVML's events" in caught.value.remedy


async def test_a_plain_file_is_refused(tmp_path: Path) -> None:
    """It cannot be followed."""
    (tmp_path / "kmsg").write_text(XID)
    with pytest.raises(NodeagentError, match="cannot be followed"):
        Heard(tmp_path / "kmsg").log.open()


@pytest.mark.skipif(not os.access(DEVICE, os.R_OK), reason="the kernel log may not be read here")
async def test_the_real_one() -> None:
    """It can be opened, read to its end and closed."""
    heard = Heard(DEVICE)
    try:
        heard.log.open()
    except NodeagentError as error:
        pytest.skip(str(error))
    await asyncio.sleep(0.05)
    heard.log.close()
    assert heard.ends == []


def test_the_boot(tmp_path: Path) -> None:
    """Its id is one word, the same each time, and uptime grows; without /proc it is an error."""
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
    """Not their sound devices, NVSwitches, others' cards, nor one that a virtual machine has."""
    _device(tmp_path, "0000:27:00.0", "0x10de", "0x030200", "nvidia")
    _device(tmp_path, "0000:1a:00.0", "0x10de", "0x030000")
    _device(tmp_path, "0000:1a:00.1", "0x10de", "0x040300", "snd_hda_intel")
    _device(tmp_path, "0000:05:00.0", "0x10de", "0x068000", "nvidia-nvswitch")
    _device(tmp_path, "0000:41:00.0", "0x10de", "0x030200", "vfio-pci")
    _device(tmp_path, "0000:00:02.0", "0x8086", "0x030000", "i915")
    (tmp_path / "0000:99:00.0").mkdir()
    assert gpu_addresses(tmp_path) == ("0000:1a:00.0", "0000:27:00.0")


def test_a_gpu_whose_driver_goes_during_the_look_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
