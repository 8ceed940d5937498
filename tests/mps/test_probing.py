import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.mps.launch.probing import Probe, probe, scratch_in
from nodeagent.mps.processes import CONTROL, SERVER
from nodeagent.mps.programs import Programs
from nodeagent.simulation.mps.installation import install
from nodeagent.simulation.mps.knobs import Knobs
from nodeagent.structs import replace
from tests.folders import executable
from tests.machine_load import stretched
from tests.simulation.mps.rig import CONTROL as REAL
from tests.simulation.mps.rig import real_programs

BY_ROOT = os.geteuid() == 0
BOTH = "-multiuser-server"


def programs_in(folder: Path) -> Programs:
    return Programs(control=(str(folder / CONTROL),), path=f"{folder}:/usr/bin:/bin")


@pytest.fixture
def scratch(short: Path) -> Iterator[Path]:
    """Where trials are made; nothing may be left there, and no process that was started there."""
    folder = short / "run" / "mps"
    yield folder
    assert not folder.exists() or list(folder.iterdir()) == []
    assert not _processes_below(folder)


def _processes_below(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"CUDA_MPS_PIPE_DIRECTORY={folder}/".encode() in environment:
            found.append(entry.name)
    return found


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("535", Probe("", ())),
        ("550", Probe("", ())),
        ("555", Probe(BOTH, ())),
        ("580", Probe(BOTH, ())),
        ("615", Probe(BOTH, ())),
    ],
)
async def test_by_version(short: Path, scratch: Path, version: str, expected: Probe) -> None:
    install(short / "bin", version=version)
    found = await probe(programs_in(short / "bin"), scratch=scratch, deadline=60)
    assert found == (expected if BY_ROOT else replace(expected, multi_user_flag=None))


@pytest.mark.skipif(shutil.which(REAL) is None, reason=f"no {REAL} on PATH")
async def test_the_real_program(scratch: Path) -> None:
    """Drivers before 555 have no server for all users."""
    real = await asyncio.to_thread(real_programs)
    assert real is not None
    programs = Programs(control=(str(real.folder / REAL),), path=os.environ["PATH"])
    found = await probe(programs, scratch=scratch, deadline=60)
    assert found.problems == ()
    if real.version.name in {"535", "550"}:
        assert not found.multi_user_flag


@pytest.mark.skipif(not BY_ROOT, reason="a server for all users is for root alone")
async def test_the_short_form_of_the_flag(short: Path, scratch: Path) -> None:
    install(short / "bin", version="580")
    control = short / "bin" / CONTROL
    without = short / "without"
    without.mkdir()
    script = f'#!/bin/sh\ncase "$*" in *multiuser*) exit 1;; esac\nexec {control} "$@"\n'
    executable(without / CONTROL, script)
    (without / SERVER).symlink_to(short / "bin" / SERVER)
    found = await probe(programs_in(without), scratch=scratch, deadline=60)
    assert found.multi_user_flag == "-M"


async def test_no_program(short: Path, scratch: Path) -> None:
    found = await probe(programs_in(short), scratch=scratch, deadline=60)
    [problem] = found.problems
    assert "cannot be run: No such file" in problem.message
    assert "mps.path" in problem.remedy
    assert found.multi_user_flag is None


async def test_a_daemon_that_does_not_start(short: Path, scratch: Path) -> None:
    install(short / "bin")
    Knobs(short / "bin").turn("start_error", "it has its reasons")
    found = await probe(programs_in(short / "bin"), scratch=scratch, deadline=60)
    [problem] = found.problems
    assert problem.message == "no MPS daemon can be started here: it has its reasons"


async def test_a_daemon_that_does_not_answer(short: Path, scratch: Path) -> None:
    install(short / "bin")
    Knobs(short / "bin").turn("hang")
    found = await probe(programs_in(short / "bin"), scratch=scratch, deadline=0.6)
    [problem] = found.problems
    assert "did not answer within 0.6 s" in problem.message


