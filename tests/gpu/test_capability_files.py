"""Processes with a MIG device's capability file open are found, and doubt counts as use."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nodeagent.gpu.capability_files import (
    CapabilityHolders,
    CapabilityUsers,
    UsageProbe,
    capabilities,
)
from nodeagent.gpu.users import MigDeviceRef, UsageReading, with_users
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, Placement
from nodeagent.plan.users import Usage, User
from tests.processes.real import running

MINORS = """\
config 1
monitor 2
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu0/gi1/ci1/access 14
gpu0/gi2/access 21
gpu0/gi2/ci0/access 22
gpu12/gi1/access 1632
gpu12/gi1/ci0/access 1633
"""
THIS_MACHINE = "pid:[4026531836]"


class FakeProc:
    """A /proc with processes that have files open."""

    def __init__(self, root: Path, *, minors: str | None = MINORS) -> None:
        self.root = root
        self.add(1)
        self.link("self/ns/pid", THIS_MACHINE)
        if minors is not None:
            path = root / "driver/nvidia-caps/mig-minors"
            path.parent.mkdir(parents=True)
            path.write_text(minors)

    def add(self, pid: int, *files: str) -> None:
        (self.root / f"{pid}/fd").mkdir(parents=True)
        for number, file in enumerate(["/dev/null", *files]):
            self.link(f"{pid}/fd/{number}", file)

    def link(self, path: str, target: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)

    def read(self) -> CapabilityHolders:
        return UsageProbe(self.root).read()


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """A machine with MIG devices that no process uses."""
    return FakeProc(tmp_path)


def device(instance: int, compute: int | None, *, minor: int | None = 0) -> MigDeviceRef:
    """A device of GPU `minor`."""
    return MigDeviceRef("GPU-1", minor, instance, compute)


def test_who_has_a_devices_file_open_is_its_user(proc: FakeProc, tmp_path: Path) -> None:
    """With pid and name, and only for that device: a real process, of which the kernel knows."""
    folder = tmp_path / "dev/nvidia-caps"
    folder.mkdir(parents=True)
    with ExitStack() as opened, running("cat", "anything") as pid:
        files = [opened.enter_context((folder / f"nvidia-cap{n}").open("w")) for n in (12, 13)]
        with running("cat", "x", pass_fds=[file.fileno() for file in files]) as user:
            for each in (pid, user):
                proc.link(str(each), f"/proc/{each}")
            reading = proc.read()
    assert reading.users(device(1, 0)) == Usage((User(user, "cat", "capability"),))
    assert not reading.users(device(1, 1)).in_use
    assert not reading.users(device(2, 0)).in_use
    assert not reading.users(device(1, 0, minor=12)).in_use


def test_the_gpu_is_identified_by_its_device_file(proc: FakeProc) -> None:
    """`gpu12` is the N of /dev/nvidiaN, not NVML's index."""
    proc.add(4711, "/dev/nvidia-caps/nvidia-cap1633")
    reading = proc.read()
    assert reading.users(device(1, 0, minor=12)).in_use
    assert not reading.users(device(1, 0)).in_use


def test_who_holds_only_the_gpu_instance_may_use_all_of_it(proc: FakeProc) -> None:
    """No compute instance shows where it will go."""
    proc.add(4711, "/dev/nvidia-caps/nvidia-cap12")
    reading = proc.read()
    assert reading.users(device(1, 0)).in_use
    assert reading.users(device(1, 1)).in_use
    assert not reading.users(device(2, 0)).in_use


