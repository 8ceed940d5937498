"""The commands of a control daemon, and what its replies mean. Pure.

The daemon parses badly and silently: `1.5G` is 1 MB to it, `0G` removes the limit, a limit for a
UUID wipes that of device 0, and all of that with exit status 0. So no string from outside gets
here: each command is a type whose values are checked, and its line has only forms that were seen to
be understood (drivers 535, 550, 555). Replies are judged by their words alone, since nearly every
mistake comes with exit status 0. Rows are read by the words of their header, because versions
differ in columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from nodeagent.errors import NodeagentError
from nodeagent.mps.lifecycle.model import ServerStatus
from nodeagent.plan.shares import ALL_THREADS, percentage_text

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


DEVICE = 0  # a daemon has one device, so its ordinal is this
LARGEST_MEMORY = 2**24 - 1  # MiB; 16 TiB, far above any device and far below any overflow
LARGEST_ID = 2**32 - 2  # of users; the number above means "no change" to the kernel

T_co = TypeVar("T_co", covariant=True)


class Command(Protocol[T_co]):
    """Something to be said to the daemon."""

    @property
    def line(self) -> str: ...

    def read(self, reply: Reply) -> T_co: ...


# --- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GetServerList:
    """The pids of the daemon's servers."""

    line: ClassVar[str] = "get_server_list"

    def read(self, reply: Reply) -> tuple[int, ...]:
        return pids(self.line, reply, least=1)


@dataclass(frozen=True, slots=True)
class GetServerStatus:
    """What a server is at; None: it is busy and says nothing. Unknown to drivers before 550."""

    server: int

    def __post_init__(self) -> None:
        _check_pid("server", self.server)

    @property
    def line(self) -> str:
        return f"get_server_status {self.server}"

    def read(self, reply: Reply) -> ServerStatus | None:
        check_refusal(self.line, reply)
        if not reply:
            return None
        if reply[0].strip() in set(ServerStatus) and len(reply) == 1:
            return ServerStatus(reply[0].strip())
        raise unexpected(self.line, reply)


@dataclass(frozen=True, slots=True)
class GetClientList:
    """The pids of a server's clients; 0 for one in a pid namespace that the daemon cannot see."""

    server: int

    def __post_init__(self) -> None:
        _check_pid("server", self.server)

    @property
    def line(self) -> str:
        return f"get_client_list {self.server}"

    def read(self, reply: Reply) -> tuple[int, ...]:
        return pids(self.line, reply, least=0)


@dataclass(frozen=True, slots=True)
class ListClients:
    """All clients with their servers."""

    line: ClassVar[str] = "ps"

    def read(self, reply: Reply) -> tuple[Client, ...]:
        return clients(self.line, reply)


@dataclass(frozen=True, slots=True)
class SetDefaultThreads:
    """The percentage of threads that later servers give; what is read is what is in force."""

    percentage: float

    def __post_init__(self) -> None:
        _check_percentage(self.percentage)

    @property
    def line(self) -> str:
        return f"set_default_active_thread_percentage {percentage_text(self.percentage)}"

    def read(self, reply: Reply) -> float:
        return percentage_of(self.line, reply)


@dataclass(frozen=True, slots=True)
class GetDefaultThreads:
    """The percentage of threads that later servers give."""

    line: ClassVar[str] = "get_default_active_thread_percentage"

    def read(self, reply: Reply) -> float:
        return percentage_of(self.line, reply)


@dataclass(frozen=True, slots=True)
class SetThreads:
    """The percentage of threads that later clients of a server get; None: it is busy."""

    server: int
    percentage: float

    def __post_init__(self) -> None:
        _check_pid("server", self.server)
        _check_percentage(self.percentage)

    @property
    def line(self) -> str:
        text = percentage_text(self.percentage)
        return f"set_active_thread_percentage {self.server} {text}"

    def read(self, reply: Reply) -> float | None:
        return percentage_of(self.line, reply) if reply else None


@dataclass(frozen=True, slots=True)
class GetThreads:
    """The percentage of threads that later clients of a server get; None: it is busy."""

    server: int

    def __post_init__(self) -> None:
        _check_pid("server", self.server)

    @property
    def line(self) -> str:
        return f"get_active_thread_percentage {self.server}"

    def read(self, reply: Reply) -> float | None:
        return percentage_of(self.line, reply) if reply else None


