"""Turns what a daemon's log and answers say about servers and blocked clients into events.

MPS leaves programs of another user than the daemon serves waiting silently. The daemon's log names
who connected. Such a program is blocked when it still lives, is that user's, and is no client of a
server: it waits, and may wait forever.
"""

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice

from nodeagent.mps.commands import MAX_SERVERS
from nodeagent.mps.control import Seen, SeenServer
from nodeagent.mps.files import log
from nodeagent.mps.lifecycle import model
from nodeagent.mps.lifecycle.model import Ending, ServerStatus
from nodeagent.mps.processes import SERVER, MpsProcess, parent_of
from nodeagent.mps.shares import DaemonSpec
from nodeagent.processes import (
    Hidden,
    Process,
    ProcessIdentity,
    identify,
    inspect,
    is_gone,
    name_of,
)
from nodeagent.structs import Struct
from nodeagent.views.shapes import MpsWaiting

SURE_AFTER = 1.0  # seconds without a server of its user, after which a program is held to wait
MAX_SUSPECTS = 64  # that are checked; a user who makes more gets no more attention


class _Suspect(Struct):
    """A program that waits, for sure or as it seems."""

    client: MpsWaiting
    process: ProcessIdentity
    since: float
    sure: bool = False


class BlockedClients:
    """The blocked clients of one daemon, which serves `uid` (None: every user)."""

    def __init__(self, uid: int | None) -> None:
        self._uid = uid
        self._suspects: dict[int, _Suspect] = {}

    @property
    def is_unsure(self) -> bool:
        return any(not one.sure for one in self._suspects.values())

    @property
    def waiting(self) -> tuple[MpsWaiting, ...]:
        """The clients that wait and still live."""
        found = (one for one in self._suspects.values() if one.sure and not is_gone(one.process))
        return tuple(one.client for one in found)

    def connected(self, client: log.ClientConnected, now: float) -> None:
        known = self._suspects.get(client.pid)
        if self._uid in {None, client.uid} or client.pid <= 0 or (known and not known.sure):
            return
        suspect = _suspect(client, now)
        if suspect is None or (known and known.process == suspect.process):
            return  # it tries again
        if known or len(self._suspects) < MAX_SUSPECTS:
            self._suspects[client.pid] = suspect

    def judge(
        self, served: Collection[int], server_uid: int | None, now: float
    ) -> tuple[MpsWaiting, ...]:
        """The clients newly found to wait, by who is served, and whose the server is."""
        found = []
        for pid, one in list(self._suspects.items()):
            if pid in served or is_gone(one.process):
                del self._suspects[pid]
                continue
            refused = server_uid not in {None, one.client.user}
            if not one.sure and (refused or now - one.since >= SURE_AFTER):
                one.sure = True
                found.append(one.client)
        return tuple(found)


def _suspect(client: log.ClientConnected, now: float) -> _Suspect | None:
    """The process with this number, if it is this user's."""
    found = inspect(client.pid)
    if not isinstance(found, Process):
        return None
    if client.uid not in {found.uids.real, found.uids.effective, found.uids.saved}:
        return None
    # Its memory is not looked at, where it has its words: the loop could wait for that for ever.
    waits = MpsWaiting(pid=client.pid, user=client.uid, command=name_of(client.pid))
    return _Suspect(waits, found.identity, now)


EARLIER = 1 << 16  # bytes of an adopted daemon's log that may name who waits since before
_SAME = 30.0  # seconds in which the same end of another server is not reported again
# The log is its user's to write. Who floods it must neither hold up the loop nor fill the memory:
# beyond these figures the daemon is asked, which shows what matters.
_MAX_BEHIND = 1 << 20  # bytes
_MAX_FACTS = 100  # taken in one go
_MAX_REPORTED = 16  # different ends within _SAME
_MAX_READY = 1024  # servers that are remembered


