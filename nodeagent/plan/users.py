"""Who uses a device: processes, MPS clients and allocations; not to know them counts as in use."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.structs import Shape, Struct, replace

if TYPE_CHECKING:
    from nodeagent.plan.observed import DeviceDaemon, Gpu


class PodName(NamedTuple):
    """A pod as people name it; another one may have had the same name before."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


# A container of a pod; "" where it is not known which.
class Pod(Shape, frozen=True, order=True):  # noqa: D101 - docstrings stand in the API's schema
    namespace: str
    name: str
    container: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class User(Struct, frozen=True, order=True):
    """A process, MPS client or allocation that holds a device. `pid` 0: no process known.

    `script` is the file or module that an interpreter runs, such as `train.py`.
    """

    pid: int
    command: str = ""
    source: str = "process"  # process | mps | capability | kubelet
    memory: int | None = None  # bytes on the device
    namespace: str = ""
    pod: str = ""
    container: str = ""
    uid: int | None = None
    script: str = ""

    @property
    def in_pod(self) -> PodName | None:
        """Its pod; None for one outside any pod."""
        return PodName(self.namespace, self.pod) if self.pod else None

    @property
    def in_container(self) -> Pod | None:
        """Its container; None for one outside any pod."""
        return Pod(self.namespace, self.pod, self.container) if self.pod else None

    def __str__(self) -> str:
        allocated = "an allocation" if self.source == "kubelet" else self.source
        who = f"pid {self.pid}" if self.pid else allocated
        if self.command:
            who += f" ({self.command} {self.script})" if self.script else f" ({self.command})"
        if self.pod:
            who += f" of pod {self.in_pod}"
        return who


class Usage(Struct, frozen=True):
    """Users of something. When `known` is false it counts as in use, for the `reason`."""

    processes: tuple[User, ...] = ()
    known: bool = True
    reason: str = ""

    @property
    def in_use(self) -> bool:
        return not self.known or bool(self.processes)

    def together(self, other: Usage) -> Usage:
        """The users of both; a process known to both is shown as here."""
        pids = {user.pid for user in self.processes if user.pid}
        more = (user for user in other.processes if user.pid not in pids)
        return Usage(
            tuple(dict.fromkeys((*self.processes, *more))),
            known=self.known and other.known,
            reason="; ".join(dict.fromkeys(filter(None, (self.reason, other.reason)))),
        )

    def without(self, pids: Collection[int] = (), *, pods: Collection[PodName] = ()) -> Usage:
        """The users but for processes with these pids, and what is in these pods."""
        left = (u for u in self.processes if u.pid not in pids and u.in_pod not in pods)
        return replace(self, processes=tuple(left))

    def __str__(self) -> str:
        if not self.known:
            return f"unknown users ({self.reason})" if self.reason else "unknown users"
        return ", ".join(map(str, self.processes)) or "nobody"


IDLE = Usage()


# --- with MPS ---------------------------------------------------------------------------------

_MPS = "mps"  # the source of a user who is a client
_ALLOCATION = "kubelet"  # the source of a pod that was given a device and runs nothing on it yet


def as_used(gpu: Gpu) -> Gpu:
    """The GPU with the clients of its daemons as users of their devices, and without servers.

    A server goes with its daemon and is no user of its own. A client of a MIG device's daemon is on
    that device, wherever else the driver names it.
    """
    daemons = [device.mps for _, device in gpu.mig_devices() if device.mps]
    if gpu.mps is None and not daemons:
        return gpu
    servers = {pid for d in (*daemons, gpu.mps) if d for pid in d.servers}
    placed = {user.pid for d in daemons for user in d.clients.processes if user.pid}
    usage = _used(gpu.usage, gpu.mps, servers | placed)
    return replace(gpu, usage=usage).with_mig_devices(
        lambda _, c: replace(c, usage=_used(c.usage, c.mps, servers))
    )


def outside_mps(usage: Usage) -> Usage:
    """Users that are on the device otherwise than as clients of MPS.

    An allocation is not: pods that the kubelet brought back after a reboot wait for the daemon, and
    a daemon that waited for their end would never come.
    """
    elsewhere = tuple(u for u in usage.processes if u.source not in {_MPS, _ALLOCATION})
    return replace(usage, processes=elsewhere)


def _used(usage: Usage, daemon: DeviceDaemon | None, not_here: Collection[int]) -> Usage:
    usage = usage.without(not_here)
    if daemon is None:
        return usage
    clients = {user.pid for user in daemon.clients.processes if user.pid}
    named = {user.pid for user in usage.processes if user.pid}
    here = tuple(_client(u) if u.pid in clients else u for u in usage.processes)
    elsewhere = tuple(_client(u) for u in daemon.clients.processes if u.pid not in named)
    return replace(usage, processes=here).together(replace(daemon.clients, processes=elsewhere))


def _client(user: User) -> User:
    return replace(user, source=_MPS)
