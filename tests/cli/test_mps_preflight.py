import os
from pathlib import Path

import pytest

from nodeagent.cli.checks import mps as mps_preflight
from nodeagent.cli.checks.mps import FoundDaemon
from nodeagent.documents.reading import read_document
from nodeagent.mps.programs import Programs
from nodeagent.plan.shares import Account
from nodeagent.simulation.mps.installation import install
from tests.cli.conftest import Program
from tests.folders import executable
from tests.machine_load import wait_until
from tests.processes.real import running

SYSTEM = "/usr/bin:/bin"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
SOON = 60.0  # seconds that anything may take on a busy machine


# --- the programs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "level"), [(True, "error"), (False, "warning")])
def test_a_missing_server_is_an_error_where_it_is_needed(
    wanted: bool, level: str, short: Path
) -> None:
    executable(short / "nvidia-cuda-mps-control", "#!/bin/sh\n")
    found = mps_preflight.program_findings(Programs(path=str(short)), wanted=wanted)
    levels = {finding.check: finding.level for finding in found}
    assert levels == {"mps control": "ok", "mps server": level}


def test_a_missing_control_program_is_an_error_for_a_plan_that_needs_it(short: Path) -> None:
    looked = mps_preflight.mps_findings(Programs(path=str(short)), short, users=frozenset({"1000"}))
    found = {finding.check: finding for finding in looked}
    assert found["mps control"].level == "error"
    assert "mps.path" in found["mps control"].remedy


def test_what_the_programs_can_do_is_judged_by_what_they_do(short: Path) -> None:
    words = {}
    for version in ("550", "555"):
        install(short / version, version=version)
        programs = Programs(path=f"{short / version}:{SYSTEM}")
        found = {f.check: f for f in mps_preflight.program_findings(programs, wanted=True)}
        assert found["mps daemon"].level == "ok", found
        words[version] = found["mps daemon"].message
    assert "multi-user server: no" in words["550"]
    assert ("multi-user server: yes" in words["555"]) == (os.geteuid() == 0)


def test_any_user_needs_a_server_that_can(short: Path) -> None:
    install(short / "550", version="550")
    programs = Programs(path=f"{short / '550'}:{SYSTEM}")
    looked = mps_preflight.program_findings(programs, wanted=True, any_user=True)
    found = {finding.check: finding for finding in looked}["mps daemon"]
    assert (found.level, "user: any" in found.message) == ("error", True)


# --- the machine ----------------------------------------------------------------------------------


def test_shared_memory_of_no_daemon(
    program: Program, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(short / "nvidia-cuda-mps-control", "#!/bin/sh\n")
    for name, value in {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "NODEAGENT_KUBERNETES_USE": "never",
        "NODEAGENT_MPS_LAUNCH": "hostSystemd",
        "NODEAGENT_MPS_PATH": str(short),
    }.items():
        monkeypatch.setenv(name, value)
    own = ("--run-dir", short / "run", "--state-dir", short / "lib")
    for shm, looked in (("auto", False), ("device", False), ("host", True)):
        monkeypatch.setenv("NODEAGENT_MPS_SHM", shm)
        found = {one["check"] for one in program("check", "-o", "json", *own).json["findings"]}
        assert "mps control" in found
        assert ("mps shm" in found) is looked


def test_shared_memory(tmp_path: Path) -> None:
    """What is there is reported; what cannot be looked at is a warning with a remedy."""
    assert "MiB" in mps_preflight.shm_finding().message
    missing = mps_preflight.shm_finding(tmp_path / "none")
    assert (missing.level, bool(missing.remedy)) == ("warning", True)


@pytest.mark.parametrize(
    ("limit", "wanted", "level"),
    [(16_384, True, "ok"), (-1, True, "ok"), (16_383, True, "error"), (1024, False, "warning")],
)
def test_open_files(limit: int, wanted: bool, level: str) -> None:
    """The hard limit counts; -1 is the kernel's word for none."""
    found = mps_preflight.open_files_finding(wanted=wanted, limit=limit)
    assert found.level == level
    assert ("fewer connections" in found.message) == (limit == 1024)


def test_a_run_dir_that_makes_no_socket_paths() -> None:
    assert mps_preflight.path_finding(Path("/run/nodeagent"), wanted=True).level == "ok"
    for bad in (Path("/run") / ("x" * 60), Path("/tmp/nvidia-mps")):
        found = mps_preflight.path_finding(bad, wanted=True)
        assert found.level == "error"
        assert "run.dir" in found.remedy
        assert mps_preflight.path_finding(bad, wanted=False).level == "warning"


# --- users ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "users"),
    [
        ("{devices: [0], mig: disabled}", set()),
        ("{devices: [0], mps: {replicas: 2, user: alice}}", {"alice"}),
        ("{devices: [0], mps: {replicas: 2, user: any}}", {"any"}),
        ("{devices: [0], mig: [{profile: 3g.40gb, mps: {replicas: 2, user: 7}}]}", {"7"}),
        ("{devices: [0], mig: {3g.40gb: 2}, mps: {replicas: 2}}", {"1000"}),
    ],
)
def test_the_users_of_a_plan(gpus: str, users: set[str]) -> None:
    document = read_document(f"version: v1\ngpus: [{gpus}]\n")
    assert mps_preflight.users_of(document, "1000") == users


