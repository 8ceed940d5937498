"""Agents of earlier releases: their code as a commit of this clone has it, today's libraries."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
_RENAMED = {"NODEAGENT_KUBELET_DIR": "NODEAGENT_DRA_KUBELET_DIR"}  # today's: what it was


def release(commit: str) -> Path:
    """A folder with the package of that commit, or the folder that was named, which has one.

    Raises CalledProcessError where this is no clone, or has no such commit.
    """
    if Path(commit).is_dir():
        return Path(commit)
    folder = Path(tempfile.mkdtemp(prefix="campaign-release-", dir="/tmp"))
    folder.chmod(0o755)  # daemons run as another user
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    asked = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "nodeagent"]
    archive = subprocess.run(asked, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", folder], check=True, input=archive)
    return folder


def settings_of(folder: Path, ours: Mapping[str, str]) -> dict[str, str]:
    """Our settings, as variables, by the names that this release knows."""
    code = "".join(path.read_text() for path in (folder / "nodeagent/settings").glob("*.py"))
    renamed = _RENAMED if "kubelet_dir" in code else {}
    return {renamed.get(name, name): value for name, value in ours.items()}
