import asyncio
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.gpu.capability_files import CapabilityHolders, CapabilityUsers, UsageProbe
from nodeagent.gpu.users import MigDeviceRef, UsageReading
from nodeagent.plan.users import Usage, User
from tests.fuse import can_mount, silent_file_system
from tests.processes.real import running

# The kernel's own devices of major 1 stand for those of nvidia-caps: every machine has them.
DEVICES = "Character devices:\n  1 nvidia-caps\n  5 /dev/tty\n\nBlock devices:\n  7 loop\n"
CONFIG, FIRST, FIRST_0, FIRST_1 = "/dev/null", "/dev/zero", "/dev/full", "/dev/random"
OF_GPU_12 = "/dev/urandom"
MINORS = """\
config 3
gpu0/gi1/access 5
gpu0/gi1/ci0/access 7
gpu0/gi1/ci1/access 8
gpu0/gi2/access 21
gpu0/gi2/ci0/access 22
gpu12/gi1/access 1632
gpu12/gi1/ci0/access 9
"""
THIS_MACHINE = "pid:[4026531836]"


class FakeProc:
    def __init__(self, root: Path, *, minors: str | None = MINORS) -> None:
        self.root = root
        self.add(1)
        self.link("self/ns/pid", THIS_MACHINE)
        if minors is not None:
            path = root / "driver/nvidia-caps/mig-minors"
            path.parent.mkdir(parents=True)
            path.write_text(minors)
        (root / "devices").write_text(DEVICES if minors else "  1 mem\n")

    def add(self, pid: int, *files: str) -> None:
        for folder in ("fd", "fdinfo"):
            (self.root / f"{pid}/{folder}").mkdir(parents=True)
        for number, file in enumerate(["/dev/null", *files]):
            self.link(f"{pid}/fd/{number}", file)
            (self.root / f"{pid}/fdinfo/{number}").write_text("pos:\t0\nflags:\t0100002\n")

    def link(self, path: str, target: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)

    def read(self) -> CapabilityHolders:
        return UsageProbe(self.root).read()


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def device(instance: int, compute: int | None, *, minor: int | None = 0) -> MigDeviceRef:
    return MigDeviceRef("GPU-1", minor, instance, compute)


def held(proc: FakeProc, *files: int) -> CapabilityHolders:
    """What is read while a real process, a `cat`, has these descriptors of ours open."""
    with running("cat", "x", pass_fds=files) as pid:
        proc.link(str(pid), f"/proc/{pid}")
        reading = proc.read()
    for users in reading.holders.values():
        assert users == (User(pid, "cat", "capability"),)
    return reading