class LogEvents:
    """Events of the daemon's process number `run`, which has the pid `pid`. `adopted`: it has run
    before this agent did. The log is cut off beyond `log_size` bytes.
    """

    def __init__(
        self, run: int, spec: DaemonSpec, pid: int, *, log_size: int, adopted: bool
    ) -> None:
        self.trouble = ""  # how its last server ended, while that is all that there is to say
        self.servers: tuple[MpsProcess, ...] | None = None  # as it named them last; None: never yet
        self.blocked = BlockedClients(None if spec.multi_user else spec.uid)
        self._run = run
        self._pipe_directory = spec.pipe_directory
        self._pid = pid
        self._log_size = log_size
        self._ready: set[int] = set()  # servers that have taken clients
        self._culprit: int | None = None
        self._faulted = False  # by the log, where the daemon does not say
        self._reported: dict[str, float] = {}
        self._clients: dict[int, tuple[int, ...]] = {}  # of servers, as seen last
        self.log = log.DaemonLog(spec.log_directory, tail=EARLIER if adopted else 0)
        if adopted:
            self._read_earlier()

    def read(self, ending: Ending) -> tuple[bool, tuple[model.Event, ...]]:
        """What is new in the log: whether the daemon is to be asked about it, and the servers that
        have ended, with `ending` as far as the daemon's own end has come.
        """
        skipped, found = False, []
        with suppress(OSError):
            if self.log.behind > _MAX_BEHIND:
                self.log.skip()
                skipped = True
            found = list(islice(log.facts(self.log.new_lines()), _MAX_FACTS))
            self.log.bound(self._log_size)
        events = tuple(event for fact in found for event in self._events_of(fact, ending))
        return skipped or bool(found), events

    def _read_earlier(self) -> None:
        """Find clients that wait since before this agent: the rest is past, or will be asked."""
        for fact in log.facts(self.log.new_lines()):
            if isinstance(fact, log.ClientConnected) and fact.pending:
                self.blocked.connected(fact, time.monotonic())
            elif isinstance(fact, log.ServerReady):
                self._is_ready(fact.pid)

    def _events_of(self, fact: log.Fact, ending: Ending) -> Iterator[model.Event]:
        match fact:
            case log.ClientConnected():
                self.blocked.connected(fact, time.monotonic())
            case log.ServerReady():
                self._is_ready(fact.pid)
            case log.ServerExited():
                yield self._exited(fact, ending)
            case log.Faulted():
                self._faulted = True
                self._culprit = fact.culprit if fact.culprit is not None else self._culprit
            case log.Recovered():
                self._faulted, self._culprit = False, None

    def _is_ready(self, server: int) -> None:
        if len(self._ready) >= _MAX_READY:
            self._ready.clear()
        self._ready.add(server)
        self.trouble = ""

    def _exited(self, fact: log.ServerExited, ending: Ending) -> model.ServerGone:
        words = self._bad_end(fact) if ending is Ending.NO else ""
        self.trouble = f"its last server ({fact.pid}) ended: {words}" if words else ""
        self._faulted, self._culprit = False, None
        now = time.monotonic()
        self._reported = {w: when for w, when in self._reported.items() if now - when < _SAME}
        if words in self._reported or len(self._reported) >= _MAX_REPORTED:
            words = ""
        elif words:
            self._reported[words] = now
        self._ready.discard(fact.pid)
        self._clients.pop(fact.pid, None)
        # The daemon may have started the next one by now.
        lines = self.log.last_lines(until=f"Server {fact.pid} exited") if words else ()
        return model.ServerGone(self._run, fact.pid, words, lines)

    def _bad_end(self, fact: log.ServerExited) -> str:
        """Describe the end of a server; "" if it needs no mention."""
        if fact.status != 0:
            return f"status {fact.status}"
        if fact.pid not in self._ready:
            return (
                "status 0 before it took any client; so it ends when its user may not pass a "
                "directory above the pipe directory"
            )
        left = [c for c in self._clients.get(fact.pid, ()) if identify(c) is not None]
        return f"its clients have lost it: pid {', '.join(map(str, left))}" if left else ""

    def judge(self, seen: Seen, state: model.State) -> Iterator[model.Event]:
        """What an answer says about servers, and about those who wait."""
        listed = [server.pid for server in seen.servers]
        if state.server is not None and state.server.pid not in listed:
            yield model.ServerGone(self._run, state.server.pid)
        self._remember_clients(seen)
        found = [(server, inspect(server.pid)) for server in seen.servers]
        self.servers = tuple(self._own_servers(process for _, process in found))
        servers = [self._server(server, state, process) for server, process in found]
        for server in servers[:1]:  # a daemon has one at a time
            yield model.ServerSeen(self._run, server)
        served = {client for _, client in seen.clients}
        uid = servers[0].uid if servers else None
        for who in self.blocked.judge(served, uid, time.monotonic()):
            yield model.ForeignUserWaiting(self._run, who.pid, who.user, who.command)

    def _remember_clients(self, seen: Seen) -> None:
        """Remember also a server that has just gone: how it ended may be read later."""
        for server in seen.servers:
            known = self._clients.pop(server.pid, ())
            self._clients[server.pid] = known if server.clients is None else server.clients
        while len(self._clients) > MAX_SERVERS:
            del self._clients[next(iter(self._clients))]

    def _own_servers(self, found: Iterable[Process | Hidden | None]) -> Iterator[MpsProcess]:
        """The servers that are the daemon's children: a tenant's could name any process."""
        for one in found:
            if isinstance(one, Process) and parent_of(one.identity.pid) == self._pid:
                pid, start_time = one.identity.pid, one.identity.create_time
                yield MpsProcess(pid, start_time, one.uids.effective, SERVER, self._pipe_directory)

    def _server(
        self, server: SeenServer, state: model.State, found: Process | Hidden | None
    ) -> model.Server:
        status = server.status or self._status_of(server, state)
        if status is ServerStatus.ACTIVE:
            self._ready.add(server.pid)
        culprit = self._culprit if status is ServerStatus.FAULT else None
        uid = found.uids.effective if isinstance(found, Process) else None
        return model.Server(server.pid, uid, status, culprit)

    def _status_of(self, server: SeenServer, state: model.State) -> ServerStatus:
        """The status of a server where the daemon does not give it."""
        if self._faulted:
            return ServerStatus.FAULT
        if server.clients is not None:
            return ServerStatus.ACTIVE
        known = state.server
        if known is not None and known.pid == server.pid:
            return known.status  # it is busy
        return ServerStatus.INITIALIZING
