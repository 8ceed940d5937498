"""Programs of another user than the daemon serves, which MPS leaves waiting without a word.

The daemon's log names who connected. Whether such a program waits is known when it still lives, is
that user's, and is no client of a server: then it waits, and may wait for ever.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nodeagent.mps.files.log_lines import ClientCame
from nodeagent.processes import Process, ProcessIdentity, command_of, inspect, is_gone

SURE_AFTER = 1.0  # seconds without a server of its user, after which a program is held to wait
MOST = 64  # that are looked at; a user who makes more gets no more attention
_LONGEST_COMMAND = 80


@dataclass(frozen=True, slots=True)
class Waiting:
    """A program that waits; `start_time` in clock ticks since boot."""

    pid: int
    uid: int
    command: str
    start_time: int


@dataclass(slots=True)
class _Suspect:
    since: float
    who: Waiting


class ForeignUsers:
    """Those of one daemon, which serves `uid`."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._suspects: dict[int, _Suspect] = {}
        self._waiting: dict[int, Waiting] = {}

    @property
    def is_unsure(self) -> bool:
        """Whether somebody may be found to wait soon."""
        return bool(self._suspects)

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Those who wait and still live."""
        return tuple(who for who in self._waiting.values() if _is_alive(who))

    def came(self, client: ClientCame, now: float) -> bool:
        """Somebody connected; whether that is to be looked into."""
        if client.uid == self._uid or client.pid in self._suspects or client.pid <= 0:
            return False
        who = _who(client.pid, client.uid)
        if who is None or len(self._suspects) + len(self._waiting) >= MOST:
            return False
        told = self._waiting.get(client.pid)
        if told is not None and told.start_time == who.start_time:
            return False  # it tries again
        self._suspects[client.pid] = _Suspect(now, who)
        return True

    def judge(
        self, served: Collection[int], server_uid: int | None, *, has_server: bool, now: float
    ) -> tuple[Waiting, ...]:
        """Who is found to wait that was not before, by who is served, and whose the server is."""
        for pid in [p for p, who in self._waiting.items() if p in served or not _is_alive(who)]:
            del self._waiting[pid]
        found = []
        for pid, suspect in list(self._suspects.items()):
            who = suspect.who
            if pid in served or not _is_alive(who):
                del self._suspects[pid]
            elif _is_kept_out(who, server_uid, has_server) or now - suspect.since >= SURE_AFTER:
                del self._suspects[pid]
                self._waiting[pid] = who
                found.append(who)
        return tuple(found)


def _is_kept_out(who: Waiting, server_uid: int | None, has_server: bool) -> bool:
    return has_server and server_uid is not None and server_uid != who.uid


def _is_alive(who: Waiting) -> bool:
    return not is_gone(ProcessIdentity(who.pid, who.start_time))


def _who(pid: int, uid: int) -> Waiting | None:
    """The process with this number, if it is this user's."""
    found, words = inspect(pid), command_of(pid)
    if not isinstance(found, Process) or not isinstance(words, tuple):
        return None
    if uid not in {found.uids.real, found.uids.effective, found.uids.saved}:
        return None
    name = Path(words[0]).name if words else ""
    command = "".join(c for c in name if c.isprintable())[-_LONGEST_COMMAND:]
    return Waiting(pid, uid, command, found.identity.create_time)
