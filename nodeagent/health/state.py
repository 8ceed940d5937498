"""What is remembered between two readings: findings, counters' trails, counts of XIDs.

It is a value, so that it can be written down (`state_file`) and outlive the agent.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.health.findings import Finding, Key, Moment, Seconds
from nodeagent.health.readings import XidEvent
from nodeagent.plan.observed import Placement
from nodeagent.structs import Struct, field

_PARTS = 12  # samples that are kept of a window, the newest beside them


class Trail(Struct, frozen=True):
    """Samples of a counter, oldest first, as (uptime in seconds, value)."""

    samples: tuple[tuple[Seconds, float], ...] = ()

    def grown(self, at: float, value: float, window: float) -> Trail:
        """Append a sample; what is older than `window` seconds goes.

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
        """Append a sampled state: the counter grows by the seconds for which it was active.

        A gap counts as two parts of the window at most: nothing was read in the rest of it.
        """
        if not self.samples:
            return self.grown(at, 0.0, window)
        before, total = self.samples[-1]
        step = min(max(at - before, 0.0), 2 * window / _PARTS) if active else 0.0
        return self.grown(at, total + step, window)

    @property
    def growth(self) -> float | None:
        """The growth since the oldest sample; None with fewer than two."""
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


class Hold(Struct, frozen=True):
    """Since when (uptime, seconds) an observation has been there, or not, without a break.

    `key` is that of the finding which it raises.
    """

    key: Key
    present: bool
    since: Seconds


class GpuHistory(Struct, frozen=True):
    """One GPU's past in this boot.

    `mig`: whether it was in MIG mode when it was read last. `recovery` is the driver's last word on
    what the GPU needs, as (code, uptime). `links_up` are the NVLinks that were up once. `traits`:
    figures that like GPUs share. `checked` are the checks for which anything was ever read.
    """

    index: int = 0
    pci_bus_id: str = ""
    mig: bool | None = None
    trails: Mapping[str, Trail] = field(default_factory=dict)
    energy: int | None = None
    recovery: tuple[int, Seconds] | None = None
    links_up: frozenset[int] = frozenset()
    traits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    checked: frozenset[str] = frozenset()
    placements: Mapping[int, Placement] = field(default_factory=dict)


class XidCount(Struct, frozen=True):
    """A counter of one XID of a GPU (or a GPU instance of it), with the last time.

    The uptime of that is 0 where it was in an earlier boot, or in an instance that is gone.
    """

    gpu: str
    xid: int
    instance: int | None
    count: int
    last: Moment


class XidRepair(Struct, frozen=True):
    """A reset or reboot that ended a finding: when (1970, seconds), and of which XID."""

    gpu: str
    xid: int
    wall: float


class HealthState(Struct, frozen=True):
    """All that health knows. `boot_id` is empty, and `at` None, before the first reading.

    `recent_xids` are those that one source reported, until the other source's report came or never
    will. `kernel_log_read` is the number of the last record of the kernel log that was read in this
    boot; a reader that starts again begins after it.
    """

    boot_id: str = ""
    at: Moment | None = None
    findings: tuple[Finding, ...] = ()
    gpus: Mapping[str, GpuHistory] = field(default_factory=dict)
    holds: tuple[Hold, ...] = ()
    recent_xids: tuple[XidEvent, ...] = ()
    xids: tuple[XidCount, ...] = ()
    repairs: tuple[XidRepair, ...] = ()
    kernel_log_read: int = -1
