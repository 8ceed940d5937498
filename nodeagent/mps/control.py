"""Asks one control daemon, through its front-end program, one connection at a time.

The daemon serves a single front-end and turns further ones away, sometimes with exit status 0 and
nothing said. So there is one `ControlClient` for each daemon, whose callers wait for each other.
What one caller asks goes out as one batch, in order, each reply divided from the next by the
daemon's complaint about a nonsense word in between. Exit status proves nothing and is not asked.

A server that is busy answers per-server questions with nothing, and an empty list of clients then
means nothing at all. So the percentage of its threads, which any server that is not busy gives, is
asked before and after: only between two such answers are its clients known.
"""

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Any, TypeVar

from nodeagent.errors import NodeagentError
from nodeagent.mps import commands
from nodeagent.mps.commands import ControlCommand, UnexpectedReply
from nodeagent.mps.lifecycle.model import ServerStatus
from nodeagent.mps.processes import may_serve
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import DaemonSpec
from nodeagent.pacing import Backoff
from nodeagent.plan.shares import percentage_text
from nodeagent.plan.users import IDLE, Usage, User
from nodeagent.programs import TooMuchOutput, run_program
from nodeagent.structs import Struct


class ControlError(NodeagentError):
    """The daemon could not be asked."""


class DaemonDead(ControlError):
    """There is no daemon at the pipe directory; perhaps its files are still there."""


class DaemonBusy(ControlError):
    """Another front-end had the daemon's only connection until the deadline."""


class DaemonSilent(ControlError):
    """The daemon is there and took the connection, but said nothing within the deadline."""


class FrontEndFailed(ControlError):
    """The front-end program cannot be run, or is not let in, or broke off."""


T = TypeVar("T")

FIRST_PAUSE = 0.005  # seconds before a busy daemon is asked again; a conversation takes 3 to 20 ms
MAX_PAUSE = 0.25  # seconds

_MAX_OUTPUT = 1 << 20  # bytes of each stream; the longest replies to a batch have some thousand
_BUSY = "Cannot send command to MPS control daemon process"
_DEAD = "Cannot find MPS control daemon process"
_REFUSED = "Cannot authenticate or connect"


@dataclass(eq=False)
class ControlClient:
    """The only way to the daemon at one pipe directory.

    `deadline` is for a batch, in seconds; `jitter` gives numbers from 0 up to 1. Nothing of this
    process' own environment reaches the front-end. When a caller leaves early, the front-end is
    killed.
    """

    programs: Programs
    _: KW_ONLY
    pipe_directory: str  # may change while the daemon runs
    log_directory: str
    deadline: float
    jitter: Callable[[], float] = SystemRandom().random
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def ask(self, command: ControlCommand[T], *, deadline: float | None = None) -> T:
        """Send one command and read the reply.

        Raises DaemonDead, DaemonBusy, DaemonSilent, FrontEndFailed, or, from what the daemon
        says, UnexpectedReply and its kinds. `deadline` in seconds, for what may take long.
        """
        [reply] = await self.converse((command,), deadline=deadline)
        return command.read(reply)

    async def ask_each(self, *batch: ControlCommand[Any]) -> tuple[Any, ...]:
        """Send some commands in one go, with no other caller's between them. A reply that cannot be
        read comes as its UnexpectedReply.
        """
        replies = await self.converse(batch)
        return tuple(_read_or_error(c, reply) for c, reply in zip(batch, replies, strict=True))

    async def converse(
        self, batch: Sequence[ControlCommand[Any]], *, deadline: float | None = None
    ) -> list[list[str]]:
        """The lines of each reply. Connects until it is our turn; all within the deadline."""
        deadline = self.deadline if deadline is None else deadline
        script = _script(batch)
        async with self._turn:
            backoff = Backoff(FIRST_PAUSE, MAX_PAUSE, spread=0.5, jitter=self.jitter)
            try:
                async with asyncio.timeout(deadline):
                    while True:
                        replies = await self._attempt(script, batch)
                        if replies is not None:
                            return replies
                        await asyncio.sleep(backoff.next())
            except TimeoutError:
                raise self._late(deadline, turned_away=backoff.failures > 0) from None

    def _late(self, deadline: float, *, turned_away: bool) -> ControlError:
        if turned_away:
            device = Path(self.pipe_directory).parent.name
            # Without the directory, which is another one while it drains, so that it is said once.
            return DaemonBusy.of("frontEndHeld", seconds=f"{deadline:g}", device=device)
        folder = self.pipe_directory
        return DaemonSilent(f"the MPS daemon at {folder} did not answer within {deadline:g} s")

    async def _attempt(
        self, script: bytes, batch: Sequence[ControlCommand[Any]]
    ) -> list[list[str]] | None:
        """The lines of each reply; None when it was not our turn."""
        directory = self.pipe_directory
        output, complaint = await self._run(script)
        if _DEAD in complaint:
            if directory != self.pipe_directory:  # its sockets were moved just then
                return await self._attempt(script, batch)
            raise DaemonDead(f"no MPS daemon answers at {directory}")
        if _REFUSED in complaint:
            raise FrontEndFailed.of("notAdmitted", folder=directory, why=complaint)
        if _BUSY in complaint:
            return None
        if len(batch) == 1 and batch[0].ends:
            return [output.splitlines()]  # it has no time to complain about nonsense words
        replies = _parted(output, len(batch))
        if replies is None and output:
            said = (complaint or output)[:200]
            raise FrontEndFailed(f"the connection to the MPS daemon at {directory} broke: {said!r}")
        # Nothing at all, whatever the exit status, not even about nonsense: turned away.
        return replies

    async def _run(self, script: bytes) -> tuple[str, str]:
        program, own = self.programs.control, not self.programs.stand_ins
        environment = self.programs.environment(self.pipe_directory, self.log_directory)
        try:
            said = await run_program(
                program, environment, stdin=script, stderr=PIPE, most=_MAX_OUTPUT, own=own
            )
        except TooMuchOutput:  # perhaps another program, which the daemon's user put in its place
            what = f"answered more than {_MAX_OUTPUT} bytes"
            raise FrontEndFailed(f"the MPS daemon at {self.pipe_directory} {what}") from None
        except OSError as error:
            raise FrontEndFailed.of("noFrontEnd", program=program[0], why=error.strerror) from error
        return said.stdout, said.stderr.strip()


