"""Which pod and container a process belongs to, by its cgroup and the kubelet's log folders.

The cgroup's path has the pod's uid, whatever made it (cgroup v1 or v2; systemd or cgroupfs as the
cgroup driver; containerd, CRI-O or Docker). The kubelet names its log folders after pods:
`/var/log/pods/NAMESPACE_NAME_UID/CONTAINER/`, and the links beside them after containers:
`/var/log/containers/NAME_NAMESPACE_CONTAINER-ID.log`.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from nodeagent.plan.users import PodName
from nodeagent.processes import Process, cgroup_of, inspect, sees_all_processes
from nodeagent.structs import Struct, replace

# systemd's slices have `_` where the uid has `-`; a static pod's uid is a hash without either.
_POD: Final = re.compile(
    r"(?:^|[/-])pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=$|[/.:])"
)
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_SESSIONS: Final = "/user.slice/"
_REMOVED: Final = " (deleted)"  # behind the cgroup of a zombie whose pod was cleared away


class ProcessPod(Struct, frozen=True):
    """A process in a pod; what cannot be found out is empty, and `name` None.

    `container_id` is the runtime's, `container` the name.
    """

    uid: str
    container_id: str = ""
    name: PodName | None = None
    container: str = ""


def pod_of_cgroup(text: str) -> ProcessPod | None:
    """The pod by the text of /proc/PID/cgroup; None for a process outside any pod. Users name the
    cgroups below their own sessions as they like, so there is no pod.
    """
    for line in text.split("\n"):  # which a name cannot have; what else splitlines() splits, it can
        path = line.split(":", 2)[-1]  # a path may have colons of its own
        pod = None if _SESSIONS in path else _POD.search(path)
        if pod:
            inside = _CONTAINER.search(path, pod.end())
            return ProcessPod(pod[1].replace("_", "-"), inside[0] if inside else "")
    return None


class ProcessPods:
    """Reads /proc and the kubelet's log folders, below the given roots. Its methods block.

    `own_pids`: the pids are those of this process' own namespace, as a simulated node's are.
    """

    def __init__(
        self,
        *,
        proc_root: Path = Path("/proc"),
        log_root: Path = Path("/var/log"),
        own_pids: bool = False,
    ) -> None:
        self._own_pids = own_pids
        self._proc = proc_root
        self._logs = log_root

    def of(self, pids: Iterable[int]) -> Mapping[int, ProcessPod | None]:
        """The pods by pid: None for a process outside any pod, no entry where it is not known.

        Nothing is known in a container with a process namespace of its own: a pid is another
        process there.
        """
        if not self._sees_all():
            return {}
        texts = {pid: text for pid in pids if (text := self.cgroup(pid)) is not None}
        found = {pid: pod_of_cgroup(text) for pid, text in texts.items()}
        pods = [pod for pod in found.values() if pod]
        names = self._names() if pods else {}
        containers = self._containers({pod.container_id for pod in pods}) if pods else {}
        return {pid: pod and self._named(pod, names, containers) for pid, pod in found.items()}

    def running(self) -> frozenset[PodName]:
        """The pods with a process, as far as their names are known; none where `of` knows none."""
        if not self._sees_all():
            return frozenset()
        texts = (self.cgroup(int(name)) for name in _entries(self._proc) if name.isdecimal())
        pods = (pod_of_cgroup(text) for text in texts if text and _REMOVED not in text)
        names = self._names()
        return frozenset(names[pod.uid] for pod in pods if pod and pod.uid in names)

    def _sees_all(self) -> bool:
        return self._own_pids or sees_all_processes(self._proc)

    def cgroup(self, pid: int) -> str | None:
        """As `cgroup_of`."""
        return cgroup_of(pid, self._proc)

    def _names(self) -> dict[str, PodName]:
        """Pods by uid."""
        found = {}
        for entry in _entries(self._logs / "pods"):
            parts = entry.split("_")
            if len(parts) == 3:
                found[parts[2]] = PodName(parts[0], parts[1])
        return found

    def _containers(self, wanted: set[str]) -> dict[str, str]:
        """Names of containers by their ids."""
        found = {}
        for entry in _entries(self._logs / "containers"):
            name, _, container = entry.removesuffix(".log").rpartition("-")
            if container in wanted:
                found[container] = name.rpartition("_")[2]
        return found

    def _named(
        self, pod: ProcessPod, names: Mapping[str, PodName], containers: Mapping[str, str]
    ) -> ProcessPod:
        name = names.get(pod.uid)
        if name is None:
            return pod
        container = containers.get(pod.container_id) or self._only_container(name, pod.uid)
        return replace(pod, name=name, container=container)

    def _only_container(self, pod: PodName, uid: str) -> str:
        """The pod's container, if it never had another one."""
        found = list(_entries(self._logs / "pods" / f"{pod.namespace}_{pod.name}_{uid}"))
        return found[0] if len(found) == 1 else ""


def _entries(folder: Path) -> Iterator[str]:
    try:
        yield from os.listdir(folder)  # noqa: PTH208 - names are all that is needed
    except OSError:
        return


_SHORT_ID: Final = 12  # letters of a container's id that people and tools show
_UNIT: Final = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")
_SLURM: Final = re.compile(r"(?:.+_)?slurmstepd\.scope|slurmd\.service")  # of all users' jobs


class Owner(Struct, frozen=True, order=True):
    """The owner of processes on a device, or of its allocation; what is not known is empty.

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
    for line in cgroup.split("\n"):
        path = line.split(":", 2)[-1]
        if found := _CONTAINER.search(path):
            return Owner(container=found[0][:_SHORT_ID])
        units = _UNIT.findall(path)
        if units and _SESSIONS not in path and not unit:
            unit = units[-1]
    return Owner(unit=unit) if unit and not _SLURM.fullmatch(unit) else Owner(user=str(uid))


class ProcessOwners:
    """Looks processes up and remembers them as long as they are asked for. Its methods block."""

    def __init__(self, pods: ProcessPods) -> None:
        self._pods = pods
        self._known: dict[int, Owner] = {}

    def of(self, pids: Collection[int]) -> Mapping[int, Owner]:
        """The owners by pid; no entry for a process that is gone, or whose pod has no name yet.

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
        process, cgroup = inspect(pid), self._pods.cgroup(pid)
        if cgroup is None or not isinstance(process, Process):
            return None
        return outside_pods(cgroup, process.uids.effective)
