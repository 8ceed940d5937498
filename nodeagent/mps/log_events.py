"""Turns what a daemon's log and answers say about servers and blocked clients into events.

MPS leaves programs of another user than the daemon serves waiting silently. The daemon's log names
who connected. Such a program is blocked when it still lives, is that user's, and is no client of a
server: it waits, and may wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nodeagent.mps.control.query import Seen, SeenServer
from nodeagent.mps.files.log import (
    ClientCame,
    DaemonLog,
    Fact,
    Faulted,
    LogRefused,
    LogWatch,
    Recovered,
    ServerExited,
    ServerReady,
    Stirred,
    facts,
)
from nodeagent.mps.lifecycle.model import (
    Ending,
    Event,
    ForeignUserWaiting,
    Server,
    ServerGone,
    ServerSeen,
    ServerStatus,
    State,
)
from nodeagent.mps.processes import identify
from nodeagent.mps.shares import DaemonSpec
from nodeagent.processes import Process, ProcessIdentity, command_of, inspect, is_gone
from nodeagent.processes import identify as process_of

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


class BlockedClients:
    """Those of one daemon, which serves `uid`."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._suspects: dict[int, _Suspect] = {}
        self._waiting: dict[int, Waiting] = {}

    @property
    def is_unsure(self) -> bool:
        """Whether a client may turn out to be blocked soon."""
        return bool(self._suspects)

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Those who wait and still live."""
        return tuple(who for who in self._waiting.values() if _is_alive(who))

    def came(self, client: ClientCame, now: float) -> bool:
        """A client connected; whether that has to be looked into."""
        if client.uid == self._uid or client.pid in self._suspects or client.pid <= 0:
            return False
        who = _who(client.pid, client.uid)
        if who is None or len(self._suspects) + len(self._waiting) >= MOST:
            return False
        known = self._waiting.get(client.pid)
        if known is not None and known.start_time == who.start_time:
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


SHOWN = 4  # lines of the log that a report shows
EARLIER = 1 << 16  # bytes of an adopted daemon's log that may name who waits since before
_QUIET = 0.03  # seconds that lines are collected before they are read
_MOST_SERVERS = 4  # whose clients are remembered
_SAME = 30.0  # seconds in which the same end of another server is not reported again
# The log is its user's to write. Who floods it must neither hold up the loop nor fill the memory:
# beyond these figures the daemon is asked, which shows what matters.
_MOST_BEHIND = 1 << 20  # bytes
_MOST_FACTS = 100  # heard in one go
_MOST_REPORTED = 16  # different ends within _SAME
_MOST_READY = 1024  # servers that are remembered


class LogEvents:
    """Of process number `run`, which runs as `pid`. `adopted`: it has run before this agent did."""

    def __init__(
        self,
        run: int,
        spec: DaemonSpec,
        pid: int,
        *,
        watch: LogWatch,
        log_size: int,
        handle: Callable[[Event], None],
        state: Callable[[], State],
        stirred: Callable[[], None],
        adopted: bool,
    ) -> None:
        self.trouble = ""  # how its last server ended, while that is all that there is to say
        self._run = run
        self._log_size = log_size
        self._handle = handle
        self._stirred = stirred
        self._state = state
        self._blocked = None if spec.multi_user else BlockedClients(spec.uid)
        self._loop = asyncio.get_running_loop()
        self._log: DaemonLog | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._ready: set[int] = set()  # servers that have taken clients
        self._culprit: int | None = None
        self._faulted = False  # by the log, where the daemon does not say
        self._reported: dict[str, float] = {}
        self._clients: dict[int, tuple[int, ...]] = {}  # of servers, as seen last
        self._end_watch: Callable[[], None] = lambda: None
        with suppress(LogRefused):
            self._log = DaemonLog(spec.log_directory, pid=pid, tail=EARLIER if adopted else 0)
            self._end_watch = watch.watch(self._log.path, self._grown)
            if adopted:
                self._hear_earlier(self._log)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._end_watch()
        if self._log is not None:
            self._log.close()
        self._log = None

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Foreign users who wait."""
        return self._blocked.waiting if self._blocked else ()

    @property
    def has_waiting(self) -> bool:
        return bool(self.waiting)

    @property
    def unsure_for(self) -> float | None:
        """Seconds after which it is known whether a client is blocked; None: none might be."""
        return SURE_AFTER + 0.05 if self._blocked and self._blocked.is_unsure else None

    def last_lines(self, *, until: str = "") -> tuple[str, ...]:
        """Those of the log worth showing, up to the last that has `until`."""
        return self._log.last_lines(SHOWN, until=until) if self._log is not None else ()

    # --- the log ----------------------------------------------------------------------------------

    def _grown(self) -> None:
        if self._reading is None:
            self._reading = self._loop.call_later(_QUIET, self._read)

    def _read(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._log is None:
            return
        with suppress(OSError):
            if self._log.behind > _MOST_BEHIND:
                self._log.skip()
                self._stirred()
            self._hear(facts(self._log.new_lines()))
            if self._log.has_more:
                self._grown()
            self._log.bound(self._log_size)

    def _hear(self, heard: Iterator[Fact]) -> None:
        matters = False
        for fact in islice(heard, _MOST_FACTS):
            matters = self._heard(fact) or matters
        if matters:
            self._stirred()

    def _hear_earlier(self, log: DaemonLog) -> None:
        """Who may wait since before this agent: the rest is past, or will be answered."""
        now = self._loop.time()
        for fact in facts(log.new_lines()):
            if isinstance(fact, ClientCame) and fact.pending and self._blocked is not None:
                self._blocked.came(fact, now)
            elif isinstance(fact, ServerReady):
                self._is_ready(fact.pid)

    def _heard(self, fact: Fact) -> bool:
        """Whether the daemon is to be asked about it."""
        match fact:
            case ClientCame():
                if self._blocked is not None:
                    self._blocked.came(fact, self._loop.time())
            case ServerReady():
                self._is_ready(fact.pid)
            case ServerExited():
                self._exited(fact)
            case Faulted():
                self._faulted = True
                self._culprit = fact.culprit if fact.culprit is not None else self._culprit
            case Recovered():
                self._faulted, self._culprit = False, None
            case Stirred():
                pass
        return True

    def _is_ready(self, server: int) -> None:
        if len(self._ready) >= _MOST_READY:
            self._ready.clear()
        self._ready.add(server)
        self.trouble = ""

    def _exited(self, fact: ServerExited) -> None:
        words = self._bad_end(fact)
        self.trouble = f"its last server ({fact.pid}) ended: {words}" if words else ""
        self._faulted, self._culprit = False, None
        now = self._loop.time()
        self._reported = {w: when for w, when in self._reported.items() if now - when < _SAME}
        if words in self._reported or len(self._reported) >= _MOST_REPORTED:
            words = ""
        elif words:
            self._reported[words] = now
        self._ready.discard(fact.pid)
        self._clients.pop(fact.pid, None)
        # The daemon may have started the next one by now.
        lines = self.last_lines(until=f"Server {fact.pid} exited") if words else ()
        self._handle(ServerGone(self._run, fact.pid, words, lines))

    def _bad_end(self, fact: ServerExited) -> str:
        """In words; "" for one that is nothing to talk about."""
        if self._state().ending is not Ending.NO:
            return ""
        if fact.status != 0:
            return f"status {fact.status}"
        if fact.pid not in self._ready:
            return (
                "status 0 before it took any client; so it ends when its user may not pass a "
                "directory above the pipe directory"
            )
        left = [c for c in self._clients.get(fact.pid, ()) if process_of(c) is not None]
        if left:
            return f"its clients have lost it: pid {', '.join(map(str, left))}"
        return ""

    # --- answers ----------------------------------------------------------------------------------

    def judge(self, seen: Seen, state: State) -> Iterator[Event]:
        """What an answer says about servers, and about those who wait."""
        if any(server.status is ServerStatus.FAULT for server in seen.servers):
            self._read()  # the line that names the cause is in the log, perhaps not read yet
        listed = [server.pid for server in seen.servers]
        if state.server is not None and state.server.pid not in listed:
            yield ServerGone(self._run, state.server.pid)
        self._remember_clients(seen)
        servers = [self._server(server, state) for server in seen.servers]
        for server in servers[:1]:  # a daemon has one at a time
            yield ServerSeen(self._run, server)
        if self._blocked is None:
            return
        served = {client for _, client in seen.clients}
        uid = servers[0].uid if servers else None
        now = self._loop.time()
        for who in self._blocked.judge(served, uid, has_server=bool(servers), now=now):
            yield ForeignUserWaiting(self._run, who.pid, who.uid, who.command)

    def _remember_clients(self, seen: Seen) -> None:
        """Those of a server that has just gone too: the line that shows how may be read later."""
        for server in seen.servers:
            known = self._clients.pop(server.pid, ())
            self._clients[server.pid] = known if server.clients is None else server.clients
        while len(self._clients) > _MOST_SERVERS:
            del self._clients[next(iter(self._clients))]

    def _server(self, server: SeenServer, state: State) -> Server:
        found = identify(server.pid)
        status = server.status or self._status_of(server, state)
        if status is ServerStatus.ACTIVE:
            self._ready.add(server.pid)
        culprit = self._culprit if status is ServerStatus.FAULT else None
        return Server(server.pid, found.uid if found else None, status, culprit)

    def _status_of(self, server: SeenServer, state: State) -> ServerStatus:
        """Where the daemon does not give it."""
        if self._faulted:
            return ServerStatus.FAULT
        if server.clients is not None:
            return ServerStatus.ACTIVE
        known = state.server
        if known is not None and known.pid == server.pid:
            return known.status  # it is busy
        return ServerStatus.INITIALIZING
