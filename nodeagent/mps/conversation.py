"""How commands and replies go over one connection to a control daemon. Pure.

Replies have no delimiter: after each command comes a nonsense word, whose complaint ends the reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodeagent.mps.commands import Command, QuitDaemon


def script_of(commands: Sequence[Command[Any]]) -> bytes:
    """The lines, each followed by a nonsense word whose complaint ends the reply."""
    lines: list[str] = []
    for number, command in enumerate(commands, 1):
        lines.append(command.line)
        if not isinstance(command, QuitDaemon):
            lines.append(f"__{number}")
    text = "".join(f"{line}\n" for line in lines)
    if text.count("\n") != len(lines):  # no command's line has one; the daemon would take it as two
        raise ValueError(f"a line break in {lines!r}")
    return text.encode("ascii")


def parted(output: str, count: int) -> list[list[str]] | None:
    """The lines between the complaints; None unless there are all of these, in order."""
    replies: list[list[str]] = [[]]
    for line in output.splitlines():
        if f'"__{len(replies)}"' in line:
            replies.append([])
        elif line.strip():
            replies[-1].append(line)
    return replies[:-1] if len(replies) == count + 1 and not replies[-1] else None
