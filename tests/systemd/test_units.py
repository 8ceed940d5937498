import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from nodeagent.cli.parser import parse
from nodeagent.mps.launch.launcher import OPEN_FILES
from nodeagent.settings import load_settings
from tests.systemd.sandbox import values_of

UNITS = Path(__file__).parents[2] / "systemd"
AGENT, RESTORE = "nodeagent.service", "nodeagent-restore.service"
CHILDREN, MOUNT = "mps-children.conf", "run-nodeagent.mount"
EXPOSURE = {AGENT: 4.0, RESTORE: 3.0}  # at most, by `systemd-analyze security`
PROGRAM = "/opt/nodeagent/bin/nodeagent"


def _read(unit: str) -> dict[str, list[str]]:
    """All values by key, in order (no key of ours occurs in two sections)."""
    return dict(values_of(str(UNITS / unit)))


def _one(unit: str, key: str) -> str:
    (value,) = _read(unit)[key]
    return value


def _analyze(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """`systemd-analyze` with both units in `folder`, and another program in place of ours."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    for unit in (AGENT, RESTORE, MOUNT):  # all, so that the order between them is checked
        text = (UNITS / unit).read_text(encoding="utf-8")
        (folder / unit).write_text(text.replace(PROGRAM, sys.executable), encoding="utf-8")
    return subprocess.run(
        ["systemd-analyze", *words],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={"SYSTEMD_UNIT_PATH": f"{folder}:", "PATH": "/usr/bin:/bin"},
    )


@pytest.mark.parametrize(
    ("unit", "drop_in"), [*product((AGENT, RESTORE), (None, CHILDREN)), (MOUNT, None)]
)
def test_systemd_accepts_the_unit(unit: str, drop_in: str | None, tmp_path: Path) -> None:
    if drop_in:
        (tmp_path / f"{unit}.d").mkdir()
        shutil.copy(UNITS / drop_in, tmp_path / f"{unit}.d")
    result = _analyze(tmp_path, "verify", "--man=no", tmp_path / unit)
    ours = [line for line in result.stderr.splitlines() if "nodeagent" in line]
    assert (result.returncode, ours) == (0, [])


def test_what_users_of_mps_can_fill_is_bounded() -> None:
    assert _one(MOUNT, "Where") == str(load_settings(None, {}, {}).run.dir)
    assert re.search(r"\bsize=\d+M\b", _one(MOUNT, "Options"))
    assert {AGENT, RESTORE} <= set(_one(MOUNT, "Before").split())


@pytest.mark.parametrize("unit", [AGENT, RESTORE])
def test_the_unit_is_little_exposed(unit: str, tmp_path: Path) -> None:
    """By systemd's own measure, from 0 to 10; what is left is explained in the agent's unit."""
    result = _analyze(tmp_path, "security", "--offline=yes", "--no-pager", tmp_path / unit)
    assert "Overall exposure level" in result.stdout, result.stderr
    (exposure,) = re.findall(r"\d+\.\d", result.stdout.splitlines()[-1])
    assert float(exposure) <= EXPOSURE[unit]
    lines = (UNITS / AGENT).read_text(encoding="utf-8").splitlines()
    explained = "\n".join(line for line in lines if line.startswith("#"))
    left = re.findall(r"^✗ (\S+)", result.stdout, re.MULTILINE)
    assert left
    for setting in left:  # `ProtectProc=`, `CapabilityBoundingSet=~CAP_(DAC_*|FOWNER|IPC_OWNER)`
        names = [name.removeprefix("CAP_") for name in re.findall(r"[@\w]+", setting)]
        assert any(name in explained for name in names if name), setting


@pytest.mark.parametrize("unit", [AGENT, RESTORE])
def test_the_command_exists(unit: str) -> None:
    program, *arguments = _one(unit, "ExecStart").split()
    assert program == PROGRAM
    assert parse(arguments).command == {AGENT: "run", RESTORE: "apply"}[unit]


def test_the_agent_is_watched_and_may_finish_a_step() -> None:
    assert _one(AGENT, "Type") == "notify"
    assert float(_one(AGENT, "WatchdogSec")) > 0
    assert _one(AGENT, "Restart") == "always"
    assert _one(AGENT, "KillMode") == "process"
    longest_step = load_settings(None, {}, {}).driver.step_deadline
    assert float(_one(AGENT, "TimeoutStopSec")) > longest_step


@pytest.mark.parametrize("unit", [AGENT, RESTORE])
def test_mps_outlives_the_unit(unit: str) -> None:
    """Daemons, also its children, are not killed, and what they and clients use stays reachable."""
    assert _one(unit, "KillMode") == "process"
    assert _one(unit, "RuntimeDirectoryPreserve") == "yes"
    assert _one(unit, "RuntimeDirectoryMode") == "0755"
    soft, _, _ = _one(unit, "LimitNOFILE").partition(":")
    assert int(soft) >= OPEN_FILES


@pytest.mark.parametrize("unit", [AGENT, RESTORE])
def test_what_is_written_can_be_written(unit: str) -> None:
    settings = load_settings(None, {}, {})
    made = {f"/run/{name}" for name in _one(unit, "RuntimeDirectory").split()}
    assert {str(settings.run.dir), str(settings.cdi.dir).removeprefix("/var")} <= made


def test_a_wrong_setting_is_no_reason_to_start_again() -> None:
    """systemd does not restart the agent for ever when its settings are refused (exit code 2)."""
    assert _one(AGENT, "RestartPreventExitStatus") == "2"


def test_the_layout_is_restored_before_gpus_are_handed_out() -> None:
    assert _one(RESTORE, "Type") == "oneshot"
    before = {name for line in _read(RESTORE)["Before"] for name in line.split()}
    assert before >= {"containerd.service", "docker.service", "crio.service", "kubelet.service"}
    assert before >= {"slurmd.service", "podman-restart.service", AGENT}
    after = set(_one(RESTORE, "After").split())
    assert after >= {"nvidia-persistenced.service", "nvidia-fabricmanager.service"}
    assert RESTORE in _one(AGENT, "After").split()


def test_a_boot_is_never_held_up() -> None:
    assert 0 < float(_one(RESTORE, "TimeoutStartSec")) <= 300
    assert _one(RESTORE, "ConditionPathExists") == "/etc/nodeagent/plan.yaml"
    for unit in (AGENT, RESTORE):
        assert {"Requires", "BindsTo", "Requisite", "RequiredBy"}.isdisjoint(_read(unit))


def test_nothing_waits_for_the_kubelet_before_it_is_started() -> None:
    """The oneshot does not ask the kubelet, which it runs before: no answer would be in use."""
    assert "kubelet.service" in {name for line in _read(RESTORE)["Before"] for name in line.split()}
    environment = dict(line.split("=", 1) for line in _read(RESTORE)["Environment"])
    assert load_settings(None, environment, {}).kubelet.use == "never"
    assert "Environment" not in _read(AGENT)


def test_both_units_are_hardened_alike() -> None:
    protections = {
        key: values
        for key, values in _read(AGENT).items()
        if key.startswith(("Protect", "Private", "Restrict", "SystemCall", "Device", "NoNew"))
        or key in {"LockPersonality", "KeyringMode", "UMask"}
    }
    del protections["RestrictAddressFamilies"]
    assert len(protections) >= 18
    may = {unit: set(_one(unit, "CapabilityBoundingSet").split()) for unit in (AGENT, RESTORE)}
    assert may[AGENT] - may[RESTORE] == {"CAP_SYSLOG"}  # it has no use for the kernel log
    assert may[RESTORE] < may[AGENT]
    assert _one(RESTORE, "ProtectKernelLogs") == "yes"
    assert {key: _read(RESTORE)[key] for key in protections} == protections
    assert _one(RESTORE, "PrivateNetwork") == "yes"
