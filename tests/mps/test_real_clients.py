"""Real CUDA clients under a real daemon, on a GPU that tests may use; nothing of the GPU is set.

The client program itself runs everywhere, against a small library in C in the place of CUDA's.
"""

import asyncio
import ctypes
import json
import os
import random
import select
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.mps.commands import terminate_client
from nodeagent.mps.context import MpsContext
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.processes import CONTROL, SERVER
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import DaemonSpec, client_environment
from nodeagent.plan.shares import Account, ComputeMode, Share, Sharing, WantedMps
from nodeagent.settings import MpsSettings
from tests.machine_load import until
from tests.mps.cuda_client import OUT_OF_MEMORY, SUCCESS
from tests.mps.fleet_rig import status

PROGRAM = Path(__file__).with_name("cuda_client.py")
MIB, GIB = 1 << 20, 1 << 30
# CUDA's own memory counts, which is some hundred MiB for each client.
SMALL, LARGE = Share("small", 2, 4096, 25.0), Share("large", 1, 12288, 50.0)
WITHIN, BETWEEN = 1 * GIB, 8 * GIB
ENOUGH = 20 * GIB  # of the GPU, so that it is the limit that is met first
SOON = 60.0  # seconds; a first context without persistence mode takes some of them
HOST_PROCESSES = "pid:[4026531836]"  # the first pid namespace, in whose numbers NVML counts


