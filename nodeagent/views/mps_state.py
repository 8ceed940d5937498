"""MPS on the node as every surface shows it, as values."""

from __future__ import annotations

from datetime import datetime

from nodeagent.plan.problems import Problem
from nodeagent.plan.shares import WantedMps
from nodeagent.structs import Struct
from nodeagent.views.shapes import MpsServer, MpsWaiting


class ClientState(Struct, frozen=True):
    """A process that uses a device through MPS.

    `share` and `slot` are those of the plan it was given (`small`, `small-0`), empty when it has
    none. `memory_limit` and `memory_used` in bytes and `threads` in percent: what it really has
    (None: no limit, or not known). `findings` say in a sentence each what is wrong with it.
    `script` is the file or module that an interpreter runs.
    """

    pid: int
    command: str = ""
    uid: int | None = None
    share: str = ""
    slot: str = ""
    memory_used: int | None = None
    memory_limit: int | None = None
    threads: float | None = None
    findings: tuple[str, ...] = ()
    namespace: str = ""
    pod: str = ""
    container: str = ""
    script: str = ""


class DaemonState(Struct, frozen=True):
    """One device's control daemon. `device` is a UUID, `phase` one word, `why` says why that is
    not Ready; `since` is when the phase began. `last_lines` are the log's, where it failed.
    `trouble` is what is wrong although it may be Ready: it cannot be asked, or a server failed.
    """

    device: str
    phase: str
    wanted: WantedMps | None = None
    why: str = ""
    pid: int | None = None
    restarts: int = 0
    pipe_directory: str = ""
    since: datetime | None = None
    server: MpsServer | None = None
    clients: tuple[ClientState, ...] = ()
    waiting: tuple[MpsWaiting, ...] = ()
    last_lines: tuple[str, ...] = ()
    trouble: str = ""

    @property
    def is_ready(self) -> bool:
        return self.phase == "Ready"


class MpsOverview(Struct, frozen=True):
    """All daemons of the node, and what is wrong with them or with what clients get."""

    daemons: tuple[DaemonState, ...] = ()
    problems: tuple[Problem, ...] = ()
