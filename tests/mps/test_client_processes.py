import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.mps.clients.assess import ClientFacts
from nodeagent.mps.clients.watch import MAX_VALUE_LENGTH, container_in, read_clients
from nodeagent.processes import ProcessIdentity, identify
from tests.locked_process import locked_process
from tests.mps.conftest import as_root
from tests.processes.real import ready_process

PIPES = b"CUDA_MPS_PIPE_DIRECTORY"
STRANGE = Path(__file__).parents[1] / "processes/strange_process.py"


@contextmanager
def process(environment: dict[bytes, bytes], *script: str) -> Iterator[int]:
    program = script or ("-ISc", "print(flush=True); input()")
    with ready_process(sys.executable, *program, env=environment) as child:
        yield child.pid


def read(*pids: int) -> tuple[ClientFacts, ...]:
    return asyncio.run(read_clients(pids))


def facts(environment: dict[bytes, bytes], *script: str) -> ClientFacts:
    with process(environment, *script) as pid:
        [found] = read(pid)
        return found


def test_a_real_process() -> None:
    given = {
        PIPES: b"/run/x/pipe",
        b"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": b"0=1G",
        b"NODEAGENT_MPS_SLOT": b"GPU-1/small-0",
    }
    with process({**given, b"NODEAGENT_MPS_SLOT_MORE": b"x", b"SECRET": b"x"}) as pid:
        [found] = read(pid)
        assert found.environment == {name.decode(): text.decode() for name, text in given.items()}
        assert (found.client.pid, found.client.user) == (pid, os.geteuid())
        assert found.client.command.startswith("python")
        assert identify(pid) == ProcessIdentity(pid, found.start_time)
    assert read(pid) == ()


def test_a_hostile_name() -> None:
    name = "a) Z (\n\x1b[2J"
    with process({PIPES: b"x"}, str(STRANGE), name, "0", str(os.geteuid())) as pid:
        [found] = read(pid)
        assert found.client.command == "a) Z (??[2J"
        assert identify(pid) == ProcessIdentity(pid, found.start_time)


def test_a_hostile_environment() -> None:
    found = facts(
        {
            PIPES: b"/run/x/pipe",
            b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": b"\xff\n5",
            b"NODEAGENT_MPS_SLOT": b"",
            b"CUDA_MPS_X": b"x" * 100_000,
        }
    ).environment
    assert found == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/x/pipe",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "\ufffd\n5",
        "NODEAGENT_MPS_SLOT": "",
        "CUDA_MPS_X": "x" * MAX_VALUE_LENGTH,
    }


def test_a_program_that_lost_its_environment() -> None:
    """Not that it has no limits, but that they are unknown: one that never named a pipe directory,
    and one that shows zeros in place of what it had.
    """
    assert facts({b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": b"5"}).environment is None
    if os.geteuid() == 0:
        shown = (str(STRANGE), "python", "4096", str(os.geteuid()))
        assert facts({PIPES: b"/run/x/pipe"}, *shown).environment is None


@as_root
async def test_a_client_whose_memory_is_locked() -> None:
    given = {PIPES: b"/run/x/pipe"}
    with locked_process(uid=1000, environment={}) as locked, process(given) as pid:
        for _ in range(2):
            one, other = await read_clients((locked, pid))
            assert (one.pid, one.client.user, one.environment) == (locked, 1000, None)
            assert (other.pid, other.environment) == (pid, {PIPES.decode(): "/run/x/pipe"})


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
def test_containers(cgroup: str, container: str) -> None:
    assert container_in(cgroup) == container