class CudaClient:
    def __init__(self, environment: Mapping[str, str]) -> None:
        libraries = os.environ.get("LD_LIBRARY_PATH")
        kept = {"LD_LIBRARY_PATH": libraries} if libraries else {}
        self._answers = b""
        self._process = subprocess.Popen(
            [sys.executable, PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**kept, **environment},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._answers:
            assert select.select([descriptor], [], [], SOON)[0], f"{self.pid} says nothing"
            block = os.read(descriptor, 4096)
            assert block, f"{self.pid} ended"
            self._answers += block
        line, self._answers = self._answers.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def cuda_client(environment: Mapping[str, str]) -> Iterator[CudaClient]:
    client = CudaClient(environment)
    try:
        yield client
    finally:
        client.close()


# With CUDA's own prototypes. Numbers above 32 bits show an argument that was passed as an int.
LIBRARY = """\
#include <stddef.h>
#include <stdint.h>
#define CONTEXT ((void *)0x7f0123456789)
static int initialized, current;
static size_t used;
int cuInit(unsigned int flags) { initialized = flags == 0; return flags ? 1 : 0; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGet(int *device, int ordinal) {
    *device = 5;
    return !initialized ? 3 : ordinal ? 101 : 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = (size_t)80 << 30;
    return device == 5 ? 0 : 101;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = CONTEXT;
    return device == 5 ? 0 : 101;
}
int cuCtxSetCurrent(void *context) { current = context == CONTEXT; return current ? 0 : 201; }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    if (!current) return 201;
    if (!bytes) return 1;
    if (used + bytes > (size_t)4 << 30) return 2;
    used += bytes;
    *address = ((uint64_t)0x7f << 40) + bytes;
    return 0;
}
int cuMemFree_v2(uint64_t address) {
    uint64_t bytes = address - ((uint64_t)0x7f << 40);
    if (bytes > used) return 1;
    used -= bytes;
    return 0;
}
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *total = (size_t)80 << 30;
    *free = *total - used;
    return 0;
}
int cuGetErrorName(int code, const char **name) {
    *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return code == 2 ? 0 : 1;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to make a library with")
def test_the_client_program_calls_as_cuda_declares(tmp_path: Path) -> None:
    source = tmp_path / "cuda.c"
    source.write_text(LIBRARY)
    library = tmp_path / "libcuda.so.1"
    compiler = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(source)]
    subprocess.run(compiler, check=True)
    with cuda_client({"LD_LIBRARY_PATH": str(tmp_path)}) as client:
        begun = client.answer()
        assert begun == {"code": 0, "pid": client.pid, "version": 12040, "total": 80 * GIB}
        first = client.ask(f"allocate {3 * GIB}")
        assert (first["code"], first["address"]) == (SUCCESS, (0x7F << 40) + 3 * GIB)
        refused = client.ask(f"allocate {2 * GIB}")
        assert refused["code"] == OUT_OF_MEMORY
        assert refused == {"call": "cuMemAlloc_v2", "code": 2, "name": "CUDA_ERROR_OUT_OF_MEMORY"}
        assert client.ask("memory")["free"] == 77 * GIB
        assert client.ask(f"free {first['address']}")["code"] == SUCCESS
        assert client.ask(f"allocate {2 * GIB}")["code"] == SUCCESS
        assert client.ask("allocate 0") == {"call": "cuMemAlloc_v2", "code": 1, "name": ""}


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> str:
    """The UUID of one that tests may use; with all that a client of it needs."""
    for program in (CONTROL, SERVER):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on PATH")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"no CUDA driver library: {error}")
    return os.environ["NODEAGENT_TEST_GPUS"].replace(",", " ").split()[0]


@asynccontextmanager
async def fleet_of(run_dir: Path) -> AsyncIterator[Fleet]:
    """With the settings that the agent has; compute modes are not checked here."""
    programs = Programs(
        control=(str(shutil.which(CONTROL)),),
        path=os.environ["PATH"],
        library_path=os.environ.get("LD_LIBRARY_PATH", ""),
    )

    def check(_: DaemonSpec) -> tuple[str, ...]:
        return ()

    context = MpsContext(
        run_dir=run_dir,
        programs=programs,
        launcher=ChildLauncher(programs),
        settings=MpsSettings(),
        check=check,
        report=lambda _device, _report: None,
        changed=lambda: None,
        jitter=random.Random(1).random,
    )
    async with Fleet(context) as fleet:
        yield fleet


async def _mode(driver: Driver, gpu: str) -> tuple[ComputeMode | None, int]:
    seen = await driver.observe_gpu(gpu)
    return seen.compute_mode, seen.memory


async def _begun(environment: Mapping[str, str]) -> CudaClient:
    client = await asyncio.to_thread(CudaClient, environment)
    try:
        begun = await asyncio.to_thread(client.answer)
        assert begun["code"] == SUCCESS, begun
    except BaseException:
        client.close()
        raise
    return client


@pytest.mark.gpu
@pytest.mark.timeout(400)  # real contexts, some of them the first on the device
async def test_limits_hold_for_real_clients(gpu: str, short: Path) -> None:
    """Within its share a client can allocate, above it it gets CUDA_ERROR_OUT_OF_MEMORY, and a
    client of a larger share gets the same amount; NVML lists them; one that is terminated is
    reported done by 0; and in the end all is gone, and the compute mode what it was.
    """
    wanted = WantedMps(Sharing((SMALL, LARGE), "report"), Account(os.geteuid(), os.getegid()))
    clients: list[CudaClient] = []
    async with Driver(observe_deadline=10, step_deadline=10) as driver, fleet_of(short) as fleet:
        mode, memory = await _mode(driver, gpu)
        if memory < ENOUGH:
            pytest.skip(f"{gpu} has {memory // MIB} MiB, too few to meet the limit first")
        await fleet.start(gpu, wanted)
        try:
            [running] = fleet.running()
            spec, slots = running.spec, {slot.name: slot for slot in wanted.sharing.slots}
            for name in ("small-0", "large-0", "small-1"):
                client = await _begun(client_environment(spec, slots[name]))
                clients.append(client)  # at once, so that it is ended whatever comes
            small, large, third = clients
            await _limits(small, large)
            await _seen(driver, fleet, gpu, clients)
            await _terminated(fleet, gpu, third)
            assert small.ask("memory")["code"] == SUCCESS, "the others go on"
        finally:
            for client in clients:
                await asyncio.to_thread(client.close)
            await until(lambda: not status(fleet, gpu).clients, SOON)
            await fleet.stop(gpu)
        assert not fleet.statuses()
        assert await _mode(driver, gpu) == (mode, memory)


async def _limits(small: CudaClient, large: CudaClient) -> None:
    within = await asyncio.to_thread(small.ask, f"allocate {WITHIN}")
    above = await asyncio.to_thread(small.ask, f"allocate {BETWEEN}")
    larger = await asyncio.to_thread(large.ask, f"allocate {BETWEEN}")
    assert within["code"] == SUCCESS, within
    assert above["code"] == OUT_OF_MEMORY, above
    assert above["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert larger["code"] == SUCCESS, "it was not the limit that was met"


async def _seen(driver: Driver, fleet: Fleet, gpu: str, clients: list[CudaClient]) -> None:
    pids = {client.pid for client in clients}
    await fleet.poll()
    await until(lambda: {c.pid for c in status(fleet, gpu).clients} == pids, SOON)
    server = status(fleet, gpu).server
    assert server is not None
    assert (server.user, server.status) == (os.geteuid(), "ACTIVE")
    used = await driver.mps_memory(gpu)
    if _namespace() == HOST_PROCESSES:
        assert pids <= set(used)
        assert WITHIN <= (used[clients[0].pid] or 0) <= (SMALL.memory or 0) * MIB
        assert (used[clients[1].pid] or 0) >= BETWEEN


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


async def _terminated(fleet: Fleet, gpu: str, client: CudaClient) -> None:
    [running] = fleet.running()
    server = next(server for server, pid in running.clients if pid == client.pid)
    code = await running.control.ask(terminate_client(server, client.pid), deadline=30)
    after = await asyncio.to_thread(client.ask, f"allocate {MIB}")
    assert code == 0
    assert after["code"] != SUCCESS, "it can go on"
    client.close()
    await until(lambda: client.pid not in {c.pid for c in status(fleet, gpu).clients}, SOON)
