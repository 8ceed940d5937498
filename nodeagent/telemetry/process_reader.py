"""Reads who runs on a GPU and its instances: their memory, and their share of its time.

In the GPU's own thread. A list takes the driver some milliseconds, so this is asked more seldom
than sensors are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeagent.errors import DriverError, DriverUnavailable, GpuLost
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import Process
from nodeagent.gpu.nvml_calls import ABSENT, call
from nodeagent.gpu.nvml_errors import NOT_FOUND, is_unsupported


@dataclass(frozen=True, slots=True)
class Running:
    """A process. `memory` in bytes, `multiprocessors` in percent; None: not known."""

    pid: int
    memory: int | None = None
    multiprocessors: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Who was found, by the id of the GPU instance; None for those outside any."""

    gpu: str
    running: Mapping[int | None, tuple[Running, ...]]


@dataclass(slots=True)
class ProcessReader:
    """One GPU's processes. Remembers up to when their work was told."""

    _until: int = 0
    _refused: set[str] = field(default_factory=set)

    def look(self, card: GpuDevice) -> ProcessSample:
        """Raises DriverError when the GPU does not even tell its compute processes."""
        nvml, device = card.nvml, card.handle
        found: dict[tuple[int | None, int], Process] = {}
        for name, ask, must in (
            ("compute", nvml.compute_processes, True),
            ("graphics", nvml.graphics_processes, False),
            ("mps", nvml.mps_processes, False),
        ):
            if name in self._refused:
                continue
            try:
                processes: Iterable[Process] = ask(device)
            except (GpuLost, DriverUnavailable):
                raise
            except DriverError as error:
                if must:
                    raise
                if is_unsupported(error):
                    self._refused.add(name)
                continue
            for process in processes:
                key = (process.gpu_instance, process.pid)
                if found.get(key) is None or found[key].memory is None:
                    found[key] = process
        busy = self._busy(card) if found else {}
        running: dict[int | None, list[Running]] = {}
        for (instance, pid), process in sorted(found.items(), key=lambda one: one[0][1]):
            one = Running(pid, process.memory, None if instance is not None else busy.get(pid))
            running.setdefault(instance, []).append(one)
        return ProcessSample(card.identity().uuid, {i: tuple(some) for i, some in running.items()})

    def _busy(self, card: GpuDevice) -> dict[int, float]:
        """Percent of the GPU's time by pid, as far as it is told; nothing with MIG on."""
        if _UTILIZATION in self._refused:
            return {}
        try:
            samples = call(_UTILIZATION, card.handle, self._until)
        except (GpuLost, DriverUnavailable) as error:
            if error.code not in ABSENT:
                raise
            return {}
        except DriverError as error:
            if error.code != NOT_FOUND and is_unsupported(error) and not _has_mig(card):
                self._refused.add(_UTILIZATION)
            return {}
        newest: dict[int, tuple[int, float]] = {}
        for sample in samples:
            at = int(sample.timeStamp)
            self._until = max(self._until, at)
            newest[int(sample.pid)] = max(
                newest.get(int(sample.pid), (0, 0.0)), (at, float(sample.smUtil))
            )
        return {pid: busy for pid, (_, busy) in newest.items()}


_UTILIZATION: Final = "nvmlDeviceGetProcessUtilization"


def _has_mig(card: GpuDevice) -> bool:
    """Whether what is refused now may be there later, with MIG off."""
    return card.mode() is not None
