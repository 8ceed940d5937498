"""How commands and replies go over one connection to a control daemon.

Replies have no delimiter: after each command comes a nonsense word, whose complaint ends the reply.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nodeagent.mps.control.commands import Command, QuitDaemon
from nodeagent.mps.control.replies import UnexpectedReply

MOST_SAID = 1 << 20  # bytes; the longest replies to a batch have some thousand
_BLOCK = 1 << 16


class TooMuchSaid(Exception):
    """The daemon's user may have put something else in its place, which never stops talking."""


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


def read_or_error(command: Command[Any], reply: Sequence[str]) -> Any:
    """What it means; what is no answer as the error that it is."""
    try:
        return command.read(reply)
    except UnexpectedReply as error:
        return error


async def converse(process: Process, script: bytes) -> tuple[bytes, bytes]:
    """Say it all, and hear both streams to their ends. Raises TooMuchSaid; the process runs on."""
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    if stdin is None or stdout is None or stderr is None:
        raise ValueError("its streams are no pipes")
    output, complaint = asyncio.create_task(_hear(stdout)), asyncio.create_task(_hear(stderr))
    saying = asyncio.create_task(_say(stdin, script))
    try:
        await asyncio.gather(output, complaint, saying)
    finally:  # where one fails the others go on, and nobody else could read these streams
        for task in (output, complaint, saying):
            task.cancel()
        await asyncio.gather(output, complaint, saying, return_exceptions=True)
    await process.wait()
    return output.result(), complaint.result()


async def end(process: Process) -> None:
    """Kill it if it runs, and wait for that. Who waits for a process also waits for the ends of its
    streams, which never come while nobody reads what is in them.
    """
    if process.returncode is None:
        process.kill()
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    await asyncio.gather(*map(_discard, streams))
    await process.wait()


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(_BLOCK):
        pass


async def _say(stdin: asyncio.StreamWriter, script: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # it ends before it has heard all
        stdin.write(script)
        await stdin.drain()
    stdin.close()


async def _hear(stream: asyncio.StreamReader) -> bytes:
    said = bytearray()
    while block := await stream.read(_BLOCK):
        said += block
        if len(said) > MOST_SAID:
            raise TooMuchSaid
    return bytes(said)
