"""Daemons as services: what systemd is asked for, what it says when it goes wrong, how they end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.mps.launch.launcher import DaemonProcess, StartError
from nodeagent.mps.launch.service import ServiceLauncher, unit_of
from nodeagent.mps.processes import CONTROL, mps_process, processes_of
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import DaemonSpec
from nodeagent.structs import replace
from tests.mps.conftest import as_root, flag, seen, spec_for, wait_for
from tests.mps.fleet_rig import GPU
from tests.mps.plans import with_account
from tests.mps.systemd_programs import SystemdPrograms

UNIT = f"nodeagent-mps-{GPU}.service"


@pytest.fixture
def systemd(open_folder: Path, programs: Programs) -> SystemdPrograms:
    """Its programs, beside those of MPS, first on PATH."""
    return SystemdPrograms(open_folder)


@asynccontextmanager
async def service(
    spec: DaemonSpec, programs: Programs, *, host: bool = False
) -> AsyncIterator[DaemonProcess]:
    """A daemon that has noted what it was given; killed in the end."""
    launcher = ServiceLauncher(programs, host=host, deadline=60, find_flag=flag("-M"))
    process = await launcher.launch(spec)
    try:
        await asyncio.to_thread(wait_for, Path(spec.log_directory) / "seen")
        yield process
    finally:
        process.kill()
        await process.wait()


@as_root
async def test_run_as_the_plans_user(
    open_folder: Path, programs: Programs, systemd: SystemdPrograms
) -> None:
    """User, groups, environment and log as a child's; the pid is the daemon's own."""
    spec = with_account(spec_for(open_folder, 1000, 100), groups=(44, 109))
    async with service(spec, replace(programs, library_path="/opt/cuda")) as process:
        assert process.identity == mps_process(process.pid)
        assert (process.identity.uid, process.identity.program) == (1000, CONTROL)
        found = seen(spec)
        assert (found["uid"], found["gid"], found["groups"]) == (1000, 100, [44, 109])
        assert (
            found["environment"].items()
            >= {
                "CUDA_MPS_PIPE_DIRECTORY": spec.pipe_directory,
                "CUDA_VISIBLE_DEVICES": GPU,
                "LD_LIBRARY_PATH": "/opt/cuda",
            }.items()
        )
        assert found["arguments"] == ["-f"]
        said = Path(spec.log_directory) / "daemon.log"
        assert await asyncio.to_thread(said.read_text) == "first line\nlast line\n"


async def test_what_systemd_is_asked_for(
    spec: DaemonSpec, programs: Programs, systemd: SystemdPrograms
) -> None:
    """Its own slice, limits that servers need, servers left alone, and this /dev/shm."""
    async with service(replace(with_account(spec, any_user=True), private_shm=True), programs):
        [call] = [call for call in systemd.calls() if call[0] == "systemd-run"]
    assert {
        f"--unit={UNIT}",
        "--service-type=exec",
        "--slice=nodeagent-mps.slice",
        "--property=KillMode=process",
        "--property=LimitNOFILE=16384:524288",
        "--property=OOMScoreAdjust=-500",
        f"--property=BindPaths={Path(spec.pipe_directory).parent}/shm:/dev/shm",
    } < set(call)
    assert call[call.index("--") + 1 :] == [*programs.control, "-f", "-M"]


@pytest.mark.parametrize("host", [False, True])
async def test_through_the_hosts_systemd(
    spec: DaemonSpec, programs: Programs, systemd: SystemdPrograms, host: bool
) -> None:
    """Every call, or none, goes into the mount namespace of the host."""
    async with service(spec, programs, host=host):
        calls = systemd.calls()  # not of its end, which may be given up between the two
    entered = [call for call in calls if call[0] == "nsenter"]
    asked = [call for call in calls if call[0] != "nsenter"]
    assert len(entered) == (len(asked) if host else 0)
    assert len(asked) >= 3


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "signal 9 (SIGKILL)"),
        (signal.SIGTERM, "in a way that systemd counts as clean"),
    ],
)
async def test_how_it_ended(
    spec: DaemonSpec,
    programs: Programs,
    systemd: SystemdPrograms,
    number: signal.Signals,
    how: str,
) -> None:
    """As systemd knows, its parent; nothing of the unit is left, so it can be started anew."""
    for _ in range(2):
        async with service(spec, programs) as process:
            os.kill(process.pid, number)
            assert await process.wait() == how
        assert systemd.units() == []


async def test_systemd_does_not_answer_once_it_runs(
    spec: DaemonSpec, programs: Programs, systemd: SystemdPrograms
) -> None:
    """It is asked again: a daemon that nobody looks at would keep out every later one."""
    (systemd.folder / "fail_once").touch()
    async with service(spec, programs) as process:
        assert processes_of(spec.pipe_directory, CONTROL) == (process.identity,)
    assert not (systemd.folder / "fail_once").exists()


async def test_one_that_ends_at_once(
    spec: DaemonSpec, programs: Programs, systemd: SystemdPrograms
) -> None:
    """Seen as its end, or, where it is quicker, as a start that failed; with its status."""
    (Path(spec.log_directory) / "end").touch()
    launcher = ServiceLauncher(programs, host=False, deadline=60)
    try:
        how = await (await launcher.launch(spec)).wait()
    except StartError as error:
        how = error.message
    assert how.endswith("status 3")


async def test_no_program(spec: DaemonSpec, programs: Programs, systemd: SystemdPrograms) -> None:
    """systemd gives a number alone; its meaning is said, and the unit does not stay."""
    missing = replace(programs, control=("/nowhere/control",))
    launcher = ServiceLauncher(missing, host=False, deadline=60)
    with pytest.raises(StartError, match=r"Job for .* failed .*\(the program cannot be run\)"):
        await launcher.launch(spec)
    assert systemd.units() == []


async def test_what_failed_earlier_is_cleared(
    spec: DaemonSpec, programs: Programs, systemd: SystemdPrograms
) -> None:
    """A unit that failed while no agent ran keeps its name until then."""
    systemd.turn(UNIT, ActiveState="failed", Result="signal", ExecMainCode=2, ExecMainStatus=9)
    async with service(spec, programs):
        assert unit_of(spec) == UNIT


async def test_a_unit_that_runs_already(
    spec: DaemonSpec, programs: Programs, systemd: SystemdPrograms
) -> None:
    """It is named, not replaced: another program may use it."""
    systemd.turn(UNIT, ActiveState="active", MainPID=815)
    launcher = ServiceLauncher(programs, host=False, deadline=60)
    with pytest.raises(StartError, match=f"{UNIT} runs already, with pid 815"):
        await launcher.launch(spec)


async def test_systemd_does_not_answer(
    spec: DaemonSpec, programs: Programs, systemd: SystemdPrograms
) -> None:
    """The deadline ends it, and what may come late is taken back."""
    (systemd.folder / "hang").touch()
    launcher = ServiceLauncher(programs, host=False, deadline=0.5)
    with pytest.raises(StartError, match=r"has not started .* within 0\.5 s"):
        await launcher.launch(spec)
    assert systemd.calls()[-1] == ["systemctl", "stop", "--no-block", UNIT]
    assert not processes_of(spec.pipe_directory, CONTROL)


@pytest.mark.parametrize("host", [False, True])
async def test_no_systemd(
    spec: DaemonSpec, programs: Programs, systemd: SystemdPrograms, host: bool
) -> None:
    """The words of who did not find it, and what to do: in a pod, hostPID may be missing."""
    program, complaint, remedy = {
        False: ("systemctl", "System has not been booted with systemd", "mps.launch to child"),
        True: ("nsenter", "nsenter: failed to execute systemctl: No such file", "hostPID"),
    }[host]
    (systemd.folder / program).write_text(f"#!/bin/sh\necho '{complaint}' >&2\nexit 1\n")
    launcher = ServiceLauncher(programs, host=host, deadline=60)
    with pytest.raises(StartError, match=complaint) as refusal:
        await launcher.launch(spec)
    assert remedy in (refusal.value.remedy or "")


@pytest.mark.parametrize("hostile", ["a b", "%n", "$HOME", "a\\x20", '"', "a\nUser=root"])
async def test_what_systemd_could_misread(
    spec: DaemonSpec, programs: Programs, systemd: SystemdPrograms, hostile: str
) -> None:
    """Refused in any value, rather than escaped in ways that differ between its versions."""
    launcher = ServiceLauncher(
        replace(programs, library_path=f"/opt/{hostile}"),
        host=False,
        deadline=60,
    )
    with pytest.raises(StartError, match="systemd could take for its own"):
        await launcher.launch(spec)
    assert [call[0] for call in systemd.calls()] == ["systemctl"]


async def test_a_log_that_leads_elsewhere(
    spec: DaemonSpec, programs: Programs, systemd: SystemdPrograms
) -> None:
    """systemd, which opens logs as root, gets the file that was looked at, not its name."""
    victim = Path(spec.log_directory) / "victim"
    victim.touch()
    log = Path(spec.log_directory) / "daemon.log"
    log.symlink_to("victim")
    launcher = ServiceLauncher(programs, host=False, deadline=60)
    with pytest.raises(StartError, match="cannot be written"):
        await launcher.launch(spec)
    log.unlink()
    async with service(spec, programs):
        [call] = [call for call in systemd.calls() if call[0] == "systemd-run"]
        [opened] = [text for text in call if "StandardOutput" in text]
        assert opened.startswith(f"--property=StandardOutput=append:/proc/{os.getpid()}/fd/")
