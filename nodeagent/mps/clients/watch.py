"""Watches the clients of all daemons: what they are, what they use, and whether they may.

What is wrong is reported once, for as long as it lasts. Where the plan says `enforce: terminate`,
the client is ended the safe way, beside the checks, since its work may take long to end.

All that is read of a client process is the process' own to choose, but for its user and its start:
it may be of any length and hold any bytes. So little is kept, and nothing is shown that could act
on a terminal.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from nodeagent import processes
from nodeagent.errors import NodeagentError
from nodeagent.gpu.process_details import script_of
from nodeagent.mps.clients.assess import (
    ENDED_FOR,
    ClientFacts,
    Judged,
    Offence,
    OffenceKind,
    assess,
    on_all,
)
from nodeagent.mps.clients.termination import ClientToEnd, end_client
from nodeagent.mps.control import ControlClient
from nodeagent.mps.processes import MemoryReader
from nodeagent.mps.shares import SLOT_VARIABLE, DaemonSpec
from nodeagent.own_thread import OwnThread
from nodeagent.plan.shares import WantedMps
from nodeagent.structs import Struct, replace
from nodeagent.views.shapes import MpsClient

RETRY_INTERVAL = 60.0  # seconds until a client that could not be ended is tried again

_NO_PID = (
    "the daemon does not know its pid, because it is in another pid namespace; so its limits "
    "cannot be checked, and it cannot be ended (in a pod, the agent needs hostPID: true)"
)

ClientKey = tuple[str, int, int]  # device, pid, start time

MAX_VALUE_LENGTH = 4096  # characters that are kept of one variable

_PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
_OF_MPS = "CUDA_MPS_"
_CONTAINER = re.compile(r"[0-9a-f]{64}")


async def read_clients(pids: Iterable[int]) -> tuple[ClientFacts, ...]:
    """Those that are still there, in this order; without environment where that is not had in time:
    it is in the process' memory.
    """
    return await asyncio.wrap_future(OwnThread("mps clients").submit(_read_clients, tuple(pids)))


def _read_clients(pids: Sequence[int]) -> tuple[ClientFacts, ...]:
    found = _reader.read(pids)
    every = (found[pid] if pid in found else _read_client(pid, memory=False) for pid in pids)
    return tuple(facts for facts in every if facts is not None)


def _read_client(pid: int, *, memory: bool) -> ClientFacts | None:
    found = processes.inspect(pid)
    if not isinstance(found, processes.Process):
        return None
    uid = found.uids.effective  # the one that the daemon checks
    script = script_of(pid) if memory else ""
    name, container = processes.name_of(pid), container_in(processes.cgroup_of(pid) or "")
    client = MpsClient(pid=pid, command=name, script=script, user=uid, container=container)
    environment = _environment(pid) if memory else None
    facts = ClientFacts(client, found.identity.create_time, environment)
    # Checked again: all of this was read of one process, and its pid was not reused.
    return None if processes.is_gone(found.identity) else facts


_reader = MemoryReader(partial(_read_client, memory=True), 2.0)


def _environment(pid: int) -> Mapping[str, str] | None:
    """The variables of MPS; None when they cannot be known.

    Programs that rename themselves overwrite what is read here. A client has come to a daemon
    whose pipe directory is never the default, so an environment that does not name any is not the
    one that it had.
    """
    found = processes.environment_of(pid, _OF_MPS, SLOT_VARIABLE)
    if not isinstance(found, Mapping) or _PIPE_DIRECTORY not in found:
        return None
    return {
        name[:100]: os.fsencode(value)[:MAX_VALUE_LENGTH].decode(errors="replace")
        for name, value in found.items()
        if name.startswith(_OF_MPS) or name == SLOT_VARIABLE
    }


def container_in(cgroup: str) -> str:
    """The short id of the container that has this cgroup file, as `docker ps` shows it; "" for
    none.
    """
    ids = _CONTAINER.findall(cgroup)
    return ids[-1][:12] if ids else ""


class RunningDaemon(Struct, frozen=True):
    """A daemon for clients: it is Ready, or was as it is wanted and will be again. `clients` are
    (server pid, client pid).
    """

    spec: DaemonSpec
    control: ControlClient
    pid: int | None
    clients: tuple[tuple[int, int], ...]

    @property
    def device(self) -> str:
        return self.spec.device

    @property
    def wanted(self) -> WantedMps:
        return self.spec.wanted

    @property
    def user(self) -> int | None:
        """The uid whose clients are allowed; None: any user."""
        return None if self.spec.multi_user else self.spec.uid

    @property
    def own_pids(self) -> frozenset[int]:
        return frozenset(pid for pid in (self.pid, *(s for s, _ in self.clients)) if pid)

    def key_of(self, client: Judged) -> ClientKey:
        return self.device, client.facts.pid, client.facts.start_time


@dataclass(eq=False, kw_only=True)
class ClientWatch:
    """Checks the clients of daemons; usable inside `async with`.

    `listed` gives the MPS processes of a device as the driver has them, bytes by pid (None: not
    known); where it raises a NodeagentError none is known, and none is ended. `report` gets a
    device's UUID and what is wrong, and once more with an outcome when the client was to be ended
    for it. `deadline` and `grace` in seconds, as for `end_client`; who uses too much memory also
    has `grace` to give it back.
    """

    listed: Callable[[str], Awaitable[Mapping[int, int | None]]]
    report: Callable[[str, Offence], None]
    deadline: float
    grace: float
    # When clients were seen first.
    _seen: dict[ClientKey, float] = field(default_factory=dict, init=False)
    # Since when offences last.
    _since: dict[tuple[ClientKey, OffenceKind], float] = field(default_factory=dict, init=False)
    _not_before: dict[ClientKey, float] = field(default_factory=dict, init=False)
    _endings: dict[ClientKey, asyncio.Task[None]] = field(default_factory=dict, init=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave who is being ended as they are just now."""
        endings = tuple(self._endings.values())
        for task in endings:
            task.cancel()
        await asyncio.gather(*endings, return_exceptions=True)

    async def check(self, daemons: Sequence[RunningDaemon]) -> Mapping[str, tuple[MpsClient, ...]]:
        """All clients of these daemons, by device."""
        now = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            tasks = [(daemon, group.create_task(self._judged(daemon, now))) for daemon in daemons]
        found = [(daemon, task.result()) for daemon, task in tasks]
        # Kept while the process is there: a server that is busy does not list its clients.
        for key in await asyncio.to_thread(_gone, tuple(self._seen)):
            self._seen.pop(key, None)
        self._report_new(found, now)
        spared = frozenset[int]().union(*(daemon.own_pids for daemon in daemons))
        for daemon, clients in found:
            if daemon.wanted.sharing.enforce == "terminate":
                self._enforce(daemon, clients, spared, now)
        return {daemon.device: _in_order(daemon, clients) for daemon, clients in found}

    async def _judged(self, daemon: RunningDaemon, now: float) -> tuple[Judged, ...]:
        """Clients that the daemon names, and processes of the plan's user that only the driver
        lists: a daemon that runs for a tenant may hide some.
        """
        named = dict.fromkeys(pid for _, pid in daemon.clients if pid > 0)
        devices = daemon.spec.devices
        memory: dict[str, Mapping[int, int | None]] = {}
        for device in devices:
            try:
                memory[device] = await self.listed(device)
            except NodeagentError:  # reported where more of the driver is read
                memory[device] = {}
        listed = dict.fromkeys(pid for found in memory.values() for pid in found)
        pids = named | {pid: None for pid in listed if pid not in daemon.own_pids}
        if not pids:
            return ()
        known = [
            replace(
                facts, seen=self._seen.setdefault((daemon.device, facts.pid, facts.start_time), now)
            )
            for facts in await read_clients(pids)
            if facts.pid in named or facts.client.user == daemon.user
        ]
        return on_all(
            [
                assess(
                    [replace(one, memory_used=memory[device].get(one.pid)) for one in known],
                    daemon.wanted,
                    device,
                )
                for device in devices
            ]
        )

    async def _listed(self, daemon: RunningDaemon) -> frozenset[int]:
        found = [await self.listed(device) for device in daemon.spec.devices]
        return frozenset[int]().union(*found)

    def _report_new(
        self, found: Iterable[tuple[RunningDaemon, Sequence[Judged]]], now: float
    ) -> None:
        since: dict[tuple[ClientKey, OffenceKind], float] = {}
        for daemon, clients in found:
            for client in clients:
                for offence in client.offences:
                    key = (daemon.key_of(client), offence.kind)
                    if key not in self._since and key not in since:
                        self.report(daemon.device, offence)
                    since.setdefault(key, self._since.get(key, now))
        self._since = since
        there = {process for process, _ in since}
        self._not_before = {p: t for p, t in self._not_before.items() if p in there}

    def _enforce(
        self, daemon: RunningDaemon, clients: Sequence[Judged], spared: frozenset[int], now: float
    ) -> None:
        for client in clients:
            key = daemon.key_of(client)
            offence = self._due(key, client, now)
            if offence is None or key in self._endings or now < self._not_before.get(key, now):
                continue
            _, pid, start_time = key
            target = ClientToEnd(processes.ProcessIdentity(pid, start_time), daemon.user, spared)
            task = asyncio.create_task(self._end(daemon, target, offence), name=f"mps end {pid}")
            self._endings[key] = task
            task.add_done_callback(partial(self._forget, key))

    def _due(self, key: ClientKey, client: Judged, now: float) -> Offence | None:
        """What it is to be ended for now.

        Figures of memory are of one moment, and what is freed is free a moment later; all else
        stays as it is until the client ends, so waiting would change nothing.
        """
        for offence in client.offences:
            passes = offence.kind in (OffenceKind.MEMORY, OffenceKind.TOGETHER)
            waits = self.grace if passes else 0.0
            if offence.kind in ENDED_FOR and now >= self._since[key, offence.kind] + waits:
                return offence
        return None

    def _forget(self, key: ClientKey, _: asyncio.Task[None]) -> None:
        del self._endings[key]

    async def _end(self, daemon: RunningDaemon, target: ClientToEnd, offence: Offence) -> None:
        ending = await end_client(
            daemon.control,
            target,
            lambda: self._listed(daemon),
            deadline=self.deadline,
            grace=self.grace,
        )
        if not ending.gone:
            key = (daemon.device, target.process.pid, target.process.create_time)
            self._not_before[key] = asyncio.get_running_loop().time() + RETRY_INTERVAL
        self.report(daemon.device, replace(offence, outcome=ending.words))


def _in_order(daemon: RunningDaemon, judged: Sequence[Judged]) -> tuple[MpsClient, ...]:
    """The clients in the daemon's order, with those of whom nothing else is known: they have just
    ended, or cannot be seen from here.
    """
    known = {client.facts.pid: client.state for client in judged}
    return tuple(
        known.get(pid) or MpsClient(pid=pid, findings=() if pid else (_NO_PID,))
        for _, pid in daemon.clients
    )


def _gone(clients: Sequence[ClientKey]) -> list[ClientKey]:
    """The clients whose processes have ended. Blocks on /proc."""
    return [key for key in clients if processes.is_gone(processes.ProcessIdentity(*key[1:]))]
