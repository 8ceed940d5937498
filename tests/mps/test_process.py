"""A daemon's process: who it is, what it has, when it ends, and whether it is the one."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.mps.identity import CONTROL, identify
from nodeagent.mps.process import (
    DaemonProcess,
    NotTheDaemon,
    Programs,
    StartError,
    adopt,
    last_lines,
    spawn,
)
from nodeagent.mps.shares import DaemonSpec
from tests.mps.conftest import GPU, spec_for, wait_for

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")


@asynccontextmanager
async def running(spec: DaemonSpec, programs: Programs) -> AsyncIterator[DaemonProcess]:
    """A daemon that has noted what it was given; killed in the end."""
    process = spawn(spec, programs)
    try:
        await asyncio.to_thread(wait_for, Path(spec.log_directory) / "seen")
        yield process
    finally:
        process.kill()
        await process.wait()


def seen(spec: DaemonSpec) -> dict[str, Any]:
    """What the daemon was given."""
    noted: dict[str, Any] = json.loads((Path(spec.log_directory) / "seen").read_text())
    return noted


async def test_nothing_of_ours_reaches_a_daemon(
    spec: DaemonSpec, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment is all explicit; no socket of systemd's, no open file, no terminal."""
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
async def test_run_as_the_plans_user(open_folder: Path, programs: Programs) -> None:
    """User, group and further groups, none of root's."""
    spec = replace(spec_for(open_folder, 1000, 100), groups=(44, 109))
    async with running(spec, programs) as process:
        found = seen(spec)
        assert process.identity.uid == 1000
        log = Path(spec.log_directory) / "daemon.log"
        assert log.stat().st_mode & 0o777 == 0o640
    assert (found["uid"], found["gid"], found["groups"]) == (1000, 100, [44, 109])


async def test_a_multi_user_server_is_asked_for(spec: DaemonSpec, programs: Programs) -> None:
    """By the flag that the daemon takes beside -f."""
    async with running(replace(spec, multi_user=True), programs):
        assert seen(spec)["arguments"] == ["-f", "-multiuser-server"]


async def test_servers_may_open_many_files(
    spec: DaemonSpec, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where this process may not; its own limit stays."""
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
    """By all who wait, with the signal by name."""
    async with running(spec, programs) as process:
        waits = [asyncio.create_task(process.wait()) for _ in range(2)]
        gone = asyncio.create_task(process.wait())
        await asyncio.sleep(0)
        gone.cancel()  # one that waits no more takes nothing from the others
        os.kill(process.pid, signal.SIGTERM)
        assert await asyncio.gather(*waits) == ["signal 15 (SIGTERM)"] * 2
        process.kill()  # nothing happens to whoever has the pid next


async def test_how_it_ended_and_what_it_said_last(spec: DaemonSpec, programs: Programs) -> None:
    """Its status, and its log, which goes on over starts."""
    (Path(spec.log_directory) / "end").touch()
    for _ in range(2):
        assert await spawn(spec, programs).wait() == "status 3"
    assert last_lines(spec, 3) == ("last line", "first line", "last line")
    assert last_lines(replace(spec, log_directory="/nowhere"), 3) == ()


async def test_no_program(spec: DaemonSpec) -> None:
    """The path is a setting, so it may be wrong."""
    with pytest.raises(StartError, match="/nowhere/control cannot be run as user"):
        spawn(spec, Programs(control=("/nowhere/control",)))


@pytest.mark.parametrize("trap", ["symlink", "fifo", "hard link", "directory"])
async def test_a_trap_in_place_of_the_log(
    spec: DaemonSpec, programs: Programs, trap: str, tmp_path: Path
) -> None:
    """The directory is the daemon's user's; this process writes to no file of that one's choice."""
    log, victim = Path(spec.log_directory) / "daemon.log", Path(spec.log_directory) / "victim"
    victim.write_text("untouched")
    match trap:
        case "symlink":
            log.symlink_to(victim)
        case "fifo":
            os.mkfifo(log)
        case "hard link":
            log.hardlink_to(victim)
        case "directory":
            log.mkdir()
    with pytest.raises(StartError, match="remove what is in its place"):
        spawn(spec, programs)
    assert victim.read_text() == "untouched"


# --- adoption -------------------------------------------------------------------------------------


async def test_adopted_by_another_agent(spec: DaemonSpec, programs: Programs) -> None:
    """The first looks no more, the second sees it end; nothing was started anew."""
    process = spawn(spec, programs)
    await asyncio.to_thread(wait_for, Path(spec.log_directory) / "seen")
    noted = process.identity
    assert (noted.program, noted.pipe_directory) == (CONTROL, spec.pipe_directory)
    assert identify(noted.pid) == noted
    process.close()
    adopted = adopt(noted, spec)
    os.kill(noted.pid, 0)
    adopted.kill()
    assert "not known" in await adopted.wait()
    _, status = await asyncio.to_thread(os.waitpid, noted.pid, 0)  # it is this test's child still
    assert status == signal.SIGKILL


async def test_what_is_not_adopted(spec: DaemonSpec, programs: Programs) -> None:
    """Each difference is named, and the process left alone."""
    async with running(spec, programs) as process:
        noted = process.identity
        wrong = [
            (replace(noted, start_time=noted.start_time - 1), spec, "used again"),
            (noted, replace(spec, pipe_directory="/elsewhere"), "its pipe directory is"),
            (noted, replace(spec, uid=4711), "not 4711"),
            (replace(noted, pid=os.getpid()), spec, "does not run nvidia-cuda-mps-control"),
            (replace(noted, pid=2**22 - 1), spec, "there is no process"),
        ]
        for identity, wanted, reason in wrong:
            with pytest.raises(NotTheDaemon, match=reason):
                adopt(identity, wanted)
        os.kill(process.pid, 0)
    with pytest.raises(NotTheDaemon, match="no process"):
        adopt(noted, spec)
