import os
import sys
from pathlib import Path

import pytest

from nodeagent.cluster.kubelet.processes import (
    Owner,
    ProcessOwners,
    ProcessPod,
    outside_pods,
    pod_of_cgroup,
)
from nodeagent.plan.users import PodName
from tests.cluster.kubelet.machine import Machine
from tests.processes.real import ready_process, running

UID = "1b2c3d4e-0000-4111-8222-333344445555"
SLICE = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
ID = "c0ffee" + "0" * 58
TRAINER = PodName("team", "trainer-0")


def test_cgroups() -> None:
    """The pod's uid and the container's id are in the path, in the words of many."""
    cases: list[tuple[str, ProcessPod | None]] = [
        # cgroup v2: systemd's slices with containerd, CRI-O and Docker, then cgroupfs
        (
            (
                f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/"
                f"cri-containerd-{ID}.scope\n"
            ),
            ProcessPod(UID, ID),
        ),
        (
            f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/container\n",
            ProcessPod(UID, ID),
        ),
        (
            (
                "0::/kubepods.slice/kubepods-besteffort.slice/"
                f"kubepods-besteffort-pod{SLICE}.slice/docker-{ID}.scope\n"
            ),
            ProcessPod(UID, ID),
        ),
        (f"0::/kubepods/besteffort/pod{UID}/{ID}\n", ProcessPod(UID, ID)),
        (f"0::/kubepods/pod{UID}/{ID}/init.scope\n", ProcessPod(UID, ID)),
        # a container that has made cgroups of its own, named as another pod's
        (f"0::/kubepods/pod{UID}/{ID}/pod{STATIC}/{'0' * 64}\n", ProcessPod(UID, ID)),
        # cgroup v1: many lines, some in the root
        (
            f"12:pids:/\n11:memory:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/\n0::/\n",
            ProcessPod(UID, ID),
        ),
        # containerd that was configured to use cgroupfs beside a kubelet with systemd
        (
            (
                "5:devices:/system.slice/containerd.service/"
                f"kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}\n"
            ),
            ProcessPod(UID, ID),
        ),
        # a static pod; kind, whose nodes are containers; another cgroup namespace
        (f"0::/kubepods/burstable/pod{STATIC}/{ID}\n", ProcessPod(STATIC, ID)),
        (
            (
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod"
                f"{SLICE}.slice/cri-containerd-{ID}.scope\n"
            ),
            ProcessPod(UID, ID),
        ),
        (f"11:cpu:/docker/{'d' * 64}/kubelet/kubepods/pod{UID}/{ID}\n", ProcessPod(UID, ID)),
        (f"0::/../../kubepods-burstable-pod{SLICE}.slice/crio-{ID}.scope\n", ProcessPod(UID, ID)),
        (f"0::/kubepods/pod{UID}\n", ProcessPod(UID)),
        # no pods
        ("0::/system.slice/docker-" + ID + ".scope\n", None),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
        # a user's own cgroup, named as another user's pod
        (f"0::/user.slice/user-1000.slice/user@1000.service/pod{UID}/{ID}\n", None),
        # ... and with what begins a line for Python, though not for the kernel
        (f"0::/user.slice/user-1000.slice/a\v0::/kubepods/pod{UID}/{ID}\n", None),
        (f"0::/system.slice/podman-{UID}.scope\n", None),
        ("0::/\n", None),
        ("", None),
    ]
    for text, group in cases:
        assert pod_of_cgroup(text) == group


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.runs(4711, f"/kubepods/burstable/pod{UID}/{ID}")
    return machine


def whose(machine: Machine, *pids: int) -> dict[int, ProcessPod | None]:
    return dict(machine.pods.of(pids))


def in_namespace(machine: Machine, name: str) -> None:
    (machine.proc / "self/ns").mkdir(parents=True)
    (machine.proc / "self/ns/pid").symlink_to(name)


def test_a_pod_is_named_by_its_log_folder(machine: Machine) -> None:
    machine.logs_of(PodName("team", "other"), UID.replace("1b", "2b"), "main")
    machine.logs_of(TRAINER, UID, "main")
    assert whose(machine, 4711) == {4711: ProcessPod(UID, ID, TRAINER, "main")}


