"""Reads a file of others, whatever it turns out to be."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular_file(path: Path, most: int) -> bytes:
    """The file's first `most` bytes; raises OSError also when it is no regular file. Blocks.

    Opened without waiting, so that a named pipe does not hang the agent.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        # `open` refuses the descriptor of a directory and then leaves it open.
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)
