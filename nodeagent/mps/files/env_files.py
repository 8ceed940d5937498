"""What an env file says: a client's environment, so that all readers of such files read it alike.

systemd's EnvironmentFile=, `docker run --env-file` and a shell's `.` differ in quotes, escapes and
comments. They agree on KEY=VALUE lines whose values need none of these, so nothing else is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodeagent.errors import NodeagentError

SUFFIX = ".env"

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_PLAIN = re.compile(r"[A-Za-z0-9_/.,:=@%+-]+")  # neither shell, systemd nor Docker touches these
_SLOT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,98}[A-Za-z0-9])?")


class NotPlain(NodeagentError):
    """A name or value would have to be quoted, which not every reader understands alike."""


def file_name(slot: str) -> str:
    """Of a slot's file. Raises NotPlain for a slot whose name makes none."""
    if not _SLOT.fullmatch(slot):
        raise NotPlain(
            f"the slot {slot!r} makes no file name",
            remedy="name shares with small letters, digits and -",
        )
    return f"{slot}{SUFFIX}"


def env_file(environment: Mapping[str, str]) -> bytes:
    """The file, a line for each variable, in order of their names. Raises NotPlain."""
    lines = []
    for name, value in sorted(environment.items()):
        if not _NAME.fullmatch(name):
            raise NotPlain(f"{name!r} is no name of a variable")
        if not is_plain(value):
            raise NotPlain(
                f"{name} would be {value!r}, which not every reader of env files reads alike",
                remedy="use letters, digits, -, _, . and / in run.dir",
            )
        lines.append(f"{name}={value}\n")
    return "".join(lines).encode("ascii")


def is_plain(value: str) -> bool:
    """Whether it can stand in an env file, or in a mount, just as it is."""
    return _PLAIN.fullmatch(value) is not None
