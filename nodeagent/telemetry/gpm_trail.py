"""GPM of one GPU or instance: a metric is what happened between the last two samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodeagent.gpu.nvml_calls import GpmMetrics, GpmSamples


class GpmTrail:
    """Keeps the last sample, for the next one to be compared with."""

    def __init__(self, samples: GpmSamples) -> None:
        self._samples = samples
        self._last: Any = None

    def step(self, take: Callable[[Any], None], metrics: GpmMetrics) -> dict[int, float] | None:
        """Take a sample; the metrics since the last one, None at the first.

        Raises DriverError; then the trail begins anew.
        """
        sample, before, self._last = self._samples.take(), self._last, None
        try:
            take(sample)
            found = None if before is None else metrics.between(before, sample)
        except BaseException:
            self._samples.give_back(sample)
            raise
        finally:
            if before is not None:
                self._samples.give_back(before)
        self._last = sample
        return found

    def end(self) -> None:
        """Its GPU or instance is gone."""
        if self._last is not None:
            self._samples.give_back(self._last)
            self._last = None
