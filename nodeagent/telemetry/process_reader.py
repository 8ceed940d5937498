"""Reads the processes on a GPU and its instances, and what the agent's own process costs.

A list takes the driver some milliseconds, so it is read more seldom than sensors are, in the GPU's
own thread.
"""

import resource
import time
from functools import lru_cache

import psutil

from nodeagent.errors import DriverError, DriverUnavailable, GpuLost
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import call
from nodeagent.gpu.nvml_calls import ABSENT
from nodeagent.gpu.nvml_errors import NOT_FOUND, is_unsupported
from nodeagent.gpu.users import NvmlProcess, ProcessLists
from nodeagent.metrics.agent_metrics import AgentSample
from nodeagent.structs import Struct
from nodeagent.telemetry.samples import ProcessReading, ProcessSample


class ProcessReader(Struct):
    """One GPU's processes. Remembers up to when their work was read."""

    _until: int = 0
    _has_utilization: bool = True

    def read(self, gpu: GpuDevice) -> ProcessSample:
        """Read the GPU's processes. Raises DriverError if not even the compute ones are listed."""
        lists = ProcessLists(gpu.handle)
        if lists.compute_error:
            raise lists.compute_error
        # Of one in several lists, where its memory is known.
        found: dict[tuple[int | None, int], NvmlProcess] = {}
        for process, _ in lists.listed:
            key = (process.gpu_instance, process.pid)
            if key not in found or found[key].memory is None:
                found[key] = process
        if any(instance is not None for instance, _ in found):
            mode = gpu.mode()
            if mode is None or not mode.current:  # some drivers leave the number at 0
                found = {(None, pid): process for (_, pid), process in found.items()}
        busy = self._busy(gpu) if found else {}
        running: dict[int | None, list[ProcessReading]] = {}
        for (instance, pid), process in sorted(found.items(), key=lambda listed: listed[0][1]):
            reading = ProcessReading(
                pid, process.memory, None if instance is not None else busy.get(pid)
            )
            running.setdefault(instance, []).append(reading)
        return ProcessSample(gpu.identity().uuid, {i: tuple(some) for i, some in running.items()})

    def _busy(self, gpu: GpuDevice) -> dict[int, float]:
        """Percent of the GPU's time by pid, as far as it is known; nothing with MIG on."""
        if not self._has_utilization:
            return {}
        # By the wall clock, in microseconds; when that is set back, all is new again.
        self._until = min(self._until, time.time_ns() // 1000)
        try:
            samples = call("nvmlDeviceGetProcessUtilization", gpu.handle, self._until)
        except (GpuLost, DriverUnavailable) as error:
            if error.code not in ABSENT:
                raise
            return {}
        except DriverError as error:
            if error.code != NOT_FOUND and is_unsupported(error) and gpu.mode() is None:
                # With MIG, what is refused now may be there later, with MIG off.
                self._has_utilization = False
            return {}
        newest: dict[int, tuple[int, float]] = {}
        for sample in samples:
            at = int(sample.timeStamp)
            self._until = max(self._until, at)
            newest[int(sample.pid)] = max(
                newest.get(int(sample.pid), (0, 0.0)), (at, float(sample.smUtil))
            )
        return {pid: busy for pid, (_, busy) in newest.items()}


def process_samples() -> tuple[AgentSample, ...]:
    """The cost of the agent's process, under the names that every Prometheus client uses.

    Read now, in some 100 µs; nothing where /proc is not mounted.
    """
    try:
        own = psutil.Process()
        times, memory = own.cpu_times(), own.memory_info()
        most, _ = own.rlimit(resource.RLIMIT_NOFILE)
        return (
            AgentSample("process_cpu_seconds_total", times.user + times.system),
            AgentSample("process_resident_memory_bytes", memory.rss),
            AgentSample("process_virtual_memory_bytes", memory.vms),
            AgentSample("process_open_fds", own.num_fds()),
            AgentSample("process_max_fds", most),
            AgentSample("process_start_time_seconds", _started()),
        )
    except (psutil.Error, OSError):
        return ()


@lru_cache(maxsize=1)
def _started() -> float:
    """The start in Unix time, read once: it would move with the wall clock, as if restarted."""
    return psutil.Process().create_time()