@contextmanager
def opened(path: Path | str, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_who_has_a_devices_file_open_is_its_user(proc: FakeProc) -> None:
    with opened(FIRST) as instance, opened(FIRST_0) as compute:
        reading = held(proc, instance, compute)
    assert reading.users(device(1, 0)).processes
    assert not reading.users(device(1, 1)).in_use
    assert not reading.users(device(2, 0)).in_use
    assert not reading.users(device(1, 0, minor=12)).in_use


def test_a_plain_file_with_a_devices_name_is_none(proc: FakeProc, tmp_path: Path) -> None:
    """Every container can have one, and would keep the device of any other."""
    name = tmp_path / "dev/nvidia-caps/nvidia-cap7"
    name.parent.mkdir(parents=True)
    name.touch()
    with opened(name) as file:
        assert held(proc, file).users(device(1, None)) == Usage()


def test_a_name_for_the_device_alone_is_no_use(proc: FakeProc) -> None:
    """O_PATH needs no right to the device: a container may make a file of any number."""
    with opened(FIRST_0, os.O_PATH) as file:
        assert held(proc, file).users(device(1, None)) == Usage()


@pytest.mark.skipif(not can_mount(), reason="needs root and /dev/fuse")
def test_a_file_system_that_never_answers_holds_up_nothing(proc: FakeProc, tmp_path: Path) -> None:
    """Every user can mount one, and have files of it open."""
    folder = tmp_path / "nvidia-caps"
    folder.mkdir()
    with silent_file_system(folder), opened(folder, os.O_PATH) as file:
        assert held(proc, file).users(device(1, None)) == Usage()


def test_the_gpu_is_identified_by_its_device_file(proc: FakeProc) -> None:
    """`gpu12` is the N of /dev/nvidiaN, not NVML's index."""
    proc.add(4711, OF_GPU_12)
    reading = proc.read()
    assert reading.users(device(1, 0, minor=12)).in_use
    assert not reading.users(device(1, 0)).in_use


def test_who_holds_only_the_gpu_instance_may_use_all_of_it(proc: FakeProc) -> None:
    """No compute instance shows where it will go."""
    proc.add(4711, FIRST)
    reading = proc.read()
    assert reading.users(device(1, 0)).in_use
    assert reading.users(device(1, 1)).in_use
    assert not reading.users(device(2, 0)).in_use


def test_a_whole_gpu_instance_is_used_by_everybody_in_it(proc: FakeProc) -> None:
    proc.add(4711, FIRST, FIRST_0)
    proc.add(4712, FIRST, FIRST_1)
    users = proc.read().users(device(1, None)).processes
    assert [user.pid for user in users] == [4711, 4712]


def test_configuring_and_watching_are_no_use(proc: FakeProc) -> None:
    """Every program that asks about MIG has those files open."""
    proc.add(4711, CONFIG, "/dev/tty")
    reading = proc.read()
    assert not reading.users(device(1, None)).in_use
    assert not reading.users(device(2, None)).in_use


def test_the_agents_own_files_do_not_count(proc: FakeProc) -> None:
    """NVML opens some in this process."""
    proc.add(os.getpid(), FIRST_0)
    assert not proc.read().users(device(1, 0)).in_use


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    was = os.geteuid()
    os.seteuid(was or 65534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_a_process_that_may_not_be_looked_into_leaves_it_unknown(short: Path) -> None:
    proc = FakeProc(short)
    proc.add(4711)
    (proc.root / "4711/fd").chmod(0)
    with as_unprivileged_user():
        usage = proc.read().users(device(2, 0))
    (proc.root / "4711/fd").chmod(0o700)
    assert not usage.known
    assert usage.in_use
    assert "1 processes may not be read" in usage.reason


NO_DRIVER = "Character devices:\n  1 mem\n"


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda proc: (proc.root / "1").rename(proc.root / "was1"), "hidepid"),
        (lambda proc: proc.link("self/ns/pid", "pid:[4026532301]"), "hostPID"),
        (lambda proc: (proc.root / "driver/nvidia-caps/mig-minors").unlink(), "mig-minors"),
        (lambda proc: (proc.root / "devices").write_text(NO_DRIVER), "has no nvidia-caps"),
        (lambda proc: (proc.root / "devices").unlink(), "cannot be looked through"),
    ],
)
def test_what_cannot_be_seen_leaves_it_unknown(
    proc: FakeProc, break_it: Callable[[FakeProc], object], reason: str
) -> None:
    proc.add(4711, FIRST_0)
    break_it(proc)
    usage = proc.read().users(device(2, 0))
    assert not usage.known
    assert reason in usage.reason


def test_without_capability_files_no_process_holds_one(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path, minors=None)
    proc.link("self/ns/pid", "pid:[4026532301]")
    proc.add(4711, "/dev/nvidia0")
    assert proc.read().users(device(1, 0)) == Usage()


def test_a_gpu_whose_device_file_is_not_known_may_be_anyones(proc: FakeProc) -> None:
    assert not proc.read().users(device(1, 0, minor=None)).in_use
    proc.add(4711, OF_GPU_12)
    assert not proc.read().users(device(1, 0, minor=None)).known


def test_a_process_that_ends_meanwhile_is_no_matter(proc: FakeProc) -> None:
    proc.add(4711)
    (proc.root / "4711/fd/0").unlink()
    (proc.root / "4712").mkdir()
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
    proc = FakeProc(tmp_path)
    proc.add(9999, "socket:[12345]", "/dev/nvidia0")
    for pid in range(10_000, 20_000):
        (tmp_path / str(pid)).symlink_to("9999")
    proc.add(4711, FIRST_0)
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
    first = Usage(known=False, reason="refused")
    assert first.together(Usage()) == first
    assert Usage().together(first) == first
    both = first.together(Usage(known=False, reason="hidden"))
    assert both.reason == "refused; hidden"
    assert first.together(first).reason == "refused"


ANY_DEVICE = MigDeviceRef("GPU-1", 0, 1, 0)


class Source:
    def __init__(self, seconds: float = 0.02) -> None:
        self.seconds = seconds
        self.begun: list[float] = []

    def read(self) -> UsageReading:
        self.begun.append(time.monotonic())
        time.sleep(self.seconds)
        return CapabilityHolders()


async def test_many_who_ask_at_once_cost_one_look() -> None:
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
    reader = CapabilityUsers(Source().read, deadline=30)
    one, other = asyncio.create_task(reader.ask()), asyncio.create_task(reader.ask())
    await asyncio.sleep(0.005)
    one.cancel()
    assert (await other).users(ANY_DEVICE).known
    await reader.close()
