"""What `nodeagent check` says of the files behind `/metrics`."""

from __future__ import annotations

from pathlib import Path

from nodeagent.cli.checks import PreflightFinding
from nodeagent.cli.checks.files import metrics_findings
from nodeagent.settings import load_settings


def _found(**settings: object) -> list[PreflightFinding]:
    variables = {f"NODEAGENT_METRICS_{name.upper()}": str(v) for name, v in settings.items()}
    return list(metrics_findings(load_settings(Path("/dev/null"), variables, {}).metrics))


def test_nothing_is_said_of_files_that_are_not_named() -> None:
    """The default needs no file."""
    assert _found() == []


def test_the_file_of_counters(tmp_path: Path) -> None:
    """What can be exported is counted, and each line that cannot is a warning with its number."""
    file = tmp_path / "counters.csv"
    file.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_FI_DEV_GPU_TEMPP, gauge, x\n")
    good, bad = _found(counters=file)
    assert (good.level, good.message) == (
        "ok",
        f"{file} has 1 fields that can be exported",
    )
    assert bad.level == "warning"
    assert bad.message.startswith("line 2: ")
    assert "DCGM_FI_DEV_GPU_TEMP" in bad.remedy


def test_a_file_of_counters_that_cannot_be_used(tmp_path: Path) -> None:
    """Missing, or without a line that counts: an error."""
    (missing,) = _found(counters=tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("# nothing\n")
    (empty,) = _found(counters=tmp_path / "empty.csv")
    assert (missing.level, empty.level) == ("error", "error")
    assert "No such file" in missing.message


def test_the_web_config_file(tmp_path: Path) -> None:
    """Accepted, refused with what is wrong, or of no use without a listener."""
    file = tmp_path / "web.yml"
    file.write_text("basic_auth_users: {}\n")
    (idle,) = _found(web_config=file)
    (good,) = _found(web_config=file, listen="127.0.0.1:0")
    file.write_text("tls_server_config: {cert_file: none.crt, key_file: none.key}\n")
    (bad,) = _found(web_config=file, listen="127.0.0.1:0")
    assert [f.level for f in (idle, good, bad)] == ["warning", "ok", "error"]
    assert good.message == f"{file}: no TLS, no passwords"
    assert "none.crt" in bad.message
