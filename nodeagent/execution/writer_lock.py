"""One writer per node: whoever changes GPUs holds this lock, the agent for as long as it runs.

The kernel releases it when its holder ends, however that happens.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeagent.errors import NodeagentError

FILE_NAME = "writer.lock"


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; raises NodeagentError when somebody else holds it.

    The holder's pid is written into the file, for whoever is turned away.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise NodeagentError(
            f"the lock file {path} cannot be opened: {error.strerror}",
            remedy="run as root, or set run.dir to a folder that can be written",
        ) from error
    try:
        _lock(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        try:
            yield
        finally:
            # The file stays: taking it away would let two writers hold two files of one name.
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        who = f"process {holder}" if holder.isdecimal() else "another process"
        raise NodeagentError(
            f"{who} already changes this node's GPUs (it holds {path})",
            remedy="change the plan that the running agent follows, or stop it first",
        ) from None
