"""The executables that are made on demand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.errors import UsageError
from nodeagent.simulation.mps.installation import CONTROL_PROGRAM, install


def test_only_known_versions_can_be_installed(tmp_path: Path) -> None:
    """The error lists them."""
    with pytest.raises(UsageError, match="535, 550, 555, 580, 615"):
        install(tmp_path, version="470")


@pytest.mark.parametrize("folder", ["short", "with space", "long" * 40])
def test_wherever_the_interpreter_is(tmp_path: Path, folder: str) -> None:
    """Also where its path cannot stand in a first line."""
    place = tmp_path / folder
    place.mkdir()
    python = place / "python"
    python.symlink_to(sys.executable)
    install(tmp_path / "bin", python=python)
    done = subprocess.run(
        [tmp_path / "bin" / CONTROL_PROGRAM, "-h"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_surrounds_them_does_not_matter(tmp_path: Path) -> None:
    """Neither Python's variables nor the current folder."""
    install(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong module')")
    done = subprocess.run(
        [tmp_path / CONTROL_PROGRAM, "-h"],
        env={"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "/nowhere"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
