"""GPM metrics of a GPU or a GPU instance: what happened between its last two samples.

All results are unpacked from the structure's memory in one go, since an access to a field of a
pynvml structure costs as much as a call.
"""

import struct
from collections.abc import Iterable
from typing import Any

import pynvml

from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import Device, call

_METRIC = struct.Struct("<IId24x")  # metricId, nvmlReturn, value; then names
_HEAD = 24  # bytes before the first metric


class GpmMetrics:
    """A request for some metrics: one NVML structure, which every request fills anew."""

    def __init__(self, metrics: Iterable[int]) -> None:
        wanted = sorted(metrics)
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(wanted)
        for index, metric in enumerate(wanted):
            self._request.metrics[index].metricId = metric
        results = memoryview(self._request).cast("B")
        self._results = results[_HEAD : _HEAD + len(wanted) * _METRIC.size]

    def between(self, first: Any, second: Any) -> dict[int, float]:
        """The metrics over the time between two samples, without those that failed."""
        self._request.sample1, self._request.sample2 = first, second
        call("nvmlGpmMetricsGet", self._request)
        return {
            metric: value for metric, code, value in _METRIC.iter_unpack(self._results) if not code
        }


class FreeSamples:
    """Samples of a GPU that are not in use. They live as long as the session of NVML, so those of
    earlier readers of the GPU are used again.
    """

    def __init__(self, gpu: GpuDevice, session: int) -> None:
        if gpu.gpm_samples[0] != session:  # the end of a session frees all
            gpu.gpm_samples = (session, [])
        self._allocated = gpu.gpm_samples[1]
        self._free = list(self._allocated)

    def pop(self) -> Any:
        if not self._free:
            sample = call("nvmlGpmSampleAlloc")
            self._allocated.append(sample)
            return sample
        return self._free.pop()

    def append(self, sample: Any) -> None:
        self._free.append(sample)


class GpmSampler:
    """Keeps the last sample of a GPU or, with `instance`, of one of its GPU instances."""

    def __init__(self, free: FreeSamples, instance: int | None = None) -> None:
        self._free = free
        self._instance = instance
        self._last: Any = None

    def step(self, gpu: Device, metrics: GpmMetrics) -> dict[int, float] | None:
        """Take a sample; returns the metrics since the last one, None for the first.

        Raises DriverError; the next sample is then a first one again.
        """
        sample = self._free.pop()
        before, self._last = self._last, None
        try:
            if self._instance is None:
                call("nvmlGpmSampleGet", gpu, sample)
            else:
                call("nvmlGpmMigSampleGet", gpu, self._instance, sample)
            found = None if before is None else metrics.between(before, sample)
        except BaseException:
            self._free.append(sample)
            raise
        finally:
            if before is not None:
                self._free.append(before)
        self._last = sample
        return found

    def end(self) -> None:
        if self._last is not None:
            self._free.append(self._last)
            self._last = None
