import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.health.readings import GpuReading, ModeReading, XidEvent
from nodeagent.plan.observed import MigMode
from nodeagent.plan.plan import GpuPlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import ComputeMode
from nodeagent.structs import replace
from nodeagent.telemetry.health_sources import owned_modes
from nodeagent.telemetry.kernel_errors import DEVICE, KernelErrors
from tests.cluster.client.rig import running
from tests.machine_load import until
from tests.plan.cards import card

XID = "3,339,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


class Followed:
    """What a follower of a FIFO in the place of /dev/kmsg delivered and reported."""

    def __init__(self, path: Path, *, uptime: float = 100.0, again: float = 0.01) -> None:
        self.xids: list[XidEvent] = []
        self.reports: list[Problem | None] = []
        self.errors = KernelErrors(path, uptime=lambda: uptime, again=again, stays=0.01)
        self.errors.xids.subscribe(self.xids.extend)
        self.errors.problem.subscribe(self.reports.append)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[int]:
    """The kernel's end of a pipe at `tmp_path/kmsg`; who follows it never sees its end."""
    os.mkfifo(tmp_path / "kmsg")
    file = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    yield file
    os.close(file)


async def test_the_drivers_lines_are_read(tmp_path: Path, writer: int) -> None:
    followed = Followed(tmp_path / "kmsg")
    os.write(writer, b"6,1,10,-;usb 1-1: new device\n" + XID.encode())
    async with running(followed.errors.run(since=0.0)):
        await until(lambda: len(followed.xids) == 1)
        other = b" DEVICE=NVRM: Xid (PCI:0000:3b:00): 13, described\n"
        os.write(writer, b"3,340,6,-;NVRM: loading\n SUBSYSTEM=pci\n" + other)
        os.write(writer, b"3,341,7,-;NVRM: Xid (PCI:0000:3b:00): 31, later\n")
        await until(lambda: len(followed.xids) == 2)
    assert [(event.xid, event.sequence) for event in followed.xids] == [(79, 339), (31, 341)]


async def test_nothing_is_delivered_after_the_end(tmp_path: Path, writer: int) -> None:
    followed = Followed(tmp_path / "kmsg")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # as quick as the kernel has it
    async with running(followed.errors.run(since=0.0)):
        os.write(writer, XID.encode())
        await until(lambda: len(followed.xids) == 1)
    os.write(writer, XID.encode())
    await asyncio.sleep(0.01)
    assert len(followed.xids) == 1
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208  # as above


async def test_the_end_of_what_is_no_kernel_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    followed = Followed(tmp_path / "kmsg", again=60.0)
    async with running(followed.errors.run(since=0.0)):
        await asyncio.sleep(0)
        other = os.open(tmp_path / "kmsg", os.O_WRONLY)
        os.write(other, XID.encode())
        os.close(other)
        await until(lambda: bool(followed.reports))
        await asyncio.sleep(0.02)  # longer than it must be open to count as readable
    (problem,) = followed.reports
    assert problem is not None
    assert problem.message == f"{tmp_path}/kmsg cannot be read any more: it has ended"
    assert [event.xid for event in followed.xids] == [79]


@pytest.mark.skipif(not os.access(DEVICE, os.R_OK), reason="the kernel log may not be read here")
async def test_the_real_one() -> None:
    """It can be opened and read to its end, and stays open."""
    followed = Followed(DEVICE)
    async with running(followed.errors.run(since=0.0)):
        await asyncio.sleep(0.05)
    if followed.reports and "cannot be opened" in str(followed.reports[0]):
        pytest.skip(str(followed.reports[0]))
    assert followed.reports == []


async def test_a_log_that_appears_is_read(tmp_path: Path) -> None:
    followed = Followed(tmp_path / "kmsg")
    async with running(followed.errors.run(since=0.0)):
        await until(lambda: bool(followed.reports))
        problem = followed.reports[0]
        assert problem is not None
        assert problem.code is Code.READER
        os.mkfifo(tmp_path / "kmsg")
        kernel = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
        await until(lambda: followed.reports[-1] is None)
        os.write(kernel, b"3,1,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, fallen\n")
        await until(lambda: bool(followed.xids))
        assert [event.xid for event in followed.xids] == [79]
        assert followed.reports == [problem, None]
        os.close(kernel)


async def test_what_is_read_as_it_comes_happened_now(tmp_path: Path, writer: int) -> None:
    """The kernel's log has a clock of its own, which drifts from the machine's by seconds a day.
    Only what was there before has no better time than the one written beside it.
    """
    now = 10_000.0
    followed = Followed(tmp_path / "kmsg", uptime=now)
    os.write(writer, b"3,1,9000000000,-;NVRM: Xid (PCI:0000:3b:00): 13, old\n")
    async with running(followed.errors.run(since=0.0)):
        await until(lambda: len(followed.xids) == 1)
        os.write(writer, b"3,2,9970000000,-;NVRM: Xid (PCI:0000:3b:00): 31, slow clock\n")
        await until(lambda: len(followed.xids) == 2)
        os.write(writer, b"3,3,10030000000,-;NVRM: Xid (PCI:0000:3b:00): 48, fast clock\n")
        await until(lambda: len(followed.xids) == 3)
    assert [(event.xid, event.at) for event in followed.xids] == [
        (13, 9000.0),
        (31, now),
        (48, now),
    ]


ON, OFF = MigMode(current=True, pending=True), MigMode(current=False, pending=False)
EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS
H100 = replace(card("h100-80gb"), mig=OFF)


def _read(*, mig: bool | None = None, mode: ComputeMode | None = None) -> GpuReading:
    return GpuReading(H100.uuid, mig=mig, compute_mode=mode)


def test_mig_as_the_plan_has_it() -> None:
    on = GpuPlan(H100, Verdict.APPLICABLE, (), replace(H100, mig=ON))
    assert owned_modes(on, _read(mig=False)) == (ModeReading("MIG mode", "off", "on"),)
    pending = replace(H100, mig=MigMode(current=False, pending=True))
    waits = GpuPlan(H100, Verdict.APPLICABLE, (), pending)
    assert owned_modes(waits, _read(mig=False)) == ()
    assert owned_modes(on, _read()) == ()


def test_the_compute_mode_only_where_the_agent_set_it() -> None:
    mine = replace(
        H100, mig=None, compute_mode=ComputeMode.EXCLUSIVE_PROCESS, earlier_mode=ComputeMode.DEFAULT
    )
    found = owned_modes(GpuPlan.in_sync(mine), _read(mode=ComputeMode.DEFAULT))
    assert found == (ModeReading("compute mode", "default", "exclusiveProcess"),)
    theirs = replace(mine, earlier_mode=None)
    assert owned_modes(GpuPlan.in_sync(theirs), _read(mode=EXCLUSIVE)) == ()
    divided = replace(mine, mig=ON)
    found = owned_modes(GpuPlan.in_sync(divided), _read(mig=True, mode=EXCLUSIVE))
    assert [mode.name for mode in found] == ["MIG mode"]


def test_a_plan_that_is_refused_wants_nothing() -> None:
    refused = GpuPlan.refused(H100, Verdict.BLOCKED, Problem(code=Code.IN_USE, message="in use"))
    assert owned_modes(refused, _read(mig=True, mode=EXCLUSIVE)) == ()