def test_the_container_of_several_is_named_by_its_log(machine: Machine) -> None:
    machine.logs_of(TRAINER, UID, "prepare", "main")
    assert whose(machine, 4711) == {4711: ProcessPod(UID, ID, TRAINER, "")}
    links = machine.logs / "containers"
    links.mkdir()
    (links / f"trainer-0_team_prepare-{'b' * 64}.log").touch()
    (links / f"trainer-0_team_my-main-{ID}.log").touch()
    assert whose(machine, 4711) == {4711: ProcessPod(UID, ID, TRAINER, "my-main")}


def test_a_pod_whose_name_is_not_to_be_found(machine: Machine) -> None:
    """The folder may be gone already, or not be mounted; strangers in it do no harm."""
    assert whose(machine, 4711) == {4711: ProcessPod(UID, ID)}
    (machine.logs / "pods/lost+found").mkdir(parents=True)
    (machine.logs / "pods/a_b_c_d").touch()
    assert whose(machine, 4711) == {4711: ProcessPod(UID, ID)}


def test_a_users_cgroup_is_no_pods(machine: Machine) -> None:
    machine.runs(4712, f"/user.slice/user-1000.slice/a\r0::/kubepods/pod{UID}/{ID}")
    assert whose(machine, 4712) == {4712: None}


def test_a_process_of_the_machine_is_known_for_one(machine: Machine) -> None:
    machine.runs(4712, "/system.slice/nvidia-persistenced.service")
    assert whose(machine, 4712, 4713) == {4712: None}


def test_pids_of_another_namespace_are_other_processes(machine: Machine) -> None:
    in_namespace(machine, "pid:[4026532301]")
    assert whose(machine, 4711) == {}


def test_in_the_machines_own_namespace_pids_are_what_they_seem(machine: Machine) -> None:
    in_namespace(machine, "pid:[4026531836]")
    assert whose(machine, 4711) == {4711: ProcessPod(UID, ID)}


# --- owners ---------------------------------------------------------------------------------------

GONE = 1 << 22  # the largest pid is one less


def test_outside_pods_it_is_a_container_a_unit_or_a_user() -> None:
    cases: list[tuple[str, Owner]] = [
        (f"0::/system.slice/docker-{ID}.scope\n", Owner(container=ID[:12])),
        (f"0::/docker/{ID}\n", Owner(container=ID[:12])),
        (f"0::/machine.slice/libpod-{ID}.scope/container\n", Owner(container=ID[:12])),
        (f"4:devices:/\n1:name=systemd:/docker/{ID}\n", Owner(container=ID[:12])),
        ("0::/system.slice/jupyter.service\n", Owner(unit="jupyter.service")),
        ("0::/system.slice/system-ml.slice/ml@7.service/x\n", Owner(unit="ml@7.service")),
        ("0::/system.slice/slurmstepd.scope/job_12/step_0\n", Owner(user="1000")),
        ("0::/system.slice/gpu-0_slurmstepd.scope/job_35/step_0/user\n", Owner(user="1000")),
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


def test_processes_are_looked_up_once(machine: Machine) -> None:
    machine.logs_of(TRAINER, UID, "main")
    owners, trainer = ProcessOwners(machine.pods), Owner("team", "trainer-0", "main")
    with running("cat", "one") as one, running("cat", "two") as two:
        machine.runs(one, f"/kubepods/pod{UID}/{ID}")
        machine.runs(two, "/system.slice/a.service")
        assert owners.of({one, two, GONE}) == {one: trainer, two: Owner(unit="a.service")}
        machine.runs(two, "/system.slice/b.service")
        assert owners.of({one, two})[two] == Owner(unit="a.service")
        assert owners.of({one}) == {one: trainer}
        assert owners.of({one, two})[two] == Owner(unit="b.service")


def test_a_pod_without_a_name_is_asked_for_again(machine: Machine) -> None:
    """The kubelet makes the folder of its logs a moment later."""
    owners = ProcessOwners(machine.pods)
    assert owners.of({4711}) == {}
    machine.logs_of(TRAINER, UID, "main")
    assert owners.of({4711}) == {4711: Owner("team", "trainer-0", "main")}


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_outside_all_of_them_it_is_its_effective_users(machine: Machine) -> None:
    """A service that began as root and became another user is that user's."""
    code = "import os, sys; os.setuid(4001); print(flush=True); sys.stdin.read()"
    with ready_process(sys.executable, "-c", code) as process:
        machine.runs(process.pid, "/")
        assert ProcessOwners(machine.pods).of({process.pid}) == {process.pid: Owner(user="4001")}
