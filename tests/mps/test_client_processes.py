"""What a process says of itself is read, however much and whatever it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.mps.client_processes import (
    LARGEST_ENVIRONMENT,
    LONGEST_VALUE,
    read_clients,
    start_time_of,
)
from nodeagent.mps.clients import ClientFacts

PROC = Path("/proc")
PIPES = b"CUDA_MPS_PIPE_DIRECTORY=/run/x/pipe"


class Proc:
    """A tree like /proc with one process in it."""

    def __init__(self, root: Path, pid: int = 42) -> None:
        self.root, self.pid = root, pid
        self.folder = root / str(pid)
        self.folder.mkdir()
        self.write("stat", b"42 (python) S " + b" ".join(b"%d" % n for n in range(4, 53)))
        self.write("status", b"Name:\tpython\nUid:\t1\t1000\t3\t4\nGid:\t5\t5\t5\t5\n")
        self.write("environ", PIPES + b"\0")
        self.write("cgroup", b"0::/user.slice\n")

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def facts(self) -> ClientFacts:
        """Of the process."""
        [found] = read_clients([self.pid], self.root)
        return found


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """With nothing strange about its process."""
    return Proc(tmp_path)


@contextmanager
def process(**environment: str) -> Iterator[int]:
    """A real one, that has started."""
    with subprocess.Popen(
        [sys.executable, "-ISc", "print(flush=True); input()"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout
        child.stdout.readline()
        yield child.pid
        child.communicate(b"\n")


def test_a_real_process() -> None:
    """Its variables of MPS, and no others; gone once it has ended."""
    given = {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/x/pipe",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G",
        "NODEAGENT_MPS_SLOT": "GPU-1/small-0",
    }
    with process(**given, SECRET="x") as pid:
        [found] = read_clients([pid], PROC)
        assert found.environment == given
        assert (found.pid, found.uid) == (pid, os.geteuid())
        assert found.command.startswith("python")
        assert found.start_time == start_time_of(pid, PROC)
        assert found.start_time > 0
    assert read_clients([pid], PROC) == ()
    assert start_time_of(pid, PROC) is None


def test_a_zombie_is_gone(proc: Proc) -> None:
    """It holds nothing any more."""
    proc.write("stat", b"42 (python) Z " + b" ".join(b"%d" % n for n in range(4, 53)))
    assert read_clients([42, 43], proc.root) == ()


def test_a_hostile_name(proc: Proc) -> None:
    """Brackets, line ends and escapes in it change neither the fields nor a terminal."""
    proc.write("stat", b"42 (a) Z (\n\x1b[2J\xff) S " + b" ".join(b"%d" % n for n in range(4, 53)))
    found = proc.facts()
    assert found.command == "a) Z (??[2J\ufffd"
    assert found.start_time == 22


@pytest.mark.parametrize(
    "stat", [b"", b"42", b"42 (a)", b"42 (a) S", b"42 (a) S 1 2", b"\xff" * 99]
)
def test_a_stat_that_is_none(proc: Proc, stat: bytes) -> None:
    """Counts as gone."""
    proc.write("stat", stat)
    assert read_clients([42], proc.root) == ()


def test_a_hostile_environment(proc: Proc) -> None:
    """Invalid UTF-8, line ends, no names, no values, and the same name twice: the first counts."""
    proc.write(
        "environ",
        b"\0".join(
            [
                b"=x",
                b"junk",
                b"",
                PIPES,
                b"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,1=2G",
                b"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=9G",
                b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=\xff\n5",
                b"NODEAGENT_MPS_SLOT=",
                b"NODEAGENT_MPS_SLOT_MORE=x",
                b"PATH=/bin",
            ]
        ),
    )
    assert proc.facts().environment == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/x/pipe",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=2G",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "\ufffd\n5",
        "NODEAGENT_MPS_SLOT": "",
    }


def test_megabytes_of_environment(proc: Proc) -> None:
    """As much as the kernel lets a process have is read, little is kept; more is not believed."""
    big = b"CUDA_MPS_X=" + b"x" * (6 * 1024**2)
    proc.write("environ", b"\0".join([big, PIPES, b"NODEAGENT_MPS_SLOT=a/b"]))
    found = proc.facts().environment
    assert found is not None
    assert found["NODEAGENT_MPS_SLOT"] == "a/b"
    assert len(found["CUDA_MPS_X"]) == LONGEST_VALUE
    proc.write("environ", PIPES + b"\0" + b"x" * LARGEST_ENVIRONMENT)
    assert proc.facts().environment is None


@pytest.mark.parametrize("environ", [b"", b"\0" * 500, b"ray::worker\0\0\0", b"PATH=/bin\0"])
def test_a_program_that_renamed_itself(proc: Proc, environ: bytes) -> None:
    """And so wrote over its environment: not that it has no limits, but that they are unknown."""
    proc.write("environ", environ)
    assert proc.facts().environment is None


def test_an_environment_that_may_not_be_read(proc: Proc) -> None:
    """Is not known; the rest is."""
    (proc.folder / "environ").unlink()
    (proc.folder / "environ").mkdir()  # as root, permissions alone would keep nobody out
    assert proc.facts().environment is None
    assert proc.facts().uid == 1000


def test_one_that_ends_meanwhile(proc: Proc) -> None:
    """Between one file and the next."""
    (proc.folder / "environ").unlink()
    assert read_clients([42], proc.root) == ()


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        (f"0::/system.slice/docker-{'ab' * 32}.scope\n", "ab" * 6),
        (f"0::/kubepods.slice/pod1/cri-containerd-{'0c' * 32}.scope\n", "0c" * 6),
        (f"5:cpu:/kubepods/pod1/{'12' * 32}\n4:x:/kubepods/pod1/{'12' * 32}\n", "12" * 6),
        ("0::/user.slice/user-1000.slice\n", ""),
        ("", ""),
    ],
)
def test_containers(proc: Proc, cgroup: str, container: str) -> None:
    """Of whatever runtime, by the id that its tools show."""
    proc.write("cgroup", cgroup.encode())
    assert proc.facts().container == container
