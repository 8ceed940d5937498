"""What a control daemon's replies mean.

Pure. Judged by their words alone: nearly every mistake comes with exit status 0. Rows are read by
the words of their header, because versions differ in columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.errors import NodeagentError

LARGEST_PID = 2**22  # the kernel's own limit
_MOST = 1024  # pids in one reply; a device has some tens of clients at most

Reply = Sequence[str]  # the lines of a reply, without line ends


class UnexpectedReply(NodeagentError):
    """The daemon said something that is no answer to the command."""


class UnknownCommand(UnexpectedReply):
    """This version of the daemon does not have the command."""


class UnknownServer(UnexpectedReply):
    """The daemon has no such server (any more)."""


class NotPermitted(UnexpectedReply):
    """The daemon takes this only from root or from who started it."""


# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Client:
    """One row of `ps`. `device` is the beginning of its UUID, `namespace` the inode of the
    client's pid namespace (None: not told). `pid` is in the daemon's pid namespace, 0 when it
    cannot be told there.
    """

    pid: int
    server: int
    device: str
    namespace: int | None
    command: str


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit as the daemon prints it: from 1G up cut down to whole G."""

    amount: int
    unit: str  # K, M, G

    def agrees_with(self, mebibytes: int) -> bool:
        """Whether a limit of so many MiB would be printed like this."""
        match self.unit:
            case "G":
                return mebibytes >= 1024 and mebibytes // 1024 == self.amount
            case "M":
                return mebibytes == self.amount
            case _:
                return mebibytes * 1024 == self.amount

    def __str__(self) -> str:
        return f"{self.amount}{self.unit}"


def threads_agree(printed: float, wanted: float) -> bool:
    """Whether the daemon, which prints one decimal, would print `wanted` like this."""
    return abs(printed - wanted) < 0.0501


# --- reading --------------------------------------------------------------------------------------


def unexpected(line: str, reply: Reply) -> UnexpectedReply:
    """The error for a reply that is no answer."""
    said = " / ".join(reply)[:200] or "nothing"
    return UnexpectedReply(f"the MPS daemon answered {said!r} to {line!r}")


def check_refusal(line: str, reply: Reply) -> None:
    """Raise what the daemon refuses in words."""
    said = " / ".join(text.strip() for text in reply)[:200]
    for words, refusal in _REFUSALS.items():
        if re.search(words, said):
            raise refusal(f"the MPS daemon answered {said!r} to {line!r}")


_REFUSALS = {
    r"^Unknown command": UnknownCommand,
    r"^Server [0-9]+ not found": UnknownServer,
    r"^Insufficient privileges|^Not enough privilege": NotPermitted,
}


def check_silent(line: str, reply: Reply) -> None:
    """Raise unless nothing was said."""
    check_refusal(line, reply)
    if reply:
        raise unexpected(line, reply)


def pids(line: str, reply: Reply, *, least: int) -> tuple[int, ...]:
    """One a line, none below `least`. What can be no pid gets no further, because questions are
    made of them, and neither do more than there can be.
    """
    check_refusal(line, reply)
    if len(reply) > _MOST or not all(re.fullmatch(r"\s*[0-9]{1,10}\s*", text) for text in reply):
        raise unexpected(line, reply)
    found = tuple(int(text) for text in reply)
    if not all(least <= pid <= LARGEST_PID for pid in found):
        raise unexpected(line, reply)
    return found


def percentage_of(line: str, reply: Reply) -> float:
    """One percentage."""
    check_refusal(line, reply)
    if len(reply) != 1 or not re.fullmatch(r"\s*[0-9]{1,3}(\.[0-9]{1,6})?\s*", reply[0]):
        raise unexpected(line, reply)
    return float(reply[0])


def memory_limit(line: str, reply: Reply) -> MemoryLimit | None:
    """One memory limit; None when nothing was said."""
    check_refusal(line, reply)
    if not reply:
        return None
    match = re.fullmatch(r"\s*([0-9]{1,12})([KMG])B?\s*", reply[0])
    if len(reply) != 1 or match is None:
        raise unexpected(line, reply)
    return MemoryLimit(int(match[1]), match[2])


def clients(line: str, reply: Reply) -> tuple[Client, ...]:
    """The rows under a header; none when there is no server."""
    if [text.strip() for text in reply] == ["Server not found"]:
        return ()
    check_refusal(line, reply)
    if not reply:
        return ()
    header = reply[0].split()
    if not {"PID", "SERVER", "DEVICE"} <= set(header):
        raise unexpected(line, reply)
    return tuple(_client(line, header, row) for row in reply[1:] if row.strip())


def _client(line: str, header: Sequence[str], row: str) -> Client:
    """A row by the header's words; the command, which comes last, may contain blanks."""
    cells = dict(zip(header, row.split(None, len(header) - 1), strict=False))
    try:
        namespace = cells.get("NAMESPACE", "")
        return Client(
            pid=int(cells["PID"]),
            server=int(cells["SERVER"]),
            device=cells["DEVICE"],
            namespace=int(namespace) if namespace.isdecimal() else None,
            command=cells.get("COMMAND", "").strip(),
        )
    except (KeyError, ValueError) as error:
        raise unexpected(line, [row]) from error
