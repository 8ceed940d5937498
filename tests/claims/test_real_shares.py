"""Shares of a GPU on the real MPS programs, where they are on PATH: their control daemon serves
them on a simulated card, and reads what their clients are given. Servers are stubs: real ones, and
what holds a client to its limit, need a GPU.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ctypes.util import find_library
from functools import cache, partial
from pathlib import Path

import pytest

from nodeagent.claims.capacity import CLIENTS, MEMORY, STEP, THREADS
from nodeagent.claims.model import ClaimHeldUp
from nodeagent.claims.serving.cdi import file_name
from nodeagent.mps.commands import get_memory_limit
from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.mps.processes import CONTROL
from nodeagent.mps.shares import MEMORY_VARIABLE, THREADS_VARIABLE
from nodeagent.plan.shares import MIB
from nodeagent.simulation import simulated
from nodeagent.simulation.mps.installation import shared_interpreter
from tests.claims.machine import Home, pool_of, uid
from tests.claims.mps_rig import agent
from tests.machine_load import until
from tests.mps import cuda_client
from tests.mps.fleet_rig import IS_ROOT, US, limits, ready, status
from tests.processes.real import process_of
from tests.reconcile.controller_rig import NodeRig
from tests.simulated_cluster.allocator import Allocated
from tests.simulation.mps.rig import Programs, Rig, real_programs

PROGRAM = shutil.which(CONTROL)
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"no {CONTROL} on PATH")

COUNT = 30


@cache
def programs() -> Programs:
    found = real_programs()
    assert found
    return found


def environment(home: Home, number: int) -> Mapping[str, str]:
    [device] = json.loads((home.cdi / file_name(uid(number))).read_text())["devices"]
    return dict(text.split("=", 1) for text in device["containerEdits"]["env"])


@pytest.fixture
def machine() -> Iterator[NodeRig]:
    assert PROGRAM is not None
    with NodeRig(programs=Path(PROGRAM).parent) as made:
        made.have_servers_sleep()
        yield made


async def test_thirty_shares_of_one_gpu(machine: NodeRig, home: Home) -> None:
    """The daemon has the largest limits of all, and each share's own are in the environment of its
    clients, which the program reads as they are meant. What goes beyond them is refused or undone,
    and named.
    """
    with simulated("b200:1", state=machine.state) as node:
        pool = pool_of(node)
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            uuid, whole, memory, threads = rig.gpu().uuid, rig.gpu().memory, 0, 0.0
            for number in range(COUNT):
                amounts = {MEMORY: (number + 1) * STEP, THREADS: number % 3 * 3, CLIENTS: 1}
                await claims.prepare(*home.claim(number, Allocated(pool, "gpu", amounts)))
                memory, own = amounts[MEMORY] // MIB, 10_000 * amounts[MEMORY] // whole / 100
                own = amounts[THREADS] or own
                threads = max(threads, own)
                assert await limits(parts.fleet, uuid) == (_as_read(memory), round(threads, 1))
                given = environment(home, number)
                assert (given[MEMORY_VARIABLE], given[THREADS_VARIABLE]) == (
                    f"0={memory}M",
                    f"{own:g}",
                )
                _read_by_the_program(given)
            assert len(status(parts.fleet, uuid).shares or ()) == COUNT
            half = {MEMORY: whole // 2, THREADS: 0, CLIENTS: 1}
            with pytest.raises(ClaimHeldUp, match=r"more than is free: claim team/trainer-0 has"):
                await claims.prepare(*home.claim(COUNT, Allocated(pool, "gpu", half)))
            with Rig(programs()) as front_end:  # by the daemon's user
                front_end.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(machine.pipes(uuid))
                front_end.ask(f"set_default_device_pinned_mem_limit 0 {2 * memory}M", user=US)
            said = await machine.reported(ReportSubject.LIMITS_DIFFER, uuid)
            assert "memory" in said
            await ready(parts.fleet, uuid)
            assert await limits(parts.fleet, uuid) == (_as_read(memory), round(threads, 1))
            await _come_as_clients(machine, uuid, [environment(home, n) for n in range(COUNT)])
            await until(lambda: _without_server(machine, uuid))
            await parts.fleet.poll()
            for number in range(COUNT):
                await claims.release(uid(number))
            assert parts.fleet.statuses() == ()


async def test_two_gpus_of_one_daemon(machine: NodeRig, home: Home) -> None:
    """The program has the largest limits of each GPU by its ordinal, and no others."""
    with simulated("l40s:2", state=machine.state) as node:
        async with agent(home, machine, share="memory") as (claims, _, parts):
            amounts = [{MEMORY: steps * STEP, THREADS: 0, CLIENTS: 1} for steps in (1, 2, 3)]
            pools = [pool_of(node, gpu) for gpu in (0, 1)]
            places = [Allocated(pools[gpu], "gpu", amounts[gpu]) for gpu in (0, 1)]
            both = home.claim(0, *places)
            for result in home.claims[both[:2]]["status"]["allocation"]["devices"]["results"]:
                result["request"] = "gpus"
            await claims.prepare(*both)
            await claims.prepare(*home.claim(1, Allocated(pools[0], "gpu", amounts[2])))
            [daemon] = parts.fleet.running()
            asked = (get_memory_limit(ordinal=ordinal) for ordinal in range(3))
            found = [str(limit) for limit in await daemon.control.ask_each(*asked)]
            first = node.card(0).identity.uuid == daemon.device
            assert found == [*(["768M", "512M"] if first else ["512M", "768M"]), "None"]
            for number in (0, 1):
                await claims.release(uid(number))
            assert parts.fleet.statuses() == ()


def _as_read(mebibytes: int) -> str:
    """A limit of memory as the daemon says it, in whole GiB from 1 on."""
    return f"{mebibytes // 1024}G" if mebibytes >= 1024 else f"{mebibytes}M"


def _read_by_the_program(given: Mapping[str, str]) -> None:
    """A daemon with a client's variables has what they say."""
    with Rig(programs()) as rig:
        rig.start(**{THREADS_VARIABLE: given[THREADS_VARIABLE]})
        memory = given[MEMORY_VARIABLE].removeprefix("0=")
        found = rig.ask(
            "get_default_active_thread_percentage",
            f"set_default_device_pinned_mem_limit 0 {memory}",
            "get_default_device_pinned_mem_limit 0",
        )
        assert found.split() == [
            f"{float(given[THREADS_VARIABLE]):.1f}",
            _as_read(int(memory.removesuffix("M"))),
        ]


async def _come_as_clients(
    machine: NodeRig, device: str, environments: Iterable[Mapping[str, str]]
) -> None:
    """Programs with CUDA's library, where there is one, come to it, and wait for a server."""
    if find_library("cuda") is None:
        return
    program = machine.folder / "client.py"
    shutil.copyfile(cuda_client.__file__, program)
    libraries = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    for given in environments:
        user = US if IS_ROOT else None
        command, env = (shared_interpreter(), program), {**libraries, **given}
        with process_of(*command, env=env, user=user, group=user) as client:
            await until(partial(_came, machine.log(device), client.pid))


def _came(log: Path, pid: int) -> bool:
    return f"NEW CLIENT {pid} from user {US}" in log.read_text()


def _without_server(machine: NodeRig, device: str) -> bool:
    """The daemon starts some more for the clients that waited."""
    servers = machine.servers(device)
    for server in servers:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
    return not servers
