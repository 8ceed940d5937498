"""The commands of a control daemon, and what its replies mean. Pure.

The daemon parses badly and silently: `1.5G` is 1 MB to it, `0G` removes the limit, a limit for a
UUID wipes that of device 0, and all of that with exit status 0. So no string from outside gets
here: each command is a type whose values are checked, and its line has only forms that were seen to
be understood (drivers 535, 550, 555). Replies are judged by their words alone, since nearly every
mistake comes with exit status 0. Rows are read by the words of their header, because versions
differ in columns.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from nodeagent.errors import NodeagentError
from nodeagent.mps.lifecycle.model import ServerStatus
from nodeagent.mps.shares import check_memory, check_number, check_percentage
from nodeagent.plan.shares import MAX_DEVICES, percentage_text
from nodeagent.structs import Struct

MAX_PID = 2**22  # the kernel's own limit
_THREADS, _MEMORY = "active_thread_percentage", "device_pinned_mem_limit"
_KIBIBYTES = {"K": 1, "M": 1024, "G": 1024**2}
MAX_SERVERS = 4  # in one reply; a daemon has one, and perhaps the one before that still exits
_MAX_PIDS = 1024  # pids in any other; a device has some tens of clients at most

T_co = TypeVar("T_co", covariant=True)
Reply = Sequence[str]  # the lines of a reply, without line ends


class UnexpectedReply(NodeagentError):
    """The daemon said something that is no answer to the command."""


class UnknownCommand(UnexpectedReply):
    """This version of the daemon does not have the command."""


class UnknownServer(UnexpectedReply):
    """The daemon has no such server (any more)."""


# --- values ---------------------------------------------------------------------------------------


class MemoryLimit(Struct, frozen=True):
    """A limit as the daemon prints it: from 1G up cut down to whole G."""

    amount: int
    unit: str  # K, M, G

    @property
    def mebibytes(self) -> int:
        return self.amount * _KIBIBYTES[self.unit] // 1024

    def agrees_with(self, mebibytes: int) -> bool:
        """Whether a limit of so many MiB would be printed like this."""
        return 0 < self.amount == mebibytes * 1024 // _KIBIBYTES[self.unit]

    def __str__(self) -> str:
        return f"{self.amount}{self.unit}"


def threads_agree(printed: float, wanted: float) -> bool:
    """Whether the daemon, which prints one decimal, would print `wanted` like this."""
    return abs(printed - wanted) < 0.0501


# --- reading --------------------------------------------------------------------------------------
# Each raises ValueError for what is no answer.


def _nothing(reply: Reply) -> None:
    if reply:
        raise ValueError


def _anything(_: Reply) -> None:
    """What the reply says means nothing."""


def _one(pattern: str, reply: Reply) -> re.Match[str]:
    match = re.fullmatch(pattern, reply[0].strip()) if len(reply) == 1 else None
    if match is None:
        raise ValueError
    return match


def _pids(reply: Reply, least: int = 1, most: int = _MAX_PIDS) -> tuple[int, ...]:
    """One a line. What can be no pid gets no further, because questions are made of them, and
    neither do more than there can be.
    """
    if len(reply) > most or not all(re.fullmatch(r"\s*[0-9]{1,10}\s*", text) for text in reply):
        raise ValueError
    found = tuple(map(int, reply))
    if not all(least <= pid <= MAX_PID for pid in found):
        raise ValueError
    return found


def _percentage(reply: Reply, *, server: int | None) -> float | None:
    if not reply and server is not None:
        return None  # only a server can be busy
    return float(_one(r"[0-9]{1,3}(\.[0-9]{1,6})?", reply)[0])


def _memory_limit(reply: Reply) -> MemoryLimit | None:
    if not reply:
        return None
    match = _one(r"([0-9]{1,12})([KMG])B?", reply)
    return MemoryLimit(int(match[1]), match[2])


def _server_status(reply: Reply) -> ServerStatus | None:
    return ServerStatus(_one(r"[A-Z]+", reply)[0]) if reply else None


def _cuda_code(reply: Reply) -> int:
    return int(_one(r"[0-9]{1,9}", reply)[0])


# --- commands -------------------------------------------------------------------------------------


class ControlCommand(Struct, Generic[T_co], frozen=True):
    """One line for the daemon, and how its reply is read; `ends` where the daemon ends by it."""

    line: str
    parse: Callable[[Reply], T_co]
    ends: bool = False

    def read(self, reply: Reply) -> T_co:
        """The reply's value; raises UnexpectedReply, also for what the daemon refuses in words."""
        said = " / ".join(text.strip() for text in reply)[:200]
        message = f"the MPS daemon answered {said or 'nothing'!r} to {self.line!r}"
        for words, refusal in _REFUSALS.items():
            if re.match(words, said):
                raise refusal(message)
        try:
            return self.parse(reply)
        except ValueError:
            raise UnexpectedReply(message) from None