@pytest.mark.skipif(not BY_ROOT, reason="a server for all users is for root alone")
async def test_a_program_that_goes_after_one_question(short: Path, scratch: Path) -> None:
    """What could not be tried is not known, and no failure of the probe."""
    install(short / "real")
    gone = short / "bin" / "nvidia-cuda-mps-control"
    gone.parent.mkdir()
    executable(gone, f'#!/bin/sh\n[ $# -gt 0 ] || rm "$0"\nexec {short}/real/{gone.name} "$@"\n')
    programs = replace(programs_in(short / "real"), control=(str(gone),))
    found = await probe(programs, scratch=scratch, deadline=60)
    assert found.multi_user_flag is None
    assert "not wholly known" in found.problems[0].message


async def test_no_server_on_the_path(short: Path, scratch: Path) -> None:
    """Distributions put it where a short PATH does not lead."""
    install(short / "bin")
    programs = replace(programs_in(short / "bin"), path="/nowhere:/usr/bin:/bin")
    found = await probe(programs, scratch=scratch, deadline=60)
    [problem] = found.problems
    assert problem.message.startswith("nvidia-cuda-mps-server is not in /nowhere")


async def test_given_up(short: Path, scratch: Path) -> None:
    install(short / "bin")
    for pause in (0, 0.01, 0.05, 0.1, 0.12, 0.14, 0.16, 0.18):  # a whole one takes about 0.2 s
        probing = asyncio.create_task(
            probe(programs_in(short / "bin"), scratch=scratch, deadline=60)
        )
        await asyncio.sleep(pause)
        if probing.cancel():  # else it was done before, as on a quick machine
            with pytest.raises(asyncio.CancelledError):
                await probing


async def test_a_path_too_long_for_sockets(short: Path) -> None:
    """The daemon would end without a word."""
    install(short / "bin")
    long = short / ("x" * 80)
    found = await probe(programs_in(short / "bin"), scratch=long, deadline=60)
    assert "too long for sockets" in found.problems[0].message
    assert await asyncio.to_thread(lambda: list(long.iterdir())) == []


# --- scratch --------------------------------------------------------------------------------------


_KILLED = """
import os, sys
from pathlib import Path
from nodeagent.mps.launch.probing import scratch_in
with scratch_in(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_each_has_its_own(short: Path) -> None:
    with scratch_in(short) as first:
        os.utime(first, (0, 0))
        with scratch_in(short) as second:
            assert first != second
            assert first.stat().st_mode & 0o777 == 0o700
        assert list(short.iterdir()) == [first]
    assert list(short.iterdir()) == []


def test_what_another_user_locks_or_puts_beside_it(short: Path) -> None:
    """Any user can lock a directory that they may read, such as /tmp, and can have one in it that
    is named like a probe's. One that was just made is about to be locked.
    """
    theirs, new = short / "probe-theirs", short / "probe-new"
    theirs.mkdir()
    new.mkdir()
    os.utime(theirs, (0, 0))
    if os.geteuid() == 0:
        os.chown(theirs, 1000, 1000)
    above = os.open(short, os.O_RDONLY)
    try:
        fcntl.flock(above, fcntl.LOCK_EX)
        with scratch_in(short):
            assert theirs.exists() is (os.geteuid() == 0)
            assert new.exists()
    finally:
        os.close(above)


def test_what_is_above_it(short: Path) -> None:
    """Users of MPS pass there later, so that the umask must not close it."""
    before = os.umask(0o077)
    try:
        with scratch_in(short / "run" / "mps"):
            for made in (short / "run", short / "run" / "mps"):
                assert made.stat().st_mode & 0o777 == 0o755
    finally:
        os.umask(before)


def test_what_a_killed_one_left(short: Path, programs: Programs) -> None:
    kept = short / "other"
    kept.mkdir()
    left = subprocess.run(
        [sys.executable, "-c", _KILLED, short],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]},
    ).stdout.strip()
    pipes = Path(left) / "plain" / "pipe"
    pipes.mkdir(parents=True)
    daemon = subprocess.Popen(
        [*programs.control, "-f"],
        env={"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(kept)},
        stdout=subprocess.PIPE,
    )
    assert daemon.stdout
    assert daemon.stdout.readline() == b"first line\n"
    with scratch_in(short):
        pass
    daemon.communicate(timeout=stretched(30))
    assert daemon.returncode == -9
    assert not Path(left).exists()
    assert kept.exists()
