"""Takes away directories whose owner may have put anything into them: links to elsewhere,
directories within directories without end, and more while they are taken away.

Nothing is followed, and each directory is taken from its owner before it is looked into. What is
deep is lifted up, so that no depth takes more memory or descriptors than another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(top: Path) -> None:
    """All below `top`, directories before files, and itself; nothing where there is nothing.

    Raises OSError for what cannot be removed.
    """
    with suppress(FileNotFoundError):
        with _taken(top) as inside:
            _lift_and_remove(inside)
            for name in os.listdir(inside):  # noqa: PTH208  # of an open one
                os.unlink(name, dir_fd=inside)
        top.rmdir()


def _lift_and_remove(top: int) -> None:
    """All directories in it. Those within these come up beside them, and are next."""
    free = (name for name in map("lifted-{}".format, count()) if not _is_there(name, top))
    while names := _directories(top):
        for name in names:
            with _taken(name, top) as inside:
                within = _directories(inside)
                for deeper in within:
                    os.rename(deeper, next(free), src_dir_fd=inside, dst_dir_fd=top)
                for file in os.listdir(inside):  # noqa: PTH208  # of an open one
                    os.unlink(file, dir_fd=inside)
            os.rmdir(name, dir_fd=top)


@contextmanager
def _taken(path: Path | str, above: int | None = None) -> Iterator[int]:
    """An open directory that from now on nobody else can change."""
    descriptor = os.open(path, _DIRECTORY, dir_fd=above)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            os.fchown(descriptor, os.geteuid(), -1)
        os.fchmod(descriptor, 0o700)
        yield descriptor
    finally:
        os.close(descriptor)


def _directories(inside: int) -> list[str]:
    with os.scandir(inside) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _is_there(name: str, inside: int) -> bool:
    try:
        os.stat(name, dir_fd=inside, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
