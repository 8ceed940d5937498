import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from subprocess import Popen

import pytest

from nodeagent.simulation.mps.installation import install
from tests.agent_environment import own_host
from tests.gpu.test_c_library import build
from tests.machine_load import stretched, wait_until
from tests.systemd.sandbox import values_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
UNITS = ROOT / "systemd"
AGENT, RESTORE, CHILDREN = "nodeagent.service", "nodeagent-restore.service", "mps-children.conf"
PLAN = "version: v1\ngpus:\n- devices: all\n  mig: disabled\n  mps: {replicas: 2, user: root}\n"
REFUSED = re.compile(r" = -1 E(ROFS|PERM|ACCES)\b")
CALL = re.compile(r"\d+ +(\w+)\(")
CHANGES = (
    "openat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,link,linkat,symlink,"
    "symlinkat,mknod,mknodat,chmod,fchmodat,chown,lchown,fchownat,truncate,utimensat,bind"
)


@cache
def denied_calls(unit: str) -> frozenset[str]:
    """The system calls that the unit's filter denies, where systemd-analyze can say them."""
    (groups,) = values_of(str(UNITS / unit))["SystemCallFilter"]
    if not shutil.which("systemd-analyze"):
        return frozenset()
    listed = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter", *groups.removeprefix("~").split()],
        capture_output=True,
        text=True,
        check=True,
    )
    return frozenset(re.findall(r"^ +(\w+)$", listed.stdout, re.MULTILINE))


def _is_possible() -> bool:
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        return False
    layers = "lowerdir=/etc,upperdir=/opt/u,workdir=/opt/w"
    script = (
        "mount --make-rprivate / && mount -t tmpfs t /opt && mkdir /opt/u /opt/w && "
        f"mount -t overlay -o {layers} o /etc"
    )
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    not _is_possible(), reason="takes root, namespaces, overlays and setpriv"
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = build(tmp_path_factory.mktemp("stage"))
    install(folder / "bin", version="580")
    return folder


@contextmanager
def running(unit: str, stage: Path, trace: Path, **settings: str) -> Iterator[Popen[str]]:
    """The unit's command, traced where there is strace; it ends with all that it started."""
    with trace.open("w") as file:
        out = f"/proc/self/fd/{file.fileno()}"
        calls = ",".join([CHANGES, *(f"?{call}" for call in denied_calls(unit))])
        traced = ("strace", "-D", "-f", "-y", "-o", out, "-e", f"trace={calls}")
        with Popen(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                *(sys.executable, HERE / "sandbox.py"),
                *(f"{UNITS / unit}:{UNITS / CHILDREN}", stage, PLAN),
                *(traced if shutil.which("strace") else ()),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=[file.fileno()],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "PYTHONDONTWRITEBYTECODE": "1",
                "LD_LIBRARY_PATH": "/opt/stage",
                "NODEAGENT_MPS_PATH": "/opt/stage/bin:/usr/bin:/bin",
                **settings,
            },
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def check(unit: str, trace: Path) -> None:
    """Nothing that the program tried to change was refused, errors that it ignores included; and it
    made no system call that the unit denies.
    """
    if not shutil.which("strace"):
        return
    calls = trace.read_text(errors="replace").splitlines()
    assert any("/var/lib/nodeagent/" in call and "O_CREAT" in call for call in calls)
    # Simulated MPS programs run as in a plain Python, which keeps what it compiled where it can.
    refused = [call for call in calls if REFUSED.search(call) and "/__pycache__/" not in call]
    assert refused == []
    made = {match[1] for call in calls if (match := CALL.match(call))}
    assert "openat" in made
    assert made & denied_calls(unit) == set()


def test_a_plan_with_mps_is_restored_at_boot(stage: Path, tmp_path: Path) -> None:
    with running(RESTORE, stage, tmp_path / "trace") as process:
        said, _ = process.communicate(timeout=stretched(30))
    assert process.returncode == 0, said
    assert "start MPS" in said
    assert "Applied: 2 steps done" in said
    check(RESTORE, tmp_path / "trace")


def test_the_agent_may_write_what_it_writes(stage: Path, tmp_path: Path) -> None:
    listen = f"{own_host()}:9417"
    with running(AGENT, stage, tmp_path / "trace", NODEAGENT_API_LISTEN=listen) as process:
        wait_until(lambda: _phase(listen) == "InSync" or process.poll() is not None)
        assert process.poll() is None, process.communicate()[0]
        agent = _agent_of(process.pid)
        with pytest.raises(OSError, match="Read-only"):
            Path(f"/proc/{agent}/root/etc/nodeagent/new").touch()
        os.kill(agent, signal.SIGTERM)
        said, _ = process.communicate(timeout=stretched(30))
    assert process.returncode == 0, said
    assert "Read-only" not in said
    check(AGENT, tmp_path / "trace")


def _phase(listen: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{listen}/v1/status") as answer:
            return str(json.load(answer)["phase"])
    except OSError:
        return ""


def _agent_of(unshare: int) -> int:
    children = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
    return int(children[0])
