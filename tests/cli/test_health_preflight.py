"""What `nodeagent check` says of what health needs."""

from __future__ import annotations

import os
from pathlib import Path

from nodeagent.cli.checks.files import health_findings
from nodeagent.settings import load_settings


def _found(*, simulated: bool = False, **settings: Path) -> dict[str, tuple[str, str]]:
    variables = {f"NODEAGENT_HEALTH_{name.upper()}": str(path) for name, path in settings.items()}
    health = load_settings(Path("/dev/null"), variables, {}).health
    return {f.check: (f.level, f.message) for f in health_findings(health, simulated=simulated)}


def test_the_kernel_log(tmp_path: Path) -> None:
    """Its absence is a warning, for NVML reports XIDs, too; a simulated node has no own one."""
    os.mkfifo(tmp_path / "kmsg")
    level, message = _found(kernel_log=tmp_path / "kmsg")["kernel log"]
    assert (level, message) == ("ok", f"{tmp_path}/kmsg can be read")
    level, message = _found(kernel_log=tmp_path / "none")["kernel log"]
    assert level == "warning"
    assert "No such file" in message
    (tmp_path / "kern.log").touch()
    level, message = _found(kernel_log=tmp_path / "kern.log")["kernel log"]
    assert (level, message) == (
        "warning",
        f"{tmp_path}/kern.log is a plain file, not the kernel's own log",
    )
    assert _found(simulated=True) == {}
    assert "kernel log" in _found(simulated=True, kernel_log=tmp_path / "kmsg")


def test_the_table_of_xids(tmp_path: Path) -> None:
    """One with which the agent would not start is an error, which leads to the line."""
    table = tmp_path / "xids.yaml"
    table.write_text("version: v1\nxids:\n- {xid: 63, class: gpuReset}\n")
    assert _found(simulated=True, xids=table)["table of XIDs"][0] == "ok"
    table.write_text("version: v1\nxids:\n- {xid: 63, class: gpuRest}\n")
    level, message = _found(simulated=True, xids=table)["table of XIDs"]
    assert level == "error"
    assert "line 3" in message
