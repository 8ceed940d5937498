"""Directories of trials: one for each, and none stays."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from nodeagent.mps.launch.probing import Scratch
from nodeagent.mps.programs import Programs
from tests.machine_load import stretched

_KILLED = """
import os, sys
from pathlib import Path
from nodeagent.mps.launch.probing import Scratch
scratch = Scratch(Path(sys.argv[1]))
scratch.make()
print(scratch.path, flush=True)
os.kill(os.getpid(), 9)
"""


def scratch_in(parent: Path) -> Scratch:
    """One that is there."""
    scratch = Scratch(parent)
    scratch.make()
    return scratch


def test_each_has_its_own(open_folder: Path) -> None:
    """Closed to other users; one in use is left alone by the next."""
    first, second = scratch_in(open_folder), scratch_in(open_folder)
    assert first.path != second.path
    assert first.path.stat().st_mode & 0o777 == 0o700
    first.remove()
    assert not first.path.exists()
    assert second.path.exists()
    second.remove()
    assert not second.path.exists()


def test_what_another_user_locks_or_puts_beside_it(open_folder: Path) -> None:
    """Any user can lock a directory that they may read, such as /tmp, and can have one in it that
    is named like a probe's.
    """
    theirs = open_folder / "probe-theirs"
    theirs.mkdir()
    if os.geteuid() == 0:
        os.chown(theirs, 1000, 1000)
    above = os.open(open_folder, os.O_RDONLY)
    try:
        fcntl.flock(above, fcntl.LOCK_EX)
        scratch_in(open_folder).remove()
    finally:
        os.close(above)
    assert theirs.exists() is (os.geteuid() == 0)


def test_what_is_above_it(open_folder: Path) -> None:
    """Users of MPS pass there later, so that the umask must not close it."""
    before = os.umask(0o077)
    try:
        scratch_in(open_folder / "run" / "mps").remove()
    finally:
        os.umask(before)
    for made in (open_folder / "run", open_folder / "run" / "mps"):
        assert made.stat().st_mode & 0o777 == 0o755


def test_what_a_killed_one_left(open_folder: Path, programs: Programs) -> None:
    """The next ends the daemons that run there, and removes it; others' things stay."""
    kept = open_folder / "other"
    kept.mkdir()
    left = subprocess.run(
        [sys.executable, "-c", _KILLED, open_folder],
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
    scratch_in(open_folder).remove()
    daemon.communicate(timeout=stretched(30))
    assert daemon.returncode == -9
    assert not Path(left).exists()
    assert kept.exists()
