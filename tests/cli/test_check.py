import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodeagent.claims.records import write_record
from nodeagent.cli.checks import PreflightFinding, machine
from nodeagent.cli.checks.files import health_findings, metrics_findings
from nodeagent.plan.observed import Gpu, MigMode, ObservedNode
from nodeagent.settings import load_settings
from nodeagent.structs import replace
from tests.claims.samples import record
from tests.cli.conftest import Ended, Program
from tests.folders import executable
from tests.processes.real import running

ENABLED = "version: v1\ngpus: [{devices: all, mig: enabled}]\n"


def _check(program: Program, *words: str | Path) -> tuple[Ended, dict[str, Any]]:
    """A check whose directories are the test's own; findings by what was looked at."""
    own = ("--run-dir", program.directory / "run", "--state-dir", program.directory / "lib")
    ended = program.on("check", "-o", "json", *own, *words)
    return ended, {found["check"]: found for found in ended.json["findings"]}


def test_a_setting_without_effect_is_a_warning(h100: Program) -> None:
    ended, found = _check(h100, "--settings", h100.file("dra: {share: memory}", "s.yaml"))
    assert ended.code == 0
    assert found["settings"]["level"] == "warning"
    assert "set dra.mode: dynamic" in found["settings"]["remedy"]


def test_claims_that_hold_the_drivers_name(h100: Program) -> None:
    """Before the agent is started with another one."""
    write_record(h100.directory / "lib" / "claims", record())
    named = h100.file("dra: {mode: dynamic, driver: gpu.nvidia.com}", "s.yaml")
    found = _check(h100, "--settings", named)[1]["DRA driver"]
    assert found["level"] == "warning"
    assert "the DRA driver is gpu.nodeagent.io still, and not gpu.nvidia.com" in found["message"]


_FUNCTIONS = ("nvmlDeviceGetGpuInstanceProfileInfo*", "nvmlDeviceGetGpuInstancePossiblePlacements*")


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_a_driver_that_lists_no_profiles(function: str, h100: Program) -> None:
    plan = h100.plan("{devices: [0], mig: {1g.10gb: 1}}")
    h100.on("simulate", "fault", function, "NOT_SUPPORTED")
    for remedy in ("`mig: enabled`", "a newer NVIDIA driver"):
        _, found = _check(h100)
        assert found["gpu 0"]["level"] == "warning"
        assert found["gpu 0"]["message"].endswith("NVML code 3]")
        assert remedy in found["gpu 0"]["remedy"]
        assert "root" not in found["gpu 0"]["remedy"]
        refused = h100.on("plan", "-f", plan)
        assert "NVML code 3]" in refused.err
        assert found["gpu 0"]["remedy"] in refused.err
        assert "NVML code 3]" in h100.on("profiles").out
        assert h100.on("apply", "-f", h100.file(ENABLED, "on.yaml")).code == 0


@pytest.mark.parametrize(
    ("code", "remedy"),
    [("NO_PERMISSION", "run nodeagent as root"), ("RESET_REQUIRED", "--gpu-reset -i 00000000:")],
)
def test_a_gpu_that_fails_has_one_remedy(code: str, remedy: str, h100: Program) -> None:
    h100.on("simulate", "fault", "nvmlDeviceGetMigMode", code, "--gpu", "0")
    _, found = _check(h100)
    assert remedy in found["gpu 0"]["remedy"]
    assert found["gpu 0"]["message"].endswith("]")
    applied = h100.on("apply", "-f", h100.plan("{devices: [0], mig: enabled}"))
    assert applied.out.count(found["gpu 0"]["remedy"]) == 1


# --- the machine --------------------------------------------------------------------------------


def test_other_owners_are_found_by_process_and_unit(tmp_path: Path) -> None:
    commands = {7: ("/usr/bin/nvidia-mig-manager", "--once"), 8: ("vim", "nvidia-mig-parted")}
    found = list(machine.owner_findings(commands, tmp_path))
    assert [f.level for f in found] == ["warning"]
    assert "pid 7" in found[0].message
    units = tmp_path / "etc/systemd/system/multi-user.target.wants"
    units.mkdir(parents=True)
    (units / "nvidia-mig-manager.service").touch()
    assert len(list(machine.owner_findings(commands, tmp_path))) == 2


def test_another_owner_on_this_machine(h100: Program) -> None:
    with running("sleep", "/opt/bin/nvidia-mig-manager", "60"):
        _, found = _check(h100)
    assert "nvidia-mig-manager is running" in found["other owners"]["message"]


