"""Takes a daemon's sockets out of its pipe directory, so that no new client finds it.

`quit` cannot be taken back, and as long as a daemon is found, new clients come. But its sockets
can be renamed: who is connected stays so, whoever comes then finds no MPS, which under
EXCLUSIVE_PROCESS is loud, and the agent itself talks through a sibling directory, which only it
can enter. Seen to work on 535 and 550. Where the sockets are says all; there is no other state,
so whoever comes after a crash can put them back.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from nodeagent.mps.removal import remove_tree

BACK = "back"  # no longer than `pipe`, whose sockets' paths were checked to be short enough
_SOCKETS = ("control_privileged", "control")


class BackDoor:
    """Of the daemon with this pipe directory. Errors of the file system come as OSError."""

    def __init__(self, pipe_directory: str) -> None:
        self._front = Path(pipe_directory)
        self._back = self._front.with_name(BACK)

    @property
    def hidden(self) -> bool:
        """Whether any of its sockets is out of the way."""
        return any(os.path.lexists(self._back / name) for name in _SOCKETS)

    @property
    def directory(self) -> str:
        """Where the agent finds the daemon."""
        return str(self._back if self.hidden else self._front)

    @property
    def listens(self) -> bool:
        """Whether there is a socket at all; costs two system calls."""
        return self.hidden or os.path.lexists(self._front / "control")

    @property
    def intruder(self) -> str:
        """What is in a socket's place and is none, such as a link to that of another daemon, which
        the agent would then command; "" for nothing.
        """
        for name in _SOCKETS:
            path = Path(self.directory) / name
            with suppress(FileNotFoundError):
                if not stat.S_ISSOCK(path.lstat().st_mode):
                    return str(path)
        return ""

    def keep(self, *, hidden: bool) -> None:
        """As it is to be; what is so already is left alone."""
        if hidden:
            self.hide()
        elif self.hidden:
            self.show()

    def hide(self) -> None:
        """New clients find nothing from here on."""
        self._back.mkdir(mode=0o700, exist_ok=True)
        for name in _SOCKETS:
            if os.path.lexists(self._front / name):
                (self._front / name).rename(self._back / name)

    def show(self) -> None:
        """As it was. What a later daemon has put in place meanwhile stays."""
        for name in _SOCKETS:
            if not os.path.lexists(self._back / name):
                continue
            if os.path.lexists(self._front / name) or not self._front.is_dir():
                (self._back / name).unlink()
            else:
                (self._back / name).rename(self._front / name)

    def clear(self) -> None:
        """Take away the sockets of a daemon that is dead, wherever they are, or what its user has
        put in their place. Blocks on the file system.
        """
        for directory in (self._back, self._front):
            for name in _SOCKETS:
                try:
                    (directory / name).unlink(missing_ok=True)
                except IsADirectoryError:
                    remove_tree(directory / name)
