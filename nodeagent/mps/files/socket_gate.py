"""Takes a daemon's sockets out of its pipe directory, so that no new client finds it.

`quit` cannot be taken back, and as long as a daemon is found, new clients come. But its sockets
can be renamed: who is connected stays so, whoever comes then finds no MPS, which under
EXCLUSIVE_PROCESS is loud, and the agent itself talks through a sibling directory, which only it
can enter. Seen to work on 535 and 550. Where the sockets are says all; there is no other state,
so whoever comes after a crash can put them back.
"""

from __future__ import annotations

import os
from pathlib import Path

from nodeagent.mps.files.removal import remove_tree

BACK = "back"  # no longer than `pipe`, whose sockets' paths were checked to be short enough
SOCKETS = ("control_privileged", "control")


class BackDoor:
    """Of the daemon with this pipe directory. Errors of the file system come as OSError."""

    def __init__(self, pipe_directory: str) -> None:
        self.front = Path(pipe_directory)
        self._back = self.front.with_name(BACK)

    @property
    def hidden(self) -> bool:
        """Whether any of its sockets is out of the way."""
        return any(os.path.lexists(self._back / name) for name in SOCKETS)

    @property
    def directory(self) -> str:
        """Where the agent finds the daemon."""
        return str(self._back if self.hidden else self.front)

    @property
    def listens(self) -> bool:
        """Whether there is a socket at all; costs two system calls."""
        return self.hidden or os.path.lexists(self.front / "control")

    def keep(self, *, hidden: bool) -> None:
        """As it is to be; what is so already is left alone."""
        if hidden:
            self.hide()
        elif self.hidden:
            self.show()

    def hide(self) -> None:
        """New clients find nothing from here on."""
        self._back.mkdir(mode=0o700, exist_ok=True)
        for name in SOCKETS:
            if os.path.lexists(self.front / name):
                (self.front / name).rename(self._back / name)

    def show(self) -> None:
        """As it was. What a later daemon has put in place meanwhile stays."""
        for name in SOCKETS:
            if not os.path.lexists(self._back / name):
                continue
            if os.path.lexists(self.front / name) or not self.front.is_dir():
                (self._back / name).unlink()
            else:
                (self._back / name).rename(self.front / name)

    def clear(self) -> None:
        """Take away the sockets of a daemon that is dead, wherever they are, or what its user has
        put in their place. Blocks on the file system.
        """
        for directory in (self._back, self.front):
            for name in SOCKETS:
                try:
                    (directory / name).unlink(missing_ok=True)
                except IsADirectoryError:
                    remove_tree(directory / name)
