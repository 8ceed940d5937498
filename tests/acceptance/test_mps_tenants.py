import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.simulation.mps.installation import shared_interpreter
from tests.acceptance.agent_home import SOON, USER, Home
from tests.machine_load import stretched
from tests.processes.real import process_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives rights away, needs several users")

# --- restrictions of the agent --------------------------------------------------------------------


ONE_SHARE = f"""\
version: v1
gpus:
  - devices: [0]
    mps: {{user: {USER}, shares: {{small: {{count: 1, memory: 8Gi, threads: 15}}}}}}
"""
NO_MOUNTS = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")


def applied(home: Home, *before: str, umask: int = 0o022, **settings: str) -> str:
    """What the command says that starts the plan's daemon, as a process that is made so."""
    home.plan.write_text(ONE_SHARE)
    arguments = ("apply", "-f", str(home.plan), "--simulate", "h100-80gb:1")
    done = subprocess.run(
        [*before, *home.command(*arguments, "--state", str(home.folder / "new/node.json"))],
        env={**home.environment, **settings},
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_with_a_umask_that_closes_files(home: Home) -> None:
    """The stand-ins run as the plan's user, in no group of the agent's, as under UMask=0027."""
    (home.folder / "new").mkdir()
    (home.folder / "new").chmod(0o755)
    applied(home, umask=0o027)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_in_a_pod_that_may_not_mount(home: Home) -> None:
    """`mps.shm: auto` uses the pod's /dev/shm: without capabilities no daemon gets its own."""
    (home.folder / "new").mkdir()
    applied(home, *NO_MOUNTS, KUBERNETES_SERVICE_HOST="192.0.2.1", KUBERNETES_SERVICE_PORT="443")


# --- tenants --------------------------------------------------------------------------------------


TENANT, OTHER = 4001, 4002
PLAN = f"""\
version: v1
gpus:
  - devices: [0]
    mps:
      user: {TENANT}
      enforce: terminate
      shares: {{small: {{count: 1, memory: 8Gi, threads: 15}}}}
"""
IMPOSTOR = Path(__file__).with_name("mps_impostor.py")


@pytest.fixture
def started(home: Home) -> tuple[str, Path]:
    """The device and the pipe directory of a daemon that is Ready."""
    home.plan.write_text(PLAN)
    home.start()
    [daemon] = home.all_ready(1)
    return daemon["device"], home.folder / "run/mps" / daemon["device"] / "pipe"


@contextmanager
def impostor(pipes: Path, *pids: int) -> Iterator[subprocess.Popen[bytes]]:
    """The tenant's impostor, once it listens or has given up."""
    command = map(str, (shared_interpreter(), "-I", IMPOSTOR, pipes, *pids))
    user = {"user": TENANT, "group": TENANT, "extra_groups": ()}
    with process_of(*command, **user) as process:
        assert process.stdout
        process.stdout.readline()
        yield process


def client(home: Home, pipes: Path) -> SimulatedClient:
    """A client of the tenant's, which the driver lists once it is accepted."""
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    return SimulatedClient(pipes, uid=TENANT, environment=environment, state=home.state, device="0")


@pytest.fixture
def bystanders() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of the tenant, of another user and of root, none of which uses a GPU."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(process_of("sleep", "600", user=uid, group=uid, extra_groups=()))
            for uid in (TENANT, OTHER, 0)
        ]


def test_the_sockets_of_a_daemon_stay_its_own(home: Home, started: tuple[str, Path]) -> None:
    _, pipes = started
    with impostor(pipes) as refused:
        assert refused.wait(stretched(SOON)) == 3
    with client(home, pipes) as working:
        working.wait_until_accepted(SOON)
        working.allocate(1 << 20)


def test_whom_an_impostor_names(
    home: Home, started: tuple[str, Path], bystanders: list[subprocess.Popen[bytes]]
) -> None:
    """Lives on: a daemon found replaced is a fault by name, and a fresh one takes its place. The
    tenant's own client beyond the count, which the driver lists, is ended as before.
    """
    device, pipes = started
    first = home.daemons()[0]["pid"]
    home.stop(signal.SIGTERM)
    os.chown(pipes, TENANT, TENANT)  # as before the daemon had answered
    with impostor(pipes, *(process.pid for process in bystanders)):
        home.start()
        home.until(home.status)
        events = home.until(lambda: [e for e in home.events() if "in place of" in e["message"]])
        assert events[0]["type"] == "MpsFault"
        assert f"user {TENANT} listens at {pipes}" in events[0]["message"]
        [daemon] = home.all_ready(1)
        assert daemon["pid"] != first
    with client(home, pipes) as first, client(home, pipes) as second:
        first.wait_until_accepted(SOON)
        second.wait_until_accepted(SOON)
        assert second.process.wait(stretched(SOON)) == 1
        first.allocate(1 << 20)
    assert [process.poll() for process in bystanders] == [None, None, None]
    assert device == daemon["device"]