def test_a_whole_gpu_instance_is_used_by_everybody_in_it(proc: FakeProc) -> None:
    """That is what is asked before it is destroyed."""
    proc.add(4711, "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
    proc.add(4712, "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap14")
    users = proc.read().users(device(1, None)).processes
    assert [user.pid for user in users] == [4711, 4712]


def test_configuring_and_watching_are_no_use(proc: FakeProc) -> None:
    """Every program that asks about MIG has those files open."""
    proc.add(4711, "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2", "/dev/nvidia0")
    reading = proc.read()
    assert not reading.users(device(1, None)).in_use
    assert not reading.users(device(2, None)).in_use


def test_the_agents_own_files_do_not_count(proc: FakeProc) -> None:
    """NVML opens some in this process."""
    proc.add(os.getpid(), "/dev/nvidia-caps/nvidia-cap13")
    assert not proc.read().users(device(1, 0)).in_use


def test_a_container_sees_the_file_under_another_root(proc: FakeProc) -> None:
    """The link then has the path as the container has it."""
    proc.add(4711, "/run/containers/7/dev/nvidia-caps/nvidia-cap13")
    assert proc.read().users(device(1, 0)).in_use


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Without root's right to read everything."""
    was = os.geteuid()
    os.seteuid(was or 65534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_a_process_that_may_not_be_looked_into_leaves_it_unknown() -> None:
    """Unknown counts as in use, for every device."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        proc = FakeProc(Path(folder))
        proc.add(4711)
        (proc.root / "4711/fd").chmod(0)
        with as_unprivileged_user():
            usage = proc.read().users(device(2, 0))
        (proc.root / "4711/fd").chmod(0o700)
    assert not usage.known
    assert usage.in_use
    assert "1 processes may not be read" in usage.reason


def test_hidden_processes_leave_it_unknown(proc: FakeProc) -> None:
    """With hidepid, what cannot be seen is not even listed, not even process 1."""
    (proc.root / "1").rename(proc.root / "was1")
    usage = proc.read().users(device(2, 0))
    assert not usage.known
    assert "hidepid" in usage.reason


def test_a_container_with_a_process_namespace_of_its_own_leaves_it_unknown(
    proc: FakeProc,
) -> None:
    """Processes of other containers are not visible from there."""
    proc.link("self/ns/pid", "pid:[4026532301]")
    usage = proc.read().users(device(2, 0))
    assert not usage.known
    assert "hostPID" in usage.reason


def test_an_unreadable_proc_leaves_it_unknown(tmp_path: Path) -> None:
    """A wrong mount must not look like an idle machine."""
    usage = UsageProbe(tmp_path / "nothing").read().users(device(2, 0))
    assert not usage.known


def test_without_capability_files_no_process_holds_one(tmp_path: Path) -> None:
    """A machine without MIG devices, or a driver library that is no driver's."""
    proc = FakeProc(tmp_path, minors=None)
    proc.link("self/ns/pid", "pid:[4026532301]")
    proc.add(4711, "/dev/nvidia0")
    assert proc.read().users(device(1, 0)) == Usage()


def test_open_files_that_cannot_be_distinguished_leave_it_unknown(tmp_path: Path) -> None:
    """In some containers mig-minors is hidden."""
    proc = FakeProc(tmp_path, minors=None)
    proc.add(4711, "/dev/nvidia-caps/nvidia-cap13")
    usage = proc.read().users(device(1, 0))
    assert not usage.known
    assert "mig-minors" in usage.reason


def test_which_files_there_are_is_read_each_time(proc: FakeProc) -> None:
    """They are others when the driver was loaded with other parameters, and parsed again then."""
    known = capabilities(proc.root)
    assert capabilities(proc.root) is known
    (proc.root / "driver/nvidia-caps/mig-minors").write_text("gpu0/gi1/access 7\n")
    assert capabilities(proc.root) == {7: (0, 1, None)}


def test_a_gpu_whose_device_file_is_not_known_may_be_anyones(proc: FakeProc) -> None:
    """It is unknown only while a process holds something."""
    assert not proc.read().users(device(1, 0, minor=None)).in_use
    proc.add(4711, "/dev/nvidia-caps/nvidia-cap1633")
    assert not proc.read().users(device(1, 0, minor=None)).known


def test_a_process_that_ends_meanwhile_is_no_matter(proc: FakeProc) -> None:
    """Its folder, or a file in it, is gone when looked into."""
    proc.add(4711)
    (proc.root / "4711/fd/0").unlink()
    (proc.root / "4712").mkdir()
    assert proc.read().users(device(1, 0)) == Usage()


def test_a_file_with_too_long_a_path_is_none_of_them(proc: FakeProc) -> None:
    """The kernel does not say its name; any process can open one, and would keep all devices."""
    proc.link("4711", f"/proc/{os.getpid()}")
    with TemporaryDirectory() as top, ExitStack() as stack:
        above = os.open(top, os.O_RDONLY)
        stack.callback(os.close, above)
        for _ in range(20):  # of 250 characters; a path has 4096 at most
            os.mkdir("d" * 250, dir_fd=above)
            above = os.open("d" * 250, os.O_RDONLY, dir_fd=above)
            stack.callback(os.close, above)
        with pytest.raises(OSError, match="too long"):
            Path(f"/proc/self/fd/{above}").readlink()
        assert proc.read().users(device(1, 0)) == Usage()


def test_a_process_with_very_many_files_takes_no_memory_for_them(proc: FakeProc) -> None:
    """It decides itself how many, up to a thousand million."""
    proc.add(4711)
    for number in range(1, 3000):
        (proc.root / f"4711/fd/{number}").symlink_to("/dev/null")
    tracemalloc.start()
    try:
        assert proc.read().users(device(1, 0)) == Usage()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3000 * 30  # a list of their names takes twice as much


@pytest.mark.full
def test_ten_thousand_processes_take_under_a_second(tmp_path: Path) -> None:
    """A busy node has many, and the look comes before every step that destroys."""
    proc = FakeProc(tmp_path)
    proc.add(9999, "socket:[12345]", "/dev/nvidia0")
    for pid in range(10_000, 20_000):
        (tmp_path / str(pid)).symlink_to("9999")
    proc.add(4711, "/dev/nvidia-caps/nvidia-cap13")
    began = time.thread_time()
    reading = proc.read()
    assert time.thread_time() - began < 1
    assert [user.pid for user in reading.users(device(1, 0)).processes] == [4711]


# --- together with NVML ---------------------------------------------------------------------------


def test_a_process_seen_both_ways_appears_once() -> None:
    """As NVML has it, which knows its memory."""
    nvml = Usage((User(4711, "python", "process", memory=1 << 30),))
    files = Usage((User(4711, "python", "capability"), User(4712, "bash", "capability")))
    assert nvml.together(files).processes == (nvml.processes[0], files.processes[1])


def test_one_unknown_source_makes_the_whole_unknown() -> None:
    """And both reasons are reported, each once."""
    first = Usage(known=False, reason="refused")
    assert first.together(Usage()) == first
    assert Usage().together(first) == first
    both = first.together(Usage(known=False, reason="hidden"))
    assert both.reason == "refused; hidden"
    assert first.together(first).reason == "refused"


def test_users_of_other_sources_are_added_to_the_picture() -> None:
    """Each to its own device of the GPU."""
    holder = User(4711, "python", "capability")
    reading = CapabilityHolders({(7, 1, 0): (holder,)})
    used = ComputeInstance(0, "1g.10gb", 1, "MIG-1")
    other = ComputeInstance(0, "1g.10gb", 1, "MIG-2")
    gpu = Gpu(
        index=0,
        uuid="GPU-1",
        minor=7,
        instances=(
            GpuInstance(1, 19, "1g.10gb", Placement(0, 1), (used,)),
            GpuInstance(2, 19, "1g.10gb", Placement(1, 1), (other,)),
        ),
    )
    first, second = with_users(gpu, [reading]).instances
    assert first.compute[0].usage == Usage((holder,))
    assert second.compute[0].usage == Usage()


# --- readings are shared --------------------------------------------------------------------------

ANY_DEVICE = MigDeviceRef("GPU-1", 0, 1, 0)


class Source:
    """Counts the looks; each takes a while."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.seconds = seconds
        self.begun: list[float] = []

    def read(self) -> UsageReading:
        self.begun.append(time.monotonic())
        time.sleep(self.seconds)
        return CapabilityHolders()


async def test_many_who_ask_at_once_cost_one_look() -> None:
    """Eight GPUs observed side by side need not search all processes eight times."""
    source = Source()
    reader = CapabilityUsers(source.read, deadline=30)
    await asyncio.gather(*(reader.ask() for _ in range(8)))
    assert len(source.begun) == 1
    await reader.close()


async def test_no_caller_gets_a_look_that_began_before_it_asked() -> None:
    """A process may have come in between, so who asks later gets the next one."""
    source = Source(0.05)
    reader = CapabilityUsers(source.read, deadline=30)
    first = asyncio.create_task(reader.ask())
    await asyncio.sleep(0.02)
    asked = time.monotonic()
    await asyncio.gather(*(reader.ask() for _ in range(3)))
    assert len(source.begun) == 2
    assert source.begun[1] > asked
    await first
    await reader.close()


async def test_a_look_that_hangs_is_a_reading_in_which_nothing_is_known() -> None:
    """Then everything counts as in use, and nothing is destroyed."""
    held = threading.Event()

    def hang() -> UsageReading:
        held.wait()
        return CapabilityHolders()

    reader = CapabilityUsers(hang, deadline=0.05)
    usage = (await reader.ask()).users(ANY_DEVICE)
    assert not usage.known
    assert "did not return" in usage.reason
    assert not (await reader.ask()).users(ANY_DEVICE).known
    held.set()
    await reader.close()


async def test_cancelling_one_who_asks_leaves_the_others_their_answer() -> None:
    """The look is shared, its cancellation is not."""
    reader = CapabilityUsers(Source().read, deadline=30)
    one, other = asyncio.create_task(reader.ask()), asyncio.create_task(reader.ask())
    await asyncio.sleep(0.005)
    one.cancel()
    assert (await other).users(ANY_DEVICE).known
    await reader.close()
