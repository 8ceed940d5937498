import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.mps.clients.termination import ClientEnd, ClientToEnd, end_client
from nodeagent.processes import ProcessIdentity, identify
from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.structs import replace
from tests.machine_load import cancelled, stretched, until
from tests.mps.client_watch.conftest import asking
from tests.mps.conftest import as_root
from tests.processes.real import process_of, ready_process
from tests.simulation.mps.rig import Rig

ME = os.geteuid()
ROOT = Path(__file__).parents[3]


@pytest.fixture
def client(rig: Rig) -> Iterator[SimulatedClient]:
    rig.start()
    with SimulatedClient(rig.pipes) as made:
        made.wait_until_accepted()
        yield made


def target_of(pid: int, uid: int | None = ME) -> ClientToEnd:
    found = identify(pid)
    assert isinstance(found, ProcessIdentity)
    return ClientToEnd(found, uid)


async def end(
    rig: Rig,
    target: ClientToEnd,
    *,
    listed: Collection[int] | None = None,
    deadline: float = 60.0,
    grace: float = 5.0,
) -> ClientEnd:
    """End it; the driver lists just this process where nothing else is said."""

    async def mps_processes() -> Collection[int]:
        return [target.process.pid] if listed is None else listed

    return await end_client(asking(rig), target, mps_processes, deadline=deadline, grace=grace)


@contextmanager
def stubborn(rig: Rig, *ignored: str) -> Iterator[subprocess.Popen[bytes]]:
    """A client that does not end of the error that it gets, nor of some signals."""
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from nodeagent.simulation.mps import protocol
for name in {ignored!r}:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
server = protocol.connect(protocol.pipe_directory() + "/" + protocol.CONTROL)
protocol.send(server, {{"hello": "client", "environment": {{}}}})
protocol.receive(server)
if os.fork() == 0:  # keeps the connection, so that the daemon lists a client that is dead
    sys.stdin.read()
    os._exit(0)
print(flush=True)
while True:
    signal.pause()
"""
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(rig.pipes)}
    with ready_process(sys.executable, "-ISc", script, env=environment) as child:
        yield child


@pytest.mark.parametrize(("ignored", "number"), [((), "SIGTERM"), (("SIGTERM",), "SIGKILL")])
async def test_by_signals_afterwards(rig: Rig, ignored: tuple[str, ...], number: str) -> None:
    rig.start()
    with stubborn(rig, *ignored) as child:
        ending = await end(rig, target_of(child.pid), grace=0.3)
        assert ending == ClientEnd(True, f"the daemon ended its work, and {number} the process")
        assert child.wait(stretched(30)) == -getattr(signal, number)


async def test_a_daemon_that_does_not_answer(rig: Rig, client: SimulatedClient) -> None:
    rig.knobs.turn("terminate_code", -1)
    ending = await end(rig, target_of(client.pid), deadline=0.3, grace=0.1)
    assert not ending.gone
    assert "left alone: the MPS daemon" in ending.words
    assert "did not answer within 0.3 s" in ending.words
    assert client.process.poll() is None


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with process_of("/bin/sleep", "60") as child:
        yield child


async def test_whom_the_daemon_does_not_have(
    rig: Rig, client: SimulatedClient, bystander: subprocess.Popen[bytes]
) -> None:
    """Is ended where the driver lists it: another daemon has it, so no client here is harmed."""
    ending = await end(rig, target_of(bystander.pid), grace=0.3)
    assert ending == ClientEnd(
        True, "the daemon does not list it as a client, and SIGTERM the process"
    )
    assert client.process.poll() is None


async def test_a_daemon_that_does_not_tell_its_clients(
    rig: Rig, client: SimulatedClient, bystander: subprocess.Popen[bytes]
) -> None:
    """May have it as a client whose work is in flight."""
    rig.knobs.turn("server_busy")
    ending = await end(rig, target_of(bystander.pid), grace=0.1)
    assert ending == ClientEnd(False, "left alone: the daemon does not list its clients")
    assert bystander.poll() is None


@as_root
@pytest.mark.parametrize(
    ("owner", "user", "words"),
    [
        (0, 4001, "it runs as user 0, not as the plan's user 4001"),
        (4002, 4001, "it runs as user 4002, not as the plan's user 4001"),
        (4001, 0, "it runs as user 4001, not as the plan's user 0"),
        (0, None, "it has the rights of root"),
    ],
)
async def test_another_users_process(rig: Rig, owner: int, user: int | None, words: str) -> None:
    rig.start()
    with process_of("/bin/sleep", "60", user=owner, extra_groups=()) as child:
        ending = await end(rig, target_of(child.pid, user))
        assert ending == ClientEnd(False, f"left alone: {words}")
        assert child.poll() is None


async def test_a_number_that_was_used_again(rig: Rig, client: SimulatedClient) -> None:
    target = target_of(client.pid)
    earlier = ProcessIdentity(client.pid, target.process.create_time - 1)
    ending = await end(rig, replace(target, process=earlier))
    assert ending == ClientEnd(True, "it had ended already")
    assert client.process.poll() is None
    assert f"{client.pid}" in rig.ask(f"get_client_list {rig.server()}")


async def test_one_that_is_gone(rig: Rig, client: SimulatedClient) -> None:
    target = target_of(client.pid)
    client.close()
    said = rig.log().count("NEW UI")
    assert await end(rig, target) == ClientEnd(True, "it had ended already")
    assert rig.log().count("NEW UI") == said


async def test_one_that_cannot_be_held(rig: Rig) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        ending = await end(rig, target_of(thread.native_id))
    finally:
        over.set()
        thread.join()
    assert not ending.gone
    assert ending.words.startswith("left alone: it cannot be held: ")


@pytest.mark.parametrize("listed", [True, False])
async def test_one_that_ends_while_the_driver_is_asked(rig: Rig, *, listed: bool) -> None:
    rig.start()
    with stubborn(rig) as child:
        target = target_of(child.pid)

        async def mps_processes() -> Collection[int]:
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            return [child.pid] if listed else []

        ending = await end_client(asking(rig), target, mps_processes, deadline=60.0, grace=5.0)
        assert ending == ClientEnd(True, "it had ended already")
        assert f"{child.pid}" in rig.ask(f"get_client_list {rig.server()}")
        assert "terminate_client" not in rig.log()


@pytest.mark.parametrize("pid", [0, 1, os.getpid(), os.getppid(), 4711])
async def test_who_is_never_ended(rig: Rig, pid: int) -> None:
    ending = await end(rig, ClientToEnd(ProcessIdentity(pid, 1), ME, frozenset({4711})))
    assert ending == ClientEnd(False, f"left alone: pid {pid} may not be ended")


async def test_left_early(rig: Rig) -> None:
    rig.start()
    with stubborn(rig) as child:
        task = asyncio.create_task(end(rig, target_of(child.pid), grace=60))
        await until(lambda: "terminate_client" in rig.log())
        await cancelled(task)
        assert child.poll() is None