_REFUSALS = {"Unknown command": UnknownCommand, "Server [0-9]+ not found": UnknownServer}


def get_server_list() -> ControlCommand[tuple[int, ...]]:
    """The pids of the daemon's servers."""
    return ControlCommand("get_server_list", partial(_pids, most=MAX_SERVERS))


def get_server_status(server: int) -> ControlCommand[ServerStatus | None]:
    """Ask for a server's status; None if it is busy. Drivers before 550 do not know this."""
    return ControlCommand(f"get_server_status {_pid(server)}", _server_status)


def get_client_list(server: int) -> ControlCommand[tuple[int, ...]]:
    """The pids of a server's clients; 0 for one in a pid namespace that the daemon cannot see."""
    return ControlCommand(f"get_client_list {_pid(server)}", partial(_pids, least=0))


def set_threads(percentage: float, server: int | None = None) -> ControlCommand[float | None]:
    """The percentage of threads for later clients of a server (None: for later servers). The reply
    is what is in force, None from a server that is busy.
    """
    check_percentage(percentage)
    line = f"{_limit('set', _THREADS, server)} {percentage_text(percentage)}"
    return ControlCommand(line, partial(_percentage, server=server))


def get_threads(server: int | None = None) -> ControlCommand[float | None]:
    """The percentage of threads as for `set_threads`; None: the server is busy."""
    return ControlCommand(_limit("get", _THREADS, server), partial(_percentage, server=server))


def set_memory_limit(
    mebibytes: int, server: int | None = None, *, ordinal: int = 0
) -> ControlCommand[None]:
    """The MiB on one of the daemon's devices for each later client of a server (None: of later
    servers); no reply.
    """
    check_memory(mebibytes)
    line = f"{_limit('set', _MEMORY, server)} {_ordinal(ordinal)} {mebibytes}M"
    return ControlCommand(line, _nothing)


def get_memory_limit(
    server: int | None = None, *, ordinal: int = 0
) -> ControlCommand[MemoryLimit | None]:
    """The limit as for `set_memory_limit`; None: no limit, or the server is busy."""
    return ControlCommand(f"{_limit('get', _MEMORY, server)} {_ordinal(ordinal)}", _memory_limit)


def _limit(verb: str, what: str, server: int | None) -> str:
    return f"{verb}_default_{what}" if server is None else f"{verb}_{what} {_pid(server)}"


def terminate_client(server: int, client: int) -> ControlCommand[int]:
    """End a client's work on the device, which makes it safe to kill it; reads a CUDA code, 0 for
    done. Takes as long as the client's work does, so it is sent with a deadline of its own.
    """
    return ControlCommand(f"terminate_client {_pid(server)} {_pid(client)}", _cuda_code)


def quit_daemon(seconds: int | None) -> ControlCommand[None]:
    """End the daemon: within so many whole seconds, or (None) when its clients are gone.

    Its reply, if any, means nothing: only the end of the process does.
    """
    if seconds is None:
        return ControlCommand("quit", _anything, ends=True)
    return ControlCommand(f"quit -t {seconds}", _anything, ends=True)


def _ordinal(ordinal: int) -> int:
    check_number("ordinal", ordinal, 0, MAX_DEVICES - 1)
    return ordinal


def _pid(pid: int) -> int:
    check_number("pid", pid, 1, MAX_PID)
    return pid
