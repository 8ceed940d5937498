import asyncio
import os
import re
import resource
import signal
from pathlib import Path

import pytest

from nodeagent.mps.commands import ControlCommand
from nodeagent.mps.control import ControlClient, ControlError
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.launch.launcher import DaemonProcess, StartError, adopt
from nodeagent.mps.launch.probing import probe
from nodeagent.mps.processes import CONTROL, SERVER, mps_process, processes_of
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import DaemonSpec
from nodeagent.structs import replace
from tests.machine_load import stretched, until
from tests.mps.conftest import as_root, may_mount, running, seen, spec_for
from tests.mps.fleet_rig import GPU
from tests.mps.plans import with_account


def _has_capability(number: int) -> bool:
    """Whether this process has that one of root's powers (<linux/capability.h>)."""
    return bool(int(_read("/proc/self/status").split("CapEff:")[1].split()[0], 16) >> number & 1)


def _read(path: str) -> str:
    return Path(path).read_text()


def _exists(path: Path) -> bool:
    return path.exists()


def _same(one: Path, other: Path) -> bool:
    return one.samefile(other)


async def test_nothing_of_ours_reaches_a_daemon(
    spec: DaemonSpec, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("LD_PRELOAD", "")
    inherited = os.dup(0)
    os.set_inheritable(inherited, True)
    try:
        async with running(spec, replace(programs, library_path="/opt/cuda")):
            found = seen(spec)
    finally:
        os.close(inherited)
    found["environment"].pop("LC_CTYPE", None)  # Python's own doing
    assert found["environment"] == {
        "CUDA_MPS_LOG_DIRECTORY": spec.log_directory,
        "CUDA_MPS_PIPE_DIRECTORY": spec.pipe_directory,
        "CUDA_VISIBLE_DEVICES": GPU,
        "LC_ALL": "C",
        "LD_LIBRARY_PATH": "/opt/cuda",
        "PATH": programs.path,
    }
    assert found["arguments"] == ["-f"]
    assert found["descriptors"] == [0, 1, 2, 3]  # the last is the look at them
    assert (found["session"], found["cwd"]) == (True, "/")


@as_root
async def test_run_as_the_plans_user(short: Path, programs: Programs) -> None:
    spec = with_account(spec_for(short, 1000, 100), groups=(44, 109))
    async with running(spec, programs) as process:
        found = seen(spec)
        assert process.identity.uid == 1000
        log = Path(spec.log_directory) / "daemon.log"
        assert log.stat().st_mode & 0o777 == 0o640
    assert (found["uid"], found["gid"], found["groups"]) == (1000, 100, [44, 109])


async def test_servers_may_open_many_files(spec: DaemonSpec, programs: Programs) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        async with running(spec, programs) as process:
            soft, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert soft == min(16_384, before[1] if before[1] > 0 else 16_384)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_its_end_is_seen_at_once(spec: DaemonSpec, programs: Programs) -> None:
    async with running(spec, programs) as process:
        waits = [asyncio.create_task(process.wait()) for _ in range(2)]
        gone = asyncio.create_task(process.wait())
        await asyncio.sleep(0)
        gone.cancel()  # one that waits no more takes nothing from the others
        os.kill(process.pid, signal.SIGTERM)
        assert await asyncio.gather(*waits) == ["signal 15 (SIGTERM)"] * 2
        process.kill()  # nothing happens to the process that has the pid next


@pytest.mark.parametrize("trap", ["symlink", "fifo", "hard link", "directory"])
async def test_a_trap_in_place_of_the_log(spec: DaemonSpec, programs: Programs, trap: str) -> None:
    """The directory is the daemon's user's; this process writes to no file of that one's choice."""
    log, victim = Path(spec.log_directory) / "daemon.log", Path(spec.log_directory) / "victim"
    victim.write_text("untouched")
    match trap:
        case "symlink":
            log.symlink_to("victim")  # relative, as one that leads to / could cross a mount
        case "fifo":
            os.mkfifo(log)
        case "hard link":
            log.hardlink_to(victim)
        case "directory":
            log.mkdir()
    with pytest.raises(StartError, match=r"cannot be written|is not a plain file") as caught:
        await ChildLauncher(programs).launch(spec)
    assert victim.read_text() == "untouched"
    _, command = re.findall(r"`(.+?)`", caught.value.remedy)
    program, source, target = command.split()
    assert (program, source) == ("mv", str(log))
    log.rename(target)
    async with running(spec, programs):
        assert victim.read_text() == "untouched"


@pytest.mark.parametrize("name", [CONTROL, SERVER])
async def test_programs_that_others_can_write(
    spec: DaemonSpec, programs: Programs, name: str
) -> None:
    """Neither a daemon nor its front-end is run with such a control program or server."""
    program = Path(programs.control[0]).with_name(name)
    await asyncio.to_thread(program.chmod, 0o757)
    named = replace(programs, control=(CONTROL,))
    with pytest.raises(StartError, match=f"`chmod go-w {program}`"):
        await ChildLauncher(named).launch(spec)
    if name == CONTROL:
        pipes, logs = spec.pipe_directory, spec.log_directory
        client = ControlClient(named, pipe_directory=pipes, log_directory=logs, deadline=60.0)
        with pytest.raises(ControlError, match=f"`chmod go-w {program}`"):
            await client.converse((ControlCommand("get_server_list", tuple),))
        [problem] = (await probe(named, scratch=program.parent, deadline=60.0)).problems
        assert f"`chmod go-w {program}`" in problem.message


@pytest.mark.skipif(not _has_capability(24), reason="needs CAP_SYS_RESOURCE")
async def test_others_go_first_when_memory_runs_out(spec: DaemonSpec, programs: Programs) -> None:
    """A daemon's end would be that of its clients' work; what is spared more stays so."""
    async with running(spec, programs) as process:
        score = _read(f"/proc/{process.pid}/oom_score_adj")
    assert int(score) == min(int(_read("/proc/self/oom_score_adj")), -500)


async def test_a_start_that_is_given_up(spec: DaemonSpec, programs: Programs) -> None:
    for rounds in range(6):
        start = asyncio.create_task(ChildLauncher(programs).launch(spec))
        for _ in range(rounds):
            await asyncio.sleep(0.002)
        start.cancel()
        try:
            process = await start
        except asyncio.CancelledError:
            continue
        process.kill()
        await process.wait()
    async with asyncio.timeout(stretched(30)):
        while await asyncio.to_thread(processes_of, spec.pipe_directory, CONTROL):
            await asyncio.sleep(0.01)


async def test_a_driver_without_servers_for_all(spec: DaemonSpec, programs: Programs) -> None:
    """It is said, instead of started as something else, and the program is tried again: it may have
    been replaced. A flag that was found is used from then on.
    """
    wanted, trials = with_account(spec, any_user=True), ["", "-M"]

    async def find_flag() -> str:
        return trials.pop(0)

    launcher = ChildLauncher(programs, find_flag=find_flag)
    with pytest.raises(StartError, match="has no server for all users"):
        await launcher.launch(wanted)
    for _ in range(2):
        process = await launcher.launch(wanted)
        words = await asyncio.to_thread(Path(f"/proc/{process.pid}/cmdline").read_bytes)
        process.kill()
        await process.wait()
        assert words.split(b"\0")[-3:-1] == [b"-f", b"-M"]
    assert trials == []


# --- a /dev/shm of its own ------------------------------------------------------------------------


@may_mount
async def test_a_private_shm(short: Path, programs: Programs) -> None:
    """What the daemon makes in its /dev/shm lies in the device's directory, and nowhere else; this
    process' own mounts and those of later daemons are as before.
    """
    spec = replace(spec_for(short, 1000, 100), private_shm=True)
    mounts = _read("/proc/self/mountinfo")
    async with running(spec, programs) as process:
        inside, segment = Path(f"/proc/{process.pid}/root/dev/shm"), f"segment-{process.pid}"
        (inside / segment).touch()
        directory = Path(spec.shm)
        assert directory == Path(spec.pipe_directory).parent / "shm"
        assert _exists(directory / segment)
        assert not _exists(Path("/dev/shm") / segment)
        assert (seen(spec)["uid"], seen(spec)["gid"]) == (1000, 100)
        later = spec_for(short, 1000, 100, device="GPU-other")
        async with running(later, programs) as other:
            host = Path(f"/proc/{other.pid}/root/dev/shm")
            assert not _exists(host / segment)
            assert _same(host, Path(later.shm))
    assert _read("/proc/self/mountinfo") == mounts


@may_mount
async def test_a_private_shm_that_cannot_be(spec: DaemonSpec, programs: Programs) -> None:
    private = replace(spec, private_shm=True)
    await asyncio.to_thread(Path(private.shm).rmdir)
    with pytest.raises(StartError, match=r"/dev/shm of its own: .*/shm cannot be mounted.*No such"):
        await ChildLauncher(programs).launch(private)
    assert not processes_of(spec.pipe_directory, CONTROL)


# --- process --------------------------------------------------------------------------------------


async def test_adopted_by_another_agent(spec: DaemonSpec, programs: Programs) -> None:
    process = await ChildLauncher(programs).launch(spec)
    await until((Path(spec.log_directory) / "seen").exists)
    noted = process.identity
    assert (noted.program, noted.pipe_directory) == (CONTROL, spec.pipe_directory)
    assert mps_process(noted.pid) == noted
    process.close()
    adopted = await adopt(noted, spec)
    assert adopted is not None
    os.kill(noted.pid, 0)
    adopted.kill()
    assert "not known" in await adopted.wait()
    _, status = await asyncio.to_thread(os.waitpid, noted.pid, 0)  # it is this test's child still
    assert status == signal.SIGKILL


async def test_what_is_not_adopted(spec: DaemonSpec, programs: Programs) -> None:
    async with running(spec, programs) as process:
        noted = process.identity
        wrong = [
            (replace(noted, start_time=noted.start_time - 1), spec),  # its number was used again
            (noted, replace(spec, pipe_directory="/elsewhere")),
            (noted, with_account(spec, uid=4711)),
            (replace(noted, pid=os.getpid()), spec),
            (replace(noted, pid=2**22 - 1), spec),
        ]
        for identity, wanted in wrong:
            assert await adopt(identity, wanted) is None
        os.kill(process.pid, 0)
    assert await adopt(noted, spec) is None


async def test_how_it_ended_cannot_be_found_out(spec: DaemonSpec, programs: Programs) -> None:
    """Its end counts nonetheless, else no other daemon would follow."""

    async def find_end() -> str:
        raise RuntimeError("can't start new thread")

    async with running(spec, programs) as process:
        watched = DaemonProcess(process.identity, find_end)
        watched.kill()
        assert await watched.wait() == "its status is not known"
