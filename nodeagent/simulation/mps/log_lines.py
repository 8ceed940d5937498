"""Lines of control.log and server.log."""

import os
import time

STDOUT = 1


class Log:
    """One log: a descriptor that others may append to as well. -1 where nothing can be kept.

    Like the real daemon it goes on when its standard output is no longer read.
    """

    def __init__(self, descriptor: int, tag: str, pid: int | None = None) -> None:
        self.descriptor = descriptor
        self._tag = tag
        self._pid = pid

    def __call__(self, text: str, *, pid: int | None = None) -> None:
        if self.descriptor < 0:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        author = pid or self._pid or os.getpid()
        line = f"[{stamp}.{int(now * 1000) % 1000:03d} {self._tag} {author:5d}] {text}\n"
        try:
            os.write(self.descriptor, line.encode(errors="replace"))
        except OSError:
            return


def opened(path: str, tag: str) -> Log:
    """A log in a file, appended to; raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    descriptor = os.open(path, flags, 0o644)
    os.set_inheritable(descriptor, True)  # servers get it too
    return Log(descriptor, tag)
