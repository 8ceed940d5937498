"""How a counter grew in the last minutes: few samples, however often it is read."""

from __future__ import annotations

from dataclasses import dataclass

_PARTS = 12  # samples that are kept of a window, the newest beside them


@dataclass(frozen=True, slots=True)
class Trail:
    """Samples of a counter, oldest first, as (uptime in seconds, value)."""

    samples: tuple[tuple[float, float], ...] = ()

    def grown(self, at: float, value: float, window: float) -> Trail:
        """With one more sample; what is older than `window` seconds goes.

        A counter that went back was reset, and the trail begins anew. A sample that is not later
        than the last changes nothing.
        """
        if not self.samples or value < self.samples[-1][1]:
            return Trail(((at, value),))
        if at <= self.samples[-1][0]:
            return self
        kept = [sample for sample in self.samples if sample[0] >= at - window]
        if len(kept) >= 2 and kept[-1][0] - kept[-2][0] < window / _PARTS:
            kept.pop()
        return Trail((*kept, (at, value)))

    def with_time(self, at: float, active: bool, window: float) -> Trail:
        """The same for a state that is sampled: the counter grows by the seconds it was active.

        A gap counts as two parts of the window at most: nobody looked in the rest of it.
        """
        if not self.samples:
            return self.grown(at, 0.0, window)
        before, total = self.samples[-1]
        step = min(max(at - before, 0.0), 2 * window / _PARTS) if active else 0.0
        return self.grown(at, total + step, window)

    @property
    def growth(self) -> float | None:
        """By how much it grew since the oldest sample; None with fewer than two."""
        if len(self.samples) < 2:
            return None
        return self.samples[-1][1] - self.samples[0][1]

    def rate(self, window: float) -> float | None:
        """Growth a second; None while the samples span less than half of the window."""
        growth = self.growth
        if growth is None:
            return None
        span = self.samples[-1][0] - self.samples[0][0]
        return growth / span if span >= window / 2 else None
