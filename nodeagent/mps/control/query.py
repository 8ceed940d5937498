"""One question about everything: servers, clients and the limits in force; and how to set these.

A server that is busy answers per-server questions with nothing, and an empty list of clients then
means nothing at all. So the percentage of its threads, which any server that is not busy gives, is
asked before and after: only between two such answers are its clients known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from nodeagent.mps.control import commands
from nodeagent.mps.control.client import ControlClient
from nodeagent.mps.lifecycle.model import ServerStatus
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.shares import percentage_text
from nodeagent.structs import Struct

Wrong = commands.UnexpectedReply


class SeenServer(Struct, frozen=True):
    """A server as its daemon reports it. `status` None: not given (535 has no such command, a busy
    server gives none). `clients` None: not known, as it is busy; then its limits are not either.
    """

    pid: int
    status: ServerStatus | None
    clients: tuple[int, ...] | None
    memory_limit: commands.MemoryLimit | Wrong | None
    threads: float | Wrong | None


class Seen(Struct, frozen=True):
    """What a daemon answered. `reports_status`: it has a command for the status of servers."""

    servers: tuple[SeenServer, ...]
    memory_limit: commands.MemoryLimit | Wrong | None
    threads: float | Wrong | None
    reports_status: bool = True

    @property
    def clients(self) -> tuple[tuple[int, int], ...]:
        """(server pid, client pid) of all that are known."""
        return tuple((s.pid, client) for s in self.servers for client in s.clients or ())

    @property
    def knows_clients(self) -> bool:
        """Whether there are no others."""
        return all(server.clients is not None for server in self.servers)


async def ask_everything(
    control: ControlClient, servers: Collection[int] = (), *, status: bool = True
) -> Seen:
    """One conversation, and another if there are other servers than the caller knew.

    `status`: whether to ask for the status of servers. Raises ControlError, and UnexpectedReply if
    not even the list of servers could be read.
    """
    defaults = commands.get_server_list(), commands.get_memory_limit(), commands.get_threads()
    listed, memory, threads, *answers = await control.ask_each(
        *defaults, *_questions(servers, status=status)
    )
    if isinstance(listed, commands.UnexpectedReply):
        raise listed
    new = [server for server in listed if server not in servers]
    if new:
        answers += await control.ask_each(*_questions(new, status=status))
    width = 5 if status else 4
    parts = [answers[start : start + width] for start in range(0, len(answers), width)]
    found = dict(zip((*servers, *new), parts, strict=True))
    seen = [_server(pid, found[pid]) for pid in listed]
    return Seen(
        tuple(server for server in seen if server is not None),
        memory,
        threads,
        reports_status=status and not any(isinstance(a, commands.UnknownCommand) for a in answers),
    )


def _questions(servers: Iterable[int], *, status: bool) -> Iterator[commands.Command[Any]]:
    for server in servers:
        yield commands.get_threads(server)
        yield commands.get_client_list(server)
        yield commands.get_memory_limit(server)
        yield commands.get_threads(server)
        if status:
            yield commands.get_server_status(server)


def _server(pid: int, answers: Sequence[Any]) -> SeenServer | None:
    """None when it went between two answers."""
    if any(isinstance(answer, commands.UnknownServer) for answer in answers):
        return None
    before, clients, memory, after, *status = answers
    is_known = isinstance(before, float) and isinstance(after, float)
    return SeenServer(
        pid,
        next((s for s in status if isinstance(s, ServerStatus)), None),
        clients if is_known and isinstance(clients, tuple) else None,
        memory if is_known else None,
        after if is_known else None,
    )


# --- limits ---------------------------------------------------------------------------------------


async def set_limits(control: ControlClient, spec: DaemonSpec) -> None:
    """The daemon's defaults, then those of the servers it has. Whether they were taken is only
    known by reading them back; what the daemon says here is no proof. Raises ControlError.
    """
    *_, servers = await control.ask_each(*_limits(spec, None), commands.get_server_list())
    listed = () if isinstance(servers, commands.UnexpectedReply) else servers
    if listed:
        await control.ask_each(*(one for server in listed for one in _limits(spec, server)))


def _limits(spec: DaemonSpec, server: int | None) -> Iterator[commands.Command[Any]]:
    yield commands.set_threads(spec.thread_percentage, server)
    if spec.memory_limit is not None:
        yield commands.set_memory_limit(spec.memory_limit, server)


def differences(seen: Seen, spec: DaemonSpec) -> tuple[str, ...]:
    """What is in force and not as `spec` wants it, in words. Of a server that is busy nothing is
    known; it is asked again when it is not.
    """
    found = [*_differences("", seen, spec)]
    for server in seen.servers:
        if server.clients is not None:
            found += _differences(f"server {server.pid}: ", server, spec)
    return tuple(found)


def _differences(whose: str, seen: Seen | SeenServer, spec: DaemonSpec) -> Iterator[str]:
    memory, threads = seen.memory_limit, seen.threads
    if isinstance(memory, commands.UnexpectedReply):
        yield f"{whose}memory limit not known ({memory.message})"
    elif spec.memory_limit is None:
        if memory is not None:
            yield f"{whose}memory limit is {memory}, wanted none"
    elif memory is None or not memory.agrees_with(spec.memory_limit):
        yield f"{whose}memory limit is {memory or 'not set'}, wanted {spec.memory_limit}M"
    if isinstance(threads, commands.UnexpectedReply):
        yield f"{whose}thread percentage not known ({threads.message})"
    elif threads is None or not commands.threads_agree(threads, spec.thread_percentage):
        wanted = percentage_text(spec.thread_percentage)
        yield f"{whose}thread percentage is {threads}, wanted {wanted}"
