"""Who is on a GPU, as far as NVML tells: the process lists of the GPU or of its MIG devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from nodeagent.errors import DriverError, DriverUnavailable, GpuLost
from nodeagent.gpu.nvml import Device, Nvml, Process
from nodeagent.gpu.nvml_errors import is_unsupported
from nodeagent.plan.observed import Usage, User
from nodeagent.processes import name_of


@dataclass(frozen=True, slots=True)
class _Seen:
    """A process of one of the lists; `source` as in `User`."""

    process: Process
    source: str


class ProcessLists:
    """The lists of one device, read at one moment.

    `problem` says why they are not complete; then nobody may be taken for idle by them.
    """

    def __init__(self, nvml: Nvml, device: Device) -> None:
        self.problem = ""
        self._nvml = nvml
        seen = self._read(nvml.compute_processes, device, "process", must=True)
        seen += self._read(nvml.graphics_processes, device, "process", must=False)
        seen += self._read(nvml.mps_processes, device, "mps", must=False)
        self._seen = seen

    def _read(
        self,
        ask: Callable[[Device], Iterable[Process]],
        device: Device,
        source: str,
        *,
        must: bool,
    ) -> list[_Seen]:
        try:
            return [_Seen(process, source) for process in ask(device)]
        except (GpuLost, DriverUnavailable):
            raise
        except DriverError as error:
            # A card without graphics or MPS has no such list, and so nobody on it.
            if must or not is_unsupported(error):
                self.problem = self.problem or str(error)
            return []

    def on_all(self) -> Usage:
        """Everybody on the device."""
        return self._usage(self._seen)

    def on_instance(self, instance: int, compute: int) -> Usage:
        """Those on one compute instance, and those of whom only the GPU instance is told."""
        return self._usage(
            s
            for s in self._seen
            if s.process.gpu_instance == instance and s.process.compute_instance in {compute, None}
        )

    def on_no_instance_of(self, known: Iterable[tuple[int, int]]) -> Usage:
        """Those who are not on one of the `known` (GPU instance id, compute instance id)."""
        pairs = set(known)
        instances = {instance for instance, _ in pairs}
        return self._usage(
            s
            for s in self._seen
            if (s.process.gpu_instance, s.process.compute_instance) not in pairs
            and not (s.process.compute_instance is None and s.process.gpu_instance in instances)
        )

    def _usage(self, seen: Iterable[_Seen]) -> Usage:
        # MPS clients are in the compute list too; the MPS list comes last and knows better.
        users = {s.process.pid: self._user(s) for s in seen}
        return Usage(
            tuple(users[pid] for pid in sorted(users)),
            known=not self.problem,
            reason=self.problem,
        )

    def _user(self, seen: _Seen) -> User:
        pid = seen.process.pid
        return User(pid, name_of(pid) or self._name(pid), seen.source, seen.process.memory)

    def _name(self, pid: int) -> str:
        """The driver may know processes that are not in our /proc."""
        try:
            return PurePosixPath(self._nvml.process_name(pid)).name
        except DriverError:
            return ""
