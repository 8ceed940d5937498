"""Whose a process is, also where there is no cluster: a pod, a container, a systemd unit, a user.

From /proc/PID/cgroup and the process' effective user; pods' names come from the kubelet's log
folders (`process_pods`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.cluster.kubelet.process_pods import ProcessPods
from nodeagent.processes import Process, inspect

_CONTAINER: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_SHORT_ID: Final = 12  # letters of a container's id that people and tools show
_UNIT: Final = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")
_SESSIONS: Final = "/user.slice/"


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """Somebody who has processes on a device, or was given it; what is not known is empty.

    A pod has `namespace`, `pod` and, where it is known, `container`. Outside a cluster one of the
    others is there: `container` (the first letters of its id), `unit` or `user` (a number).
    """

    namespace: str = ""
    pod: str = ""
    container: str = ""
    unit: str = ""
    user: str = ""

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """What is known, as labels in the order of their names."""
        named = (
            ("container", self.container),
            ("namespace", self.namespace),
            ("pod", self.pod),
            ("unit", self.unit),
            ("user", self.user),
        )
        return tuple((name, value) for name, value in named if value)


def outside_pods(cgroup: str, uid: int) -> Owner:
    """The owner of a process that is in no pod, by the text of its cgroup file."""
    unit = ""
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        if found := _CONTAINER.search(path):
            return Owner(container=found[0][:_SHORT_ID])
        units = _UNIT.findall(path)
        if units and _SESSIONS not in path and not unit:
            unit = units[-1]
    return Owner(unit=unit) if unit else Owner(user=str(uid))


class ProcessOwners:
    """Looks processes up and remembers them as long as they are asked for. Its methods block."""

    def __init__(self, pods: ProcessPods, *, proc_root: Path = Path("/proc")) -> None:
        self._pods = pods
        self._proc = proc_root
        self._known: dict[int, Owner] = {}

    def of(self, pids: Collection[int]) -> Mapping[int, Owner]:
        """By pid; nothing for a process that is gone, or whose pod has no name yet.

        To be given all processes that matter: the others are forgotten, so that a pid that is
        used again is looked up again.
        """
        known = {pid: self._known[pid] for pid in pids if pid in self._known}
        new = [pid for pid in pids if pid not in known]
        for pid, pod in (self._pods.of(new) if new else {}).items():
            if pod is None:
                owner = self._outside(pid)
            elif pod.name is None:
                owner = None
            else:
                owner = Owner(pod.name.namespace, pod.name.name, pod.container)
            if owner is not None:
                known[pid] = owner
        self._known = known
        return known

    def _outside(self, pid: int) -> Owner | None:
        process = inspect(pid)
        if not isinstance(process, Process):
            return None
        try:
            cgroup = (self._proc / str(pid) / "cgroup").read_text(errors="replace")
        except OSError:
            return None
        return outside_pods(cgroup, process.uids.effective)
