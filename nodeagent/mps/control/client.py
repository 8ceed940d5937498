"""Asks one control daemon, through its front-end program, one connection at a time.

The daemon serves a single front-end and turns further ones away, sometimes with exit status 0 and
nothing said. So there is one `ControlClient` for each daemon, whose callers wait for each other.
What one caller asks goes out as one batch, in order, each reply divided from the next by the
daemon's complaint about a nonsense word in between. Exit status proves nothing and is not asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from random import SystemRandom
from typing import Any, TypeVar

from nodeagent.backoff import Backoff
from nodeagent.errors import NodeagentError
from nodeagent.mps.control.commands import Command, UnexpectedReply, quit_daemon
from nodeagent.mps.programs import MOST_OUTPUT, Programs, TooMuchOutput, run_program


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
LONGEST_PAUSE = 0.25  # seconds

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

    async def ask(self, command: Command[T], *, deadline: float | None = None) -> T:
        """Send one command and read the reply.

        Raises DaemonDead, DaemonBusy, DaemonSilent, FrontEndFailed, or, from what the daemon
        says, UnexpectedReply and its kinds. `deadline` in seconds, for what may take long.
        """
        [reply] = await self.converse((command,), deadline=deadline)
        return command.read(reply)

    async def ask_each(self, *commands: Command[Any]) -> tuple[Any, ...]:
        """Send some commands in one go, with no other caller's between them. A reply that cannot be
        read comes as its UnexpectedReply.
        """
        replies = await self.converse(commands)
        return tuple(_read_or_error(c, reply) for c, reply in zip(commands, replies, strict=True))

    async def quit(self, seconds: int | None, *, deadline: float) -> None:
        """Ask the daemon to end. Whether it does is known by its process alone; a daemon that is
        gone already is fine.
        """
        with suppress(DaemonDead):
            await self.converse((quit_daemon(seconds),), deadline=deadline)

    async def converse(
        self, commands: Sequence[Command[Any]], *, deadline: float | None = None
    ) -> list[list[str]]:
        """The lines of each reply. Connects until it is our turn; all within the deadline."""
        deadline = self.deadline if deadline is None else deadline
        script = _script(commands)
        async with self._turn:
            backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, spread=0.5, jitter=self.jitter)
            try:
                async with asyncio.timeout(deadline):
                    while True:
                        replies = await self._attempt(script, commands)
                        if replies is not None:
                            return replies
                        await asyncio.sleep(backoff.next())
            except TimeoutError:
                raise self._late(deadline, turned_away=backoff.failures > 0) from None

    def _late(self, deadline: float, *, turned_away: bool) -> ControlError:
        if turned_away:
            return DaemonBusy(
                f"another front-end held the MPS daemon at {self.pipe_directory} for "
                f"{deadline:g} s",
                remedy="end the nvidia-cuda-mps-control that is still open; "
                "`pgrep -a nvidia-cuda-mps` names it",
            )
        return DaemonSilent(
            f"the MPS daemon at {self.pipe_directory} did not answer within {deadline:g} s"
        )

    async def _attempt(
        self, script: bytes, commands: Sequence[Command[Any]]
    ) -> list[list[str]] | None:
        """The lines of each reply; None when it was not our turn."""
        directory = self.pipe_directory
        output, complaint = await self._run(script)
        if _DEAD in complaint:
            if directory != self.pipe_directory:  # its sockets were moved just then
                return await self._attempt(script, commands)
            raise DaemonDead(f"no MPS daemon answers at {directory}")
        if _REFUSED in complaint:
            raise FrontEndFailed(
                f"the MPS daemon at {directory} does not admit this user: {complaint}",
                remedy="run as root or as the daemon's user",
            )
        if _BUSY in complaint:
            return None
        if len(commands) == 1 and commands[0].ends:
            return [output.splitlines()]  # it has no time to complain about nonsense words
        replies = _parted(output, len(commands))
        if replies is None and output:
            raise FrontEndFailed(
                f"the connection to the MPS daemon at {directory} broke: "
                f"{(complaint or output)[:200]!r}"
            )
        # Nothing at all, whatever the exit status, not even about nonsense: turned away.
        return replies

    async def _run(self, script: bytes) -> tuple[str, str]:
        """What the front-end prints on both streams."""
        program = self.programs.control
        environment = self.programs.environment(self.pipe_directory, self.log_directory)
        try:
            said = await run_program(program, environment, stdin=script)
        except TooMuchOutput:
            raise FrontEndFailed(
                f"the MPS daemon at {self.pipe_directory} answered more than {MOST_OUTPUT} bytes"
            ) from None
        except OSError as error:
            raise FrontEndFailed(
                f"{program[0]} cannot be run: {error.strerror}",
                remedy="install it, or set mps.path to where it is",
            ) from error
        return said.stdout, said.stderr.strip()


def _script(commands: Sequence[Command[Any]]) -> bytes:
    """The lines, each followed by a nonsense word whose complaint ends the reply."""
    lines: list[str] = []
    for number, command in enumerate(commands, 1):
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


def _read_or_error(command: Command[Any], reply: Sequence[str]) -> Any:
    try:
        return command.read(reply)
    except UnexpectedReply as error:
        return error
