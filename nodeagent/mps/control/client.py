"""Asks one control daemon, through its front-end program, one connection at a time.

The daemon serves a single front-end and turns further ones away, sometimes with exit status 0 and
nothing said. So there is one `ControlClient` for each daemon, with one queue: what many callers
ask at the same time goes out as one batch, in order, each reply divided from the next by the
daemon's complaint about a nonsense word in between. Exit status proves nothing and is not asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, TypeVar

from nodeagent.errors import NodeagentError
from nodeagent.mps.control.commands import Command, UnexpectedReply, quit_daemon
from nodeagent.mps.programs import MOST_OUTPUT, Programs, TooMuchOutput, run_program

_random = SystemRandom().random


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


def script_of(commands: Sequence[Command[Any]]) -> bytes:
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


def parted(output: str, count: int) -> list[list[str]] | None:
    """The lines between the complaints; None unless there are all of these, in order."""
    replies: list[list[str]] = [[]]
    for line in output.splitlines():
        if f'"__{len(replies)}"' in line:
            replies.append([])
        elif line.strip():
            replies[-1].append(line)
    return replies[:-1] if len(replies) == count + 1 and not replies[-1] else None


def read_or_error(command: Command[Any], reply: Sequence[str]) -> Any:
    """What it means; what is no answer as the error that it is."""
    try:
        return command.read(reply)
    except UnexpectedReply as error:
        return error


T = TypeVar("T")

MOST_COMMANDS = 64  # in one batch, so that no caller waits for all the others
FIRST_PAUSE = 0.005  # seconds before a busy daemon is asked again; a conversation takes 3 to 20 ms
LONGEST_PAUSE = 0.25  # seconds

_BUSY = "Cannot send command to MPS control daemon process"
_DEAD = "Cannot find MPS control daemon process"
_REFUSED = "Cannot authenticate or connect"


@dataclass(slots=True)
class _Request:
    """Some commands of one caller; `replies` gets the lines of each."""

    commands: tuple[Command[Any], ...]
    deadline: float
    alone: bool
    replies: asyncio.Future[list[list[str]]] = field(repr=False)


class ControlClient:
    """The only way to the daemon at one pipe directory.

    `deadline` is for a batch, in seconds; `jitter` gives numbers from 0 up to 1. Nothing of this
    process' own environment reaches the front-end.
    """

    def __init__(
        self,
        programs: Programs,
        *,
        pipe_directory: str,
        log_directory: str,
        deadline: float,
        jitter: Callable[[], float] = _random,
    ) -> None:
        self._program = programs.control
        self._environment: Mapping[str, str] = {
            "CUDA_MPS_PIPE_DIRECTORY": pipe_directory,
            "CUDA_MPS_LOG_DIRECTORY": log_directory,
            "LC_ALL": "C",
            "PATH": programs.path,
        }
        self._pipe_directory = pipe_directory
        self._deadline = deadline
        self._jitter = jitter
        self._waiting: deque[_Request] = deque()
        self._batch: tuple[_Request, ...] = ()
        self._talk: asyncio.Task[list[list[str]]] | None = None
        self._worker: asyncio.Task[None] | None = None

    async def ask(self, command: Command[T], *, deadline: float | None = None) -> T:
        """Say one thing and read the reply.

        Raises DaemonDead, DaemonBusy, DaemonSilent, FrontEndFailed, or, from what the daemon
        says, UnexpectedReply and its kinds. With a `deadline` of its own (in seconds) it is said
        in a conversation of its own, for what may take long.
        """
        [reply] = await self._say((command,), deadline)
        return command.read(reply)

    async def ask_each(
        self, *commands: Command[Any], deadline: float | None = None
    ) -> tuple[Any, ...]:
        """Send some commands in one go, with no other caller's between them. A reply that cannot be
        read comes as its UnexpectedReply.
        """
        replies = await self._say(commands, deadline)
        return tuple(read_or_error(c, reply) for c, reply in zip(commands, replies, strict=True))

    def turn_to(self, pipe_directory: str) -> None:
        """The same daemon is to be found elsewhere from now on; who is talking goes on."""
        self._pipe_directory = pipe_directory
        self._environment = {**self._environment, "CUDA_MPS_PIPE_DIRECTORY": pipe_directory}

    async def quit(self, seconds: int | None, *, deadline: float) -> None:
        """Ask the daemon to end. Whether it does is known by its process alone; a daemon that is
        gone already is fine.
        """
        with contextlib.suppress(DaemonDead):
            await self._say((quit_daemon(seconds),), deadline)

    async def aclose(self) -> None:
        """End the exchange; waiting callers are cancelled."""
        for request in (*self._batch, *self._waiting):
            request.replies.cancel()
        self._waiting.clear()
        if self._talk is not None:
            self._talk.cancel()
        if self._worker is not None:
            await asyncio.wait([self._worker])

    # --- the queue ------------------------------------------------------------------------------

    async def _say(
        self, commands: tuple[Command[Any], ...], deadline: float | None
    ) -> list[list[str]]:
        request = _Request(
            commands,
            self._deadline if deadline is None else deadline,
            deadline is not None,
            asyncio.get_running_loop().create_future(),
        )
        self._waiting.append(request)
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name="mps control")
        try:
            return await request.replies
        except asyncio.CancelledError:
            await self._withdraw(request)
            raise

    async def _withdraw(self, request: _Request) -> None:
        """The caller does not wait any more; when no other of the batch does either, the exchange
        is ended, and has been when this returns.
        """
        request.replies.cancel()
        with contextlib.suppress(ValueError):
            self._waiting.remove(request)
        talk = self._talk
        if talk is not None and all(r.replies.done() for r in self._batch):
            talk.cancel()
            await asyncio.wait([talk])

    async def _work(self) -> None:
        """Until no caller waits."""
        try:
            while self._waiting:
                self._batch = self._next_batch()
                await self._answer(self._batch)
        finally:
            self._batch, self._worker = (), None

    def _next_batch(self) -> tuple[_Request, ...]:
        first = self._waiting.popleft()
        batch, commands = [first], len(first.commands)
        while self._waiting and not first.alone and not self._waiting[0].alone:
            commands += len(self._waiting[0].commands)
            if commands > MOST_COMMANDS:
                break
            batch.append(self._waiting.popleft())
        return tuple(batch)

    async def _answer(self, batch: tuple[_Request, ...]) -> None:
        commands = [command for request in batch for command in request.commands]
        deadline = max(request.deadline for request in batch)
        self._talk = asyncio.create_task(self._converse(commands, deadline), name="mps talk")
        try:
            await asyncio.wait([self._talk])
        finally:
            talk, self._talk = self._talk, None
            talk.cancel()  # in case it is this that is cancelled
        if talk.cancelled():
            return  # no caller waits any more
        error = talk.exception()
        replies = [] if error else talk.result()
        for request in batch:
            mine, replies = replies[: len(request.commands)], replies[len(request.commands) :]
            if request.replies.done():
                continue
            if error is None:
                request.replies.set_result(mine)
            else:  # of his own for each caller, with a traceback of his own
                request.replies.set_exception(_again(error))

    # --- one conversation -----------------------------------------------------------------------

    async def _converse(self, commands: Sequence[Command[Any]], deadline: float) -> list[list[str]]:
        """Connect until it is our turn; all within the deadline."""
        pause, turned_away = FIRST_PAUSE, 0
        try:
            async with asyncio.timeout(deadline):
                while True:
                    looked_at = self._pipe_directory
                    said = await self._run(script_of(commands))
                    if _DEAD in said[1] and looked_at != self._pipe_directory:
                        continue  # it was moved just then
                    replies = self._understood(said, commands)
                    if replies is not None:
                        return replies
                    turned_away += 1
                    await asyncio.sleep(pause * (0.5 + self._jitter()))
                    pause = min(pause * 2, LONGEST_PAUSE)
        except TimeoutError:
            raise self._late(turned_away, deadline) from None

    def _late(self, turned_away: int, deadline: float) -> ControlError:
        if turned_away:
            return DaemonBusy(
                f"another front-end held the MPS daemon at {self._pipe_directory} for "
                f"{deadline:g} s",
                remedy="end the nvidia-cuda-mps-control that was left open",
            )
        return DaemonSilent(
            f"the MPS daemon at {self._pipe_directory} said nothing within {deadline:g} s"
        )

    def _understood(
        self, said: tuple[str, str], commands: Sequence[Command[Any]]
    ) -> list[list[str]] | None:
        """The lines of each reply; None when it was not our turn."""
        output, complaint = said
        if _DEAD in complaint:
            raise DaemonDead(f"no MPS daemon answers at {self._pipe_directory}")
        if _REFUSED in complaint:
            raise FrontEndFailed(
                f"the MPS daemon at {self._pipe_directory} does not let user in: {complaint}",
                remedy="run as root or as the daemon's user",
            )
        if _BUSY in complaint:
            return None
        if len(commands) == 1 and commands[0].ends:
            return [output.splitlines()]  # it has no time to complain about nonsense words
        replies = parted(output, len(commands))
        if replies is None and output:
            raise FrontEndFailed(
                f"the talk with the MPS daemon at {self._pipe_directory} broke off: "
                f"{(complaint or output)[:200]!r}"
            )
        # Nothing at all, whatever the exit status, not even about nonsense: turned away.
        return replies

    async def _run(self, script: bytes) -> tuple[str, str]:
        """The front-end's words on both streams; when this is left early, it is killed."""
        try:
            said = await run_program(self._program, self._environment, stdin=script)
        except TooMuchOutput:
            raise FrontEndFailed(
                f"the MPS daemon at {self._pipe_directory} said more than {MOST_OUTPUT} bytes"
            ) from None
        except OSError as error:
            raise FrontEndFailed(
                f"{self._program[0]} cannot be run: {error.strerror}",
                remedy="install it, or set the path of it",
            ) from error
        return said.stdout, said.stderr.strip()


def _again(error: BaseException) -> BaseException:
    if isinstance(error, ControlError):
        return type(error)(error.message, remedy=error.remedy)
    return error
