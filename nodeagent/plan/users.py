"""Who uses a device: processes, MPS clients and allocations; not to know them counts as in use."""

from __future__ import annotations

from nodeagent.structs import Struct


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

    def __str__(self) -> str:
        allocated = "an allocation" if self.source == "kubelet" else self.source
        who = f"pid {self.pid}" if self.pid else allocated
        if self.command:
            who += f" ({self.command} {self.script})" if self.script else f" ({self.command})"
        if self.pod:
            who += f" of pod {self.namespace}/{self.pod}"
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

    def __str__(self) -> str:
        if not self.known:
            return f"unknown users ({self.reason})" if self.reason else "unknown users"
        return ", ".join(map(str, self.processes)) or "nobody"


IDLE = Usage()
