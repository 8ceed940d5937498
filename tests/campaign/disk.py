"""The agent's writes to the disk, seen where they leave Python: by audit events."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.campaign.library import Border

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_MAKES = {"open", "os.mkdir"}
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink"}
_seen: list[tuple[str, Border]] = []  # at most one; a hook cannot be removed


@contextmanager
def watched(folder: Path, border: Border) -> Iterator[None]:
    """Within it the agent runs, and what it changes below the folder passes the border."""
    _seen.append((str(folder), border))
    try:
        yield
    finally:
        _seen.clear()


def _audited(event: str, arguments: tuple[Any, ...]) -> None:
    if not _seen:
        return
    if event == "open":
        path, _, flags = arguments
        if not isinstance(path, str) or not isinstance(flags, int) or not flags & _WRITING:
            return
    elif event in _CHANGES:
        path = arguments[0]
    else:
        return
    folder, border = _seen[0]
    name = os.fsdecode(path)
    if name.startswith("/") and not name.startswith(folder):
        return
    border.change()
    if border.full_at is None or not (event in _MAKES or border.read_only):
        return
    if _is_in(name, border):
        border.full_at -= 1
        if border.full_at <= 0:
            border.was_full = border.was_full or not border.full_in
            number = errno.EROFS if border.read_only else errno.ENOSPC
            raise OSError(number, os.strerror(number), name)


def _is_in(name: str, border: Border) -> bool:
    """Whether it is on the disk that may be full."""
    folder, _ = _seen[0]
    return not border.full_in or name.startswith(f"{folder}/{border.full_in}")


sys.addaudithook(_audited)
