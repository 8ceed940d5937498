"""A front-end program for tests of the conversation alone: answers, and misbehaves on request.

It enforces what the daemon does: one connection at a time. Its folder holds what it shall do next
(`behave`, one word for each call) and what it did (`said`, `environment`, `overlap`).
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from nodeagent.mps.control import ControlClient
from nodeagent.mps.programs import Programs
from tests.machine_load import stretched

_PROGRAM = """#!{python} -IS
import os, sys, time
folder = {folder!r}
def path(name):
    return os.path.join(folder, name)
def note(name, text):
    with open(path(name), "a") as file:
        file.write(text + "\\n")
note("environment", repr(sorted(os.environ.items())))
note("fds", repr(sorted(os.listdir("/proc/self/fd"))))
try:
    os.mkdir(path("connected"))
except FileExistsError:
    note("overlap", "!")
    sys.exit(0)
try:
    with open(path("behave"), "r+") as file:
        words = file.read().split()
        file.seek(0)
        file.truncate()
        file.write(" ".join(words[1:]))
except FileNotFoundError:
    words = []
word = words[0] if words else "answer"
if word != "hang":
    os.rmdir(path("connected"))
if word == "dead":
    sys.exit("Cannot find MPS control daemon process")
if word == "busy":
    sys.exit("Cannot send command to MPS control daemon process")
if word == "stranger":
    sys.exit("Cannot authenticate or connect to MPS control daemon process")
if word == "empty":
    sys.exit(0)
if word == "emptyError":
    sys.exit(1)
note("calls", "one")
if word == "hang":
    note("pid", str(os.getpid()))
    time.sleep(60)
while word == "flood":
    sys.stdout.write("1\\n" * 65536)
if word == "slow":
    time.sleep(0.3)
replies = []
for line in sys.stdin.read().splitlines():
    command, *values = line.split()
    if command.startswith("__"):
        replies.append('Unknown command "' + command + '"')
        continue
    note("said", line)
    if command == "get_client_list":
        replies += [values[0] + "1", values[0] + "2"]
    elif command == "set_default_active_thread_percentage":
        replies.append(str(float(values[0])))
    elif command == "quit":
        sys.exit(1)
if word == "break":
    replies = replies[: len(replies) // 2]
if replies:
    print("\\n".join(replies))
sys.exit(1 if word == "status" else 0)
"""


class FrontEnd:
    """The program and its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.program = folder / "nvidia-cuda-mps-control"
        self.program.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)))
        self.program.chmod(0o755)

    def will(self, *words: str) -> None:
        """How the next calls go."""
        (self._folder / "behave").write_text(" ".join(words))

    def noted(self, name: str) -> list[str]:
        """The lines it left under a name."""
        path = self._folder / name
        return path.read_text().splitlines() if path.exists() else []

    def reconnect(self) -> None:
        """A killed one leaves the daemon free."""
        (self._folder / "connected").rmdir()

    def wait_for(self, name: str) -> list[str]:
        """The same, once there are any."""
        until = time.monotonic() + stretched(30)
        while not self.noted(name):
            assert time.monotonic() < until, f"nothing noted under {name}"
            time.sleep(0.005)
        return self.noted(name)

    def client(self, *, deadline: float = 60.0) -> ControlClient:
        """Something to ask it with."""
        return ControlClient(
            Programs(control=(str(self.program),), path="/usr/bin:/usr/sbin"),
            pipe_directory="/run/x/pipe",
            log_directory="/run/x/log",
            deadline=deadline,
            jitter=random.Random(1).random,
        )
