"""What is remembered between two readings: findings, counters' trails, counts of XIDs.

It is a value, so that it can be written down (`state_json`) and outlive the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.health.findings import Finding, Key, Moment
from nodeagent.health.readings import Source
from nodeagent.health.trails import Trail
from nodeagent.plan.observed import Placement


@dataclass(frozen=True, slots=True)
class Hold:
    """Since when (uptime, seconds) a sign has been there, or not been there, without a break."""

    present: bool
    since: float


@dataclass(frozen=True, slots=True)
class GpuPast:
    """One GPU's past in this boot.

    `recovery` is the driver's last word on what the GPU needs, as (code, uptime). `links_up` are
    the NVLinks that were up once. `judged` are the checks for which anything was ever read.
    """

    index: int = 0
    pci_bus_id: str = ""
    trails: Mapping[str, Trail] = field(default_factory=dict)
    energy: int | None = None
    recovery: tuple[int, float] | None = None
    links_up: frozenset[int] = frozenset()
    judged: frozenset[str] = frozenset()
    placements: Mapping[int, Placement] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heard:
    """An XID that one source told, until the other source's word of it came or never will."""

    gpu: str
    xid: int
    source: Source
    at: float
    instance: int | None = None
    compute: int | None = None


@dataclass(frozen=True, slots=True)
class XidCount:
    """How often a GPU (or a GPU instance of it) had an XID: a true counter, and the last time."""

    gpu: str
    xid: int
    instance: int | None
    count: int
    last: Moment


@dataclass(frozen=True, slots=True)
class Repair:
    """A reset or reboot that ended a finding: when (1970, seconds), and of which XID."""

    gpu: str
    xid: int
    wall: float


@dataclass(frozen=True, slots=True)
class HealthState:
    """Everything. `boot_id` is empty, and `at` None, before the first reading.

    `kernel_log_read` is the number of the last record of the kernel log that was heard in this
    boot; a reader that starts again begins after it.
    """

    boot_id: str = ""
    at: Moment | None = None
    findings: tuple[Finding, ...] = ()
    gpus: Mapping[str, GpuPast] = field(default_factory=dict)
    holds: Mapping[Key, Hold] = field(default_factory=dict)
    heard: tuple[Heard, ...] = ()
    xids: tuple[XidCount, ...] = ()
    repairs: tuple[Repair, ...] = ()
    kernel_log_read: int = -1
