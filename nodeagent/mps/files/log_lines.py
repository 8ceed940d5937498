"""What lines of `daemon.log` say that somebody should know. Pure.

In the foreground daemon and servers write into one log, as do our own questions: each leaves
`NEW UI`, `Cmd:...`, the reply and `UI closed`. Those must wake nobody, so only what is known to
matter counts, from the beginning of a line's text on: replies and commands hold what others chose.
Wordings differ between versions and are matched loosely.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientCame:
    """A program has connected; `pending` when it has to wait for a server."""

    pid: int
    uid: int
    pending: bool


@dataclass(frozen=True, slots=True)
class ServerReady:
    """A server takes clients."""

    pid: int


@dataclass(frozen=True, slots=True)
class ServerExited:
    """A server is gone; death by a signal is told as status 0."""

    pid: int
    status: int


@dataclass(frozen=True, slots=True)
class Faulted:
    """The server handles a fatal fault, of the client `culprit` where that is told."""

    culprit: int | None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The server makes its contexts anew."""


@dataclass(frozen=True, slots=True)
class Stirred:
    """Something about servers or clients is different; what, is to be asked."""


Fact = ClientCame | ServerReady | ServerExited | Faulted | Recovered | Stirred

# `[2026-09-01 12:00:00.000 Control  4711] `, in older versions followed by `Volta MPS Server: `.
_PREFIX = re.compile(r"\[[^\]]{1,80}\]\s*(?:Volta MPS(?: Server)?:\s*)?")
_CLIENT = re.compile(r"NEW CLIENT\s+(\d{1,10})\s+from user\s+(\d{1,10})\b(.*)")
_READY = re.compile(r"NEW SERVER\s+(\d{1,10}):\s*Ready")
_EXITED = re.compile(r"Server\s+(\d{1,10})\s+exited with status\s+(-?\d{1,10})")
_CULPRIT = re.compile(r"Client process\s+(\d{1,10})\s+encountered a fatal")
_FAULT = re.compile(r"Server is handling a fatal")
_ANEW = re.compile(r"Destroy server context")
_STIRRING = re.compile(
    r"Starting new server\b|Server encountered a fatal|Force shutting down"
    r"|Failed to start|Failed to accept"
    r"|Server has started|Server exit\b|Driver initialization failed"
    r"|Received new client request|Creating worker thread|Worker created"
    r"|Status of client|Client disconnected|Client process disconnected|Client \{.*\} exit"
    r"|Receive command failed"
)


def facts(lines: Iterable[str]) -> Iterator[Fact]:
    """What the lines say, in order; most say nothing."""
    for line in lines:
        fact = _fact(line)
        if fact is not None:
            yield fact


def _fact(line: str) -> Fact | None:
    prefix = _PREFIX.match(line)
    if prefix is None:
        return None
    text = line[prefix.end() :]
    if found := _CLIENT.match(text):
        pending = re.search(r"pending|not ready", found[3], re.IGNORECASE) is not None
        return ClientCame(int(found[1]), int(found[2]), pending)
    if found := _READY.match(text):
        return ServerReady(int(found[1]))
    if found := _EXITED.match(text):
        return ServerExited(int(found[1]), int(found[2]))
    if found := _CULPRIT.match(text):
        return Faulted(int(found[1]))
    if _FAULT.match(text):
        return Faulted(None)
    if _ANEW.match(text):
        return Recovered()
    return Stirred() if _STIRRING.match(text) else None


def telling(lines: Iterable[str]) -> Iterator[str]:
    """Those lines that tell a person something: without our own questions and their answers."""
    asked = False
    for line in lines:
        prefix = _PREFIX.match(line)
        text = line[prefix.end() :] if prefix else line
        by_daemon = prefix is not None and "Control" in prefix[0]
        if by_daemon and _TALK.match(text):
            asked = text.startswith(("NEW UI", "Cmd:"))
        elif not (asked and by_daemon) or _fact(line) is not None:
            yield line


_TALK = re.compile(r"NEW UI|Cmd:|UI closed|Accepting connection|User did not send valid")
