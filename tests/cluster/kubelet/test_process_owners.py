"""Whose a process is, with a cluster and without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.cluster.kubelet.processes import Owner, ProcessOwners, ProcessPods, outside_pods
from tests.processes.real import running

ID = "c0ffee" + "0" * 58
GONE = 1 << 22  # the largest pid is one less
UID = "1b2c3d4e-0000-4111-8222-333344445555"


def test_outside_pods_it_is_a_container_a_unit_or_a_user() -> None:
    """The owner is the most specific that the cgroup names; a user's session is the user's."""
    cases: list[tuple[str, Owner]] = [
        (f"0::/system.slice/docker-{ID}.scope\n", Owner(container=ID[:12])),
        (f"0::/docker/{ID}\n", Owner(container=ID[:12])),
        (f"0::/machine.slice/libpod-{ID}.scope/container\n", Owner(container=ID[:12])),
        (f"4:devices:/\n1:name=systemd:/docker/{ID}\n", Owner(container=ID[:12])),
        ("0::/system.slice/jupyter.service\n", Owner(unit="jupyter.service")),
        ("0::/system.slice/system-ml.slice/ml@7.service/x\n", Owner(unit="ml@7.service")),
        ("0::/system.slice/slurmstepd.scope/job_12/step_0\n", Owner(unit="slurmstepd.scope")),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", Owner(user="1000")),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/a.scope\n",
            Owner(user="1000"),
        ),
        ("0::/user.slice/a\u20280::/system.slice/b.service\n", Owner(user="1000")),
        ("0::/\n", Owner(user="1000")),
        ("", Owner(user="1000")),
    ]
    for cgroup, owner in cases:
        assert outside_pods(cgroup, 1000) == owner


def test_processes_are_looked_up_once(tmp_path: Path) -> None:
    """A pod's has its name; ended ones are left out; one that comes back is looked up anew."""
    proc, logs = tmp_path / "proc", tmp_path / "log"
    (logs / "pods" / f"team_trainer_{UID}" / "main").mkdir(parents=True)
    owners = ProcessOwners(ProcessPods(proc_root=proc, log_root=logs))
    trainer = Owner("team", "trainer", "main")
    with running("cat", "one") as one, running("cat", "two") as two:
        _process(proc, one, f"0::/kubepods/pod{UID}/{ID}\n")
        _process(proc, two, "0::/system.slice/a.service\n")
        assert owners.of({one, two, GONE}) == {one: trainer, two: Owner(unit="a.service")}
        _process(proc, two, "0::/system.slice/b.service\n")
        assert owners.of({one, two})[two] == Owner(unit="a.service")
        assert owners.of({one}) == {one: trainer}
        assert owners.of({one, two})[two] == Owner(unit="b.service")


def test_a_pod_without_a_name_is_asked_for_again(tmp_path: Path) -> None:
    """The kubelet makes the folder of its logs a moment later."""
    proc, logs = tmp_path / "proc", tmp_path / "log"
    _process(proc, 1, f"0::/kubepods/pod{UID}/{ID}\n")
    owners = ProcessOwners(ProcessPods(proc_root=proc, log_root=logs))
    assert owners.of({1}) == {}
    (logs / "pods" / f"team_trainer_{UID}" / "main").mkdir(parents=True)
    assert owners.of({1}) == {1: Owner("team", "trainer", "main")}


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_outside_all_of_them_it_is_its_effective_users(tmp_path: Path) -> None:
    """A service that began as root and became another user is that user's."""
    proc = tmp_path / "proc"
    code = "import os, sys; os.setuid(4001); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        _process(proc, process.pid, "0::/\n")
        owners = ProcessOwners(ProcessPods(proc_root=proc, log_root=tmp_path))
        assert owners.of({process.pid}) == {process.pid: Owner(user="4001")}
        process.kill()


def test_labels_are_what_is_known() -> None:
    """In the order of their names, without empty ones."""
    owner = Owner("team", "trainer", "main")
    assert owner.labels == (("container", "main"), ("namespace", "team"), ("pod", "trainer"))
    assert Owner(user="0").labels == (("user", "0"),)


def _process(proc: Path, pid: int, cgroup: str) -> None:
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    (proc / str(pid) / "cgroup").write_text(cgroup)
