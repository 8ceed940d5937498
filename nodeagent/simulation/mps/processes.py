"""What the daemon can see of a client in /proc."""

from __future__ import annotations

import os


def described(pid: int) -> tuple[int, str]:
    """The inode of its pid namespace and its command, 0 and nothing where they are hidden."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().split(b"\0")[0].decode(errors="replace")
        return os.stat(f"/proc/{pid}/ns/pid").st_ino, command
    except OSError:
        return 0, ""


def become(name: str) -> None:
    """Be called in /proc what the real program is called, whatever runs the script."""
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name)
