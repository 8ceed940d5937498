"""A machine's /proc and the kubelet's log folders, below a folder in the place of / ."""

from pathlib import Path

from nodeagent.cluster.kubelet.processes import ProcessPods
from nodeagent.plan.users import PodName


class Machine:
    """Processes by their cgroups, and pods by their logs; `pods` finds the ones by the others."""

    def __init__(self, root: Path) -> None:
        self.proc, self.logs = root / "proc", root / "log"
        self.pods = ProcessPods(proc_root=self.proc, log_root=self.logs)

    def runs(self, pid: int, cgroup: str) -> None:
        (self.proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_bytes(f"0::{cgroup}\n".encode())

    def ends(self, pid: int) -> None:
        """The process is gone; its pod's log stays."""
        (self.proc / str(pid) / "cgroup").unlink()

    def logs_of(self, pod: PodName, uid: str, *containers: str) -> None:
        for container in containers:
            (self.logs / f"pods/{pod.namespace}_{pod.name}_{uid}/{container}").mkdir(parents=True)
