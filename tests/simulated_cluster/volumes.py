"""What a kubelet gives a pod on disk, and the powers that its processes do not have."""

import os
import shutil
from pathlib import Path


def why_not() -> str:
    """Why this cannot be had here; empty when it can."""
    if os.geteuid() != 0:
        return "only root can make a volume that belongs to root, and be another user"
    if shutil.which("setpriv") is None:
        return "no setpriv (util-linux)"
    return ""


def empty_dir(path: Path, fs_group: int | None) -> Path:
    """An emptyDir as a kubelet makes it: root's, mode 0777; with fsGroup that group's and 2777."""
    path.mkdir()
    os.chown(path, 0, -1 if fs_group is None else fs_group)
    path.chmod(0o777 if fs_group is None else 0o2777)
    return path


def without_powers(user: int, group: int, fs_group: int) -> list[str]:
    """The beginning of a command that runs as this user with `capabilities: {drop: [ALL]}`.

    But for reading what others may not read, since the tests' Python may lie in root's home.
    """
    kept = "+dac_read_search"
    return [
        *("setpriv", "--reuid", str(user), "--regid", str(group), "--groups", str(fs_group)),
        *("--bounding-set", f"-all,{kept}", "--inh-caps", f"-all,{kept}"),
        *("--ambient-caps", f"-all,{kept}", "--no-new-privs"),
    ]