def test_fabric_manager_matters_only_with_switches(tmp_path: Path) -> None:
    commands: dict[int, tuple[str, ...]] = {8: ("/bin/sh",)}
    assert list(machine.fabric_findings(commands, tmp_path)) == []
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia-nvswitch0").touch()
    [found] = machine.fabric_findings(commands, tmp_path)
    assert found.level == "warning"
    commands[9] = ("/usr/bin/nv-fabricmanager", "-c", "x.cfg")
    [found] = machine.fabric_findings(commands, tmp_path)
    assert found.level == "ok"


UNREADABLE = "x" * 256  # the kernel does not say whether it is there, as for one without rights


def test_directories(tmp_path: Path) -> None:
    """One that is there, one that can be made, and one that never can."""
    (tmp_path / "file").touch()
    assert machine.directory_finding("run.dir", tmp_path).level == "ok"
    made = machine.directory_finding("run.dir", tmp_path / "a/b")
    assert (made.level, "made" in made.message) == ("ok", True)
    never = machine.directory_finding("run.dir", tmp_path / "file/b")
    assert (never.level, never.remedy.partition(",")[0]) == ("error", "move it away")
    unreadable = tmp_path / UNREADABLE / "b"
    assert machine.directory_finding("run.dir", unreadable).check == "run.dir"
    assert not (tmp_path / "a").exists()


# Root first: what a check imports may lie where a tenant may not read.
AS_TENANT = """
import contextlib, io, os, sys
from nodeagent.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    main(sys.argv[1:])
os.setuid(65534)
main(sys.argv[1:])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_no_other_user_is_given_the_agents_directories() -> None:
    """Where the agent has to be root, its state is no other user's, who could remove records."""
    words = ("check", "-o", "json", "--state-dir", "/usr/none")
    ended = subprocess.run(
        [sys.executable, "-c", AS_TENANT, *words], capture_output=True, check=True
    )
    found = {one["check"]: one for one in json.loads(ended.stdout)["findings"]}
    assert found["permission"]["level"] == found["state.dir"]["level"] == "error"
    assert found["state.dir"]["remedy"].startswith("run this as root")


def test_a_running_writer_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "writer.lock"
    assert "no other program" in machine.lock_finding(path).message
    with path.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "is running" in machine.lock_finding(path).message
        fcntl.flock(held, fcntl.LOCK_SH)  # as another check has it for a moment
        assert "no other program" in machine.lock_finding(path).message
    for _ in range(2):
        assert "no other program" in machine.lock_finding(path).message


def _node(*, needs_reset: bool) -> ObservedNode:
    mode = MigMode(current=False, pending=False)
    return ObservedNode(
        (Gpu(index=3, uuid="GPU-a", mig=mode, mode_change_needs_reset=needs_reset),)
    )


def _smi(directory: Path, words: str) -> tuple[str]:
    return (str(executable(directory / "nvidia-smi", f"#!/bin/sh\necho '{words}'\n")),)


def test_nvidia_smi_is_needed_only_for_resets(tmp_path: Path) -> None:
    none = (str(tmp_path / "nvidia-smi"),)
    hopper, ampere = _node(needs_reset=False), _node(needs_reset=True)

    def levels(node: ObservedNode, smi: tuple[str], *, allowed: bool) -> list[str]:
        found = machine.nvidia_smi_findings(node, smi, "", reset_allowed=allowed)
        return [finding.level for finding in found]

    assert levels(hopper, none, allowed=True) == []
    virtual = replace(ampere, gpus=tuple(replace(gpu, no_reset="a VM") for gpu in ampere.gpus))
    assert levels(virtual, none, allowed=True) == []
    assert levels(ampere, none, allowed=True) == ["error"]
    assert levels(ampere, none, allowed=False) == ["warning"]
    assert levels(ampere, _smi(tmp_path, ""), allowed=True) == ["ok"]


def test_a_program_that_others_can_write(h100: Program) -> None:
    """It is found before it is needed, and not run here either."""
    [smi] = _smi(h100.directory, "GPU-a, Enabled")
    words = f"after_change: {{command: {smi} cdi}}"
    [_, found] = _check(h100, "--settings", h100.file(words, "s.yaml"))
    assert "programs" not in found
    Path(smi).chmod(0o757)
    [ended, found] = _check(h100, "--settings", h100.file(words, "s.yaml"))
    assert (ended.code, found["programs"]["level"]) == (1, "error")
    assert found["programs"]["message"].startswith(f"{smi} cdi is not run: ")
    assert f"`chmod go-w {smi}`" in found["programs"]["message"]
    assert not list(machine.persistence_findings(_node(needs_reset=False), (smi,), ""))


@pytest.mark.parametrize(
    ("answer", "levels"),
    [
        ("GPU-a, Enabled", ["ok"]),
        ("GPU-a, Disabled", ["warning"]),
        ("GPU-b, Disabled", []),
        ("", []),
    ],
)
def test_persistence_mode_from_hopper_on(answer: str, levels: list[str], tmp_path: Path) -> None:
    """Off means that MIG mode is lost with the driver; who cannot ask says nothing."""
    hopper = _node(needs_reset=False)
    smi = _smi(tmp_path, answer)
    found = machine.persistence_findings(hopper, smi, "")
    assert [finding.level for finding in found] == levels
    assert not list(machine.persistence_findings(_node(needs_reset=True), smi, ""))


