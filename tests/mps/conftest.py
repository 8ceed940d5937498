"""Programs called as MPS' are, in a place where users other than root can run them; a fleet."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.mps.files.directories import make_directories
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.launch.launcher import DaemonProcess
from nodeagent.mps.processes import SERVER
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import DaemonSpec
from nodeagent.simulation.mps.clients import SimulatedClient
from tests.folders import executable
from tests.machine_load import until
from tests.mps.fleet_rig import GPU, IS_ROOT, FleetRig, wanted
from tests.mps.plans import daemon_spec

as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")


def _can_mount() -> bool:
    made = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return IS_ROOT and made.returncode == 0


may_mount = pytest.mark.skipif(not _can_mount(), reason="needs root and mounts of its own")

_CONTROL = """#!{python} -IS
import json, os, signal, sys, time
seen = dict(
    arguments=sys.argv[1:], environment=dict(os.environ), uid=os.getuid(), gid=os.getgid(),
    groups=os.getgroups(), session=os.getsid(0) == os.getpid(), cwd=os.getcwd(),
    descriptors=sorted(int(n) for n in os.listdir("/proc/self/fd")),
)
log = os.environ["CUDA_MPS_LOG_DIRECTORY"]
with open(log + "/seen.new", "w") as file:
    json.dump(seen, file)
os.rename(log + "/seen.new", log + "/seen")
print("first line\\nlast line", flush=True)
if os.path.exists(log + "/end"):
    sys.exit(3)
time.sleep(60)
"""

_SERVER = """#!{python} -IS
import signal, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
else:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
if "lingering" in sys.argv:  # its first thread ends when it is asked, another one goes on
    import ctypes, threading
    end_thread = ctypes.CDLL(None).pthread_exit
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    signal.signal(signal.SIGINT, lambda *_: end_thread(None))
print("up", flush=True)
time.sleep(60)
"""


# One that other users can run too, where there is one: developers' own lie in their homes.
PYTHON = next((path for path in ("/usr/bin/python3",) if Path(path).exists()), sys.executable)


@pytest.fixture
def programs(short: Path) -> Programs:
    """Programs that only have the right names: the daemon notes what it was given, and sleeps."""
    for name, text in (("nvidia-cuda-mps-control", _CONTROL), (SERVER, _SERVER)):
        executable(short / name, text.format(python=PYTHON))
    control = short / "nvidia-cuda-mps-control"
    return Programs(control=(str(control),), path=f"{short}:/usr/bin:/bin")


@pytest.fixture
def spec(short: Path) -> DaemonSpec:
    return spec_for(short, os.geteuid(), os.getegid())


def spec_for(folder: Path, uid: int, gid: int, *, device: str = GPU) -> DaemonSpec:
    pipe = make_directories(folder / "run", device, uid=uid, gid=gid, shm=True)
    return daemon_spec(pipe, device, uid=uid, gid=gid)


@asynccontextmanager
async def running(spec: DaemonSpec, programs: Programs) -> AsyncIterator[DaemonProcess]:
    """A daemon that has noted what it was given; killed in the end."""
    process = await ChildLauncher(programs).launch(spec)
    try:
        await until((Path(spec.log_directory) / "seen").exists)
        yield process
    finally:
        process.kill()
        await process.wait()


def flag(known: str) -> Callable[[], Awaitable[str]]:
    async def find_flag() -> str:
        return known

    return find_flag


def seen(spec: DaemonSpec) -> dict[str, Any]:
    noted: dict[str, Any] = json.loads((Path(spec.log_directory) / "seen").read_text())
    return noted


StartServer = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_server(programs: Programs, spec: DaemonSpec) -> Iterator[StartServer]:
    """Starts servers as a daemon does; those left in the end are killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        *arguments: str, pipe_directory: str = spec.pipe_directory
    ) -> subprocess.Popen[bytes]:
        folder = Path(programs.control[0]).parent
        server = subprocess.Popen(
            [folder / SERVER, *arguments],
            env={"CUDA_MPS_PIPE_DIRECTORY": pipe_directory},
            stdout=subprocess.PIPE,
        )
        started.append(server)
        assert server.stdout
        assert server.stdout.readline() == b"up\n"
        return server

    yield start
    for server in started:
        server.kill()
        server.communicate()


@pytest.fixture
def rig() -> Iterator[FleetRig]:
    with FleetRig() as made:
        yield made


@pytest.fixture
async def fleet(rig: FleetRig) -> AsyncIterator[Fleet]:
    async with rig.fleet() as made:
        await made.start(GPU, wanted())
        yield made


@pytest.fixture
def client(rig: FleetRig, fleet: Fleet) -> Iterator[SimulatedClient]:
    with rig.served() as made:
        yield made