def _script(batch: Sequence[ControlCommand[Any]]) -> bytes:
    """The lines, each followed by a nonsense word whose complaint ends the reply."""
    lines: list[str] = []
    for number, command in enumerate(batch, 1):
        lines.append(command.line)
        if not command.ends:
            lines.append(f"__{number}")
    text = "".join(f"{line}\n" for line in lines)
    if text.count("\n") != len(lines):  # no command's line has one; the daemon would take it as two
        raise ValueError(f"a line break in {lines!r}")
    return text.encode("ascii")


def _parted(output: str, count: int) -> list[list[str]] | None:
    """The lines between the complaints; None unless there are all of these, in order."""
    replies: list[list[str]] = [[]]
    for line in output.splitlines():
        if f'"__{len(replies)}"' in line:
            replies.append([])
        elif line.strip():
            replies[-1].append(line)
    return replies[:-1] if len(replies) == count + 1 and not replies[-1] else None


def _read_or_error(command: ControlCommand[Any], reply: Sequence[str]) -> Any:
    try:
        return command.read(reply)
    except UnexpectedReply as error:
        return error


PrintedLimit = commands.MemoryLimit | UnexpectedReply | None


class SeenServer(Struct, frozen=True):
    """A server as its daemon reports it. `status` None: not given (535 has no such command, a busy
    server gives none). `clients` None: not known, as it is busy; then its limits are not either.
    `memory_limits` by ordinal.
    """

    pid: int
    status: ServerStatus | None
    clients: tuple[int, ...] | None
    memory_limits: tuple[PrintedLimit, ...]
    threads: float | UnexpectedReply | None


class Seen(Struct, frozen=True):
    """What a daemon answered. `reports_status`: it has a command for the status of servers."""

    servers: tuple[SeenServer, ...]
    memory_limits: tuple[PrintedLimit, ...]
    threads: float | UnexpectedReply | None
    reports_status: bool = True

    @property
    def clients(self) -> tuple[tuple[int, int], ...]:
        return tuple((s.pid, client) for s in self.servers for client in s.clients or ())

    @property
    def knows_clients(self) -> bool:
        """Whether there are no others."""
        return all(server.clients is not None for server in self.servers)

    @property
    def usage(self) -> Usage:
        """The users of the device through this daemon."""
        if not self.knows_clients:
            return Usage(known=False, reason="its MPS server is busy and does not list its clients")
        if not self.clients:
            return IDLE
        return Usage(tuple(User(pid, source="mps") for _, pid in self.clients))

    def servers_of(self, uid: int) -> tuple[int, ...]:
        """The pids of its servers, of those that it names, where it is this user's daemon."""
        return tuple(server.pid for server in self.servers if may_serve(server.pid, uid))