@dataclass(frozen=True, slots=True)
class SetDefaultMemoryLimit:
    """The MiB that each client of later servers may have. Tells nothing, right or wrong."""

    mebibytes: int

    def __post_init__(self) -> None:
        _check_memory(self.mebibytes)

    @property
    def line(self) -> str:
        return f"set_default_device_pinned_mem_limit {DEVICE} {self.mebibytes}M"

    def read(self, reply: Reply) -> None:
        check_silent(self.line, reply)


@dataclass(frozen=True, slots=True)
class GetDefaultMemoryLimit:
    """What each client of later servers may have; None: no limit."""

    line: ClassVar[str] = f"get_default_device_pinned_mem_limit {DEVICE}"

    def read(self, reply: Reply) -> MemoryLimit | None:
        return memory_limit(self.line, reply)


@dataclass(frozen=True, slots=True)
class SetMemoryLimit:
    """The MiB that each later client of a server may have."""

    server: int
    mebibytes: int

    def __post_init__(self) -> None:
        _check_pid("server", self.server)
        _check_memory(self.mebibytes)

    @property
    def line(self) -> str:
        return f"set_device_pinned_mem_limit {self.server} {DEVICE} {self.mebibytes}M"

    def read(self, reply: Reply) -> None:
        check_silent(self.line, reply)


@dataclass(frozen=True, slots=True)
class GetMemoryLimit:
    """What each later client of a server may have; None: no limit, or it is busy."""

    server: int

    def __post_init__(self) -> None:
        _check_pid("server", self.server)

    @property
    def line(self) -> str:
        return f"get_device_pinned_mem_limit {self.server} {DEVICE}"

    def read(self, reply: Reply) -> MemoryLimit | None:
        return memory_limit(self.line, reply)


@dataclass(frozen=True, slots=True)
class StartServer:
    """Start a server for a user; tells nothing, even where another user's server is in the way."""

    uid: int

    def __post_init__(self) -> None:
        _check_number("user", self.uid, 0, LARGEST_ID)

    @property
    def line(self) -> str:
        return f"start_server -uid {self.uid}"

    def read(self, reply: Reply) -> None:
        check_silent(self.line, reply)


@dataclass(frozen=True, slots=True)
class ShutDownServer:
    """End a server: when its clients are gone, or at once."""

    server: int
    force: bool = False

    def __post_init__(self) -> None:
        _check_pid("server", self.server)

    @property
    def line(self) -> str:
        return f"shutdown_server {self.server}" + (" -f" if self.force else "")

    def read(self, reply: Reply) -> None:
        check_silent(self.line, reply)


@dataclass(frozen=True, slots=True)
class TerminateClient:
    """End a client's work on the device, which makes it safe to kill it; reads a CUDA code, 0 for
    done. Takes as long as the client's work does, so it is asked with a deadline of its own.
    """

    server: int
    client: int

    def __post_init__(self) -> None:
        _check_pid("server", self.server)
        _check_pid("client", self.client)

    @property
    def line(self) -> str:
        return f"terminate_client {self.server} {self.client}"

    def read(self, reply: Reply) -> int:
        check_refusal(self.line, reply)
        if len(reply) == 1 and re.fullmatch(r"[0-9]{1,9}", reply[0].strip()):
            return int(reply[0])
        raise unexpected(self.line, reply)


@dataclass(frozen=True, slots=True)
class QuitDaemon:
    """End the daemon: within so many whole seconds, or (None) when its clients are gone.

    Its reply, if any, tells nothing: only the end of the process does.
    """

    seconds: int | None

    def __post_init__(self) -> None:
        if self.seconds is not None:
            _check_number("seconds", self.seconds, 0, 86_400)

    @property
    def line(self) -> str:
        return "quit" if self.seconds is None else f"quit -t {self.seconds}"

    def read(self, reply: Reply) -> None:
        check_refusal(self.line, reply)


# --- checks before anything is said ---------------------------------------------------------------


def _check_number(what: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} {value!r}: expected a whole number from {least} to {most}")


def _check_pid(what: str, pid: int) -> None:
    _check_number(what, pid, 1, LARGEST_PID)


def _check_memory(mebibytes: int) -> None:
    _check_number("MiB", mebibytes, 1, LARGEST_MEMORY)


def _check_percentage(percentage: float) -> None:
    """At most two decimals, so that what is sent is what was meant."""
    if type(percentage) not in (int, float) or not 0 < percentage <= ALL_THREADS:
        raise ValueError(f"percentage {percentage!r}: expected more than 0 and at most 100")
    if float(percentage_text(percentage)) != percentage:
        raise ValueError(f"percentage {percentage!r}: expected at most two decimals")
