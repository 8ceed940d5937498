"""MPS with restrictions: a umask that closes files, no permission to mount."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.acceptance.agent_home import SOON, USER, Home

PLAN = f"""\
version: v1
gpus:
  - devices: [0]
    mps: {{user: {USER}, shares: {{small: {{count: 1, memory: 8Gi, threads: 15}}}}}}
"""
NO_MOUNTS = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives rights away")


def applied(home: Home, *before: str, umask: int = 0o022, **settings: str) -> str:
    """What the command says that starts the plan's daemon, as a process that is made so."""
    home.plan.write_text(PLAN)
    arguments = ("apply", "-f", str(home.plan), "--simulate", "h100-80gb:1")
    done = subprocess.run(
        [*before, *home.command(*arguments, "--state", str(home.folder / "new/node.json"))],
        env={**home.environment, **settings},
        umask=umask,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_with_a_umask_that_closes_files(home: Home) -> None:
    """The stand-ins run as the plan's user, who is in no group of the agent's, as does a unit with
    UMask=0027.
    """
    (home.folder / "new").mkdir()
    (home.folder / "new").chmod(0o755)
    applied(home, umask=0o027)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_in_a_pod_that_may_not_mount(home: Home) -> None:
    """`mps.shm: auto` uses the pod's /dev/shm: without capabilities no daemon gets its own."""
    (home.folder / "new").mkdir()
    applied(home, *NO_MOUNTS, KUBERNETES_SERVICE_HOST="192.0.2.1", KUBERNETES_SERVICE_PORT="443")
