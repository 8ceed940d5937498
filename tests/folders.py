"""Folders that every user may pass, with paths short enough for sockets; programs in folders."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def new_folder(prefix: str = "na-") -> Path:
    """One that who asks for it removes."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    folder.chmod(0o755)
    return folder


@contextmanager
def open_folder() -> Iterator[Path]:
    folder = new_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def lasting_folder(prefix: str) -> Path:
    """One for all of this process; removed when it ends."""
    folder = new_folder(prefix)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def end_processes_of(folder: Path) -> None:
    """Those that have the folder in their environment, as what its agents started has."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            if str(folder).encode() in (entry / "environ").read_bytes():
                os.kill(pid, signal.SIGKILL)