async def ask_everything(
    control: ControlClient, servers: Collection[int] = (), *, devices: int = 1, status: bool = True
) -> Seen:
    """One conversation, and another if there are other servers than the caller knew.

    `devices`: of how many the limits are asked. `status`: whether to ask for the status of servers.
    Raises ControlError, and UnexpectedReply if not even the list of servers could be read.
    """

    def about(server: int) -> list[ControlCommand[Any]]:
        questions: list[ControlCommand[Any]] = [
            commands.get_threads(server),
            commands.get_client_list(server),
            *(commands.get_memory_limit(server, ordinal=one) for one in range(devices)),
            commands.get_threads(server),
        ]
        return [*questions, commands.get_server_status(server)] if status else questions

    listed, threads, *answers = await control.ask_each(
        commands.get_server_list(),
        commands.get_threads(),
        *(commands.get_memory_limit(ordinal=one) for one in range(devices)),
        *(question for server in servers for question in about(server)),
    )
    memory, answers = answers[:devices], answers[devices:]
    if isinstance(listed, UnexpectedReply):
        raise listed
    new = [server for server in listed if server not in servers]
    if new:
        answers += await control.ask_each(*(one for server in new for one in about(server)))
    width = 3 + devices + status
    parts = [answers[start : start + width] for start in range(0, len(answers), width)]
    found = dict(zip((*servers, *new), parts, strict=True))
    seen = [_server(pid, found[pid], devices) for pid in listed]
    return Seen(
        tuple(server for server in seen if server is not None),
        tuple(memory),
        threads,
        reports_status=status and not any(isinstance(a, commands.UnknownCommand) for a in answers),
    )


def _server(pid: int, answers: Sequence[Any], devices: int) -> SeenServer | None:
    """A server, by all that the daemon answers about it; None if it went meanwhile."""
    if any(isinstance(answer, commands.UnknownServer) for answer in answers):
        return None
    before, clients, *memory = answers[: 2 + devices]
    after, *status = answers[2 + devices :]
    is_known = isinstance(before, float) and isinstance(after, float)
    return SeenServer(
        pid,
        next((s for s in status if isinstance(s, ServerStatus)), None),
        clients if is_known and isinstance(clients, tuple) else None,
        tuple(memory) if is_known else (None,) * devices,
        after if is_known else None,
    )


async def set_limits(control: ControlClient, spec: DaemonSpec) -> None:
    """The daemon's defaults, then those of the servers it has. Whether they were taken is only
    known by reading them back; what the daemon says here is no proof. Raises ControlError.
    """
    *_, servers = await control.ask_each(*_limits(spec, None), commands.get_server_list())
    listed = () if isinstance(servers, UnexpectedReply) else servers
    if listed:
        await control.ask_each(*(one for server in listed for one in _limits(spec, server)))


def _limits(spec: DaemonSpec, server: int | None) -> Iterator[ControlCommand[Any]]:
    yield commands.set_threads(spec.limits.threads, server)
    for ordinal, limit in enumerate(spec.limits.memory):
        if limit is not None:
            yield commands.set_memory_limit(limit, server, ordinal=ordinal)


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
    threads, wanted = seen.threads, spec.limits
    for ordinal, (memory, limit) in enumerate(zip(seen.memory_limits, wanted.memory, strict=True)):
        what = f"{whose}memory limit" + (f" of device {ordinal}" if ordinal else "")
        if isinstance(memory, UnexpectedReply):
            yield f"{what} not known ({memory.message})"
        elif limit is None:
            if memory is not None:
                yield f"{what} is {memory}, wanted none"
        elif memory is None or not memory.agrees_with(limit):
            yield f"{what} is {memory or 'not set'}, wanted {limit}M"
    if isinstance(threads, UnexpectedReply):
        yield f"{whose}thread percentage not known ({threads.message})"
    elif threads is None or not commands.threads_agree(threads, wanted.threads):
        percentage = percentage_text(wanted.threads)
        yield f"{whose}thread percentage is {threads}, wanted {percentage}"