def test_a_user_has_to_be_known_and_to_pass_every_directory(short: Path) -> None:
    accounts = {"me": Account(1234, 1234)}
    run_dir = short / "a/b"
    run_dir.mkdir(parents=True)
    levels = [f.level for f in mps_preflight.user_findings(accounts, ["me", "any"], run_dir / "c")]
    assert levels == ["ok", "ok"]
    (short / "a").chmod(0o700)
    [found] = mps_preflight.user_findings(accounts, ["me"], run_dir)
    assert found.level == "error"
    assert f"may not pass {short / 'a'}," in found.message
    [unreadable] = mps_preflight.user_findings(accounts, ["any"], short / ("x" * 256))
    assert unreadable.level == "ok"
    [unknown] = mps_preflight.user_findings(accounts, ["nobody-here"], run_dir)
    assert "no user nobody-here" in unknown.message


# --- others ---------------------------------------------------------------------------------------


def test_other_daemons_are_found_with_their_directory(tmp_path: Path) -> None:
    daemons = [
        FoundDaemon(2, "/tmp/nvidia-mps"),
        FoundDaemon(3, "/opt/pipes"),
        FoundDaemon(4, "/run/nodeagent/mps/GPU-0/pipe"),
    ]
    found = list(mps_preflight.foreign_findings(Path("/run/nodeagent"), daemons, tmp_path))
    assert {f.level for f in found} == {"warning"}
    assert ["/tmp/nvidia-mps (pid 2)" in f.message for f in found] == [True, False]
    assert "/opt/pipes (pid 3)" in found[1].message
    assert "kill 3" in found[1].remedy


@pytest.mark.parametrize(
    ("command", "environment", "pipes"),
    [
        (("tail", "/usr/bin/nvidia-cuda-mps-control", "-f"), {}, "/tmp/nvidia-mps"),
        (("tail", "nvidia-cuda-mps-control", "-f"), {PIPES: "/opt/pipes", "A": "b"}, "/opt/pipes"),
        (("cat", "nvidia-cuda-mps-control"), {}, None),
        (("tail", "vim", "/dev/stdin", "nvidia-cuda-mps-control"), {}, None),
    ],
)
def test_daemons_are_found_among_real_processes(
    command: tuple[str, ...], environment: dict[str, str], pipes: str | None
) -> None:
    def found() -> dict[int, str]:
        return {daemon.pid: daemon.pipes for daemon in mps_preflight.running_daemons()}

    with running(*command, environment=environment) as pid:
        wait_until(lambda: found().get(pid) == pipes, said=found)  # its environment comes late


def test_sockets_that_a_daemon_left_are_found(tmp_path: Path) -> None:
    ok = mps_preflight.foreign_findings(Path("/run"), (), tmp_path)
    assert [f.level for f in ok] == ["ok"]
    (tmp_path / "tmp/nvidia-mps").mkdir(parents=True)
    (tmp_path / "tmp/nvidia-mps/control").touch()
    [found] = mps_preflight.foreign_findings(Path("/run"), (), tmp_path)
    assert (found.level, found.remedy) == ("warning", "rm -r /tmp/nvidia-mps")


def test_check_looks_at_what_a_plan_with_mps_needs(h100: Program, short: Path) -> None:
    plan = h100.plan("{devices: [0], mps: {replicas: 2, user: no-such-user}}")
    own = ("--run-dir", short, "--state-dir", short, "--plan", plan)
    ended = h100.on("check", "-o", "json", *own)
    found = {finding["check"]: finding for finding in ended.json["findings"]}
    assert ended.code == 1
    assert found["mps sockets"]["level"] == "ok"
    assert "no-such-user" in found["mps user"]["message"]