def test_no_gpu_at_all_is_an_error() -> None:
    found = list(machine.driver_findings(ObservedNode(driver_version="1")))
    assert [f.level for f in found] == ["ok", "error"]


def test_endless_files_are_not_read_to_the_end(h100: Program) -> None:
    ended, found = _check(h100, "--plan", Path("/dev/zero"))
    assert ended.code == 1
    assert "regular file" in found["plan"]["message"]
    ended, found = _check(h100, "--settings", Path("/dev/zero"))
    assert ended.code == 1
    assert found["settings"]["level"] == "error"


def test_a_gpu_that_never_answered_is_named_nevertheless(h100: Program) -> None:
    h100.on("simulate", "fault", "--lost", "0")
    _, found = _check(h100)
    assert found["gpu 0"]["message"].startswith("the GPU does not answer")


# --- files that settings name ---------------------------------------------------------------------


def _health_found(*, simulated: bool = False, **settings: Path) -> dict[str, tuple[str, str]]:
    variables = {f"NODEAGENT_HEALTH_{name.upper()}": str(path) for name, path in settings.items()}
    health = load_settings(Path("/dev/null"), variables, {}).health
    return {f.check: (f.level, f.message) for f in health_findings(health, simulated=simulated)}


def test_the_kernel_log(tmp_path: Path) -> None:
    """Its absence is a warning, for NVML reports XIDs, too; a simulated node has no own one."""
    os.mkfifo(tmp_path / "kmsg")
    level, message = _health_found(kernel_log=tmp_path / "kmsg")["kernel log"]
    assert (level, message) == ("ok", f"{tmp_path}/kmsg can be read")
    level, message = _health_found(kernel_log=tmp_path / "none")["kernel log"]
    assert level == "warning"
    assert "No such file" in message
    (tmp_path / "kern.log").touch()
    level, message = _health_found(kernel_log=tmp_path / "kern.log")["kernel log"]
    assert (level, message) == (
        "warning",
        f"{tmp_path}/kern.log is a plain file, not the kernel's own log",
    )
    assert _health_found(simulated=True) == {}
    assert "kernel log" in _health_found(simulated=True, kernel_log=tmp_path / "kmsg")


def test_the_table_of_xids(tmp_path: Path) -> None:
    table = tmp_path / "xids.yaml"
    table.write_text("version: v1\nxids:\n- {xid: 63, class: gpuReset}\n")
    assert _health_found(simulated=True, xids=table)["table of XIDs"][0] == "ok"
    table.write_text("version: v1\nxids:\n- {xid: 63, class: gpuRest}\n")
    level, message = _health_found(simulated=True, xids=table)["table of XIDs"]
    assert level == "error"
    assert "line 3" in message


def _metrics_found(**settings: object) -> list[PreflightFinding]:
    variables = {f"NODEAGENT_METRICS_{name.upper()}": str(v) for name, v in settings.items()}
    return list(metrics_findings(load_settings(Path("/dev/null"), variables, {}).metrics))


def test_nothing_is_said_of_files_that_are_not_named() -> None:
    assert _metrics_found() == []


def test_the_file_of_counters(tmp_path: Path) -> None:
    file = tmp_path / "counters.csv"
    file.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_FI_DEV_GPU_TEMPP, gauge, x\n")
    good, bad = _metrics_found(counters=file)
    assert (good.level, good.message) == ("ok", f"{file} has 1 fields that can be exported")
    assert bad.level == "warning"
    assert bad.message.startswith("line 2: ")
    assert "DCGM_FI_DEV_GPU_TEMP" in bad.remedy


def test_a_file_of_counters_that_cannot_be_used(tmp_path: Path) -> None:
    (missing,) = _metrics_found(counters=tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("# nothing\n")
    (empty,) = _metrics_found(counters=tmp_path / "empty.csv")
    assert (missing.level, empty.level) == ("error", "error")
    assert "No such file" in missing.message


def test_the_web_config_file(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.write_text("basic_auth_users: {}\n")
    (idle,) = _metrics_found(web_config=file)
    (good,) = _metrics_found(web_config=file, listen="127.0.0.1:0")
    file.write_text("tls_server_config: {cert_file: none.crt, key_file: none.key}\n")
    (bad,) = _metrics_found(web_config=file, listen="127.0.0.1:0")
    assert [f.level for f in (idle, good, bad)] == ["warning", "ok", "error"]
    assert good.message == f"{file}: no TLS, no passwords"
    assert "none.crt" in bad.message
