"""What one look at a GPU found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.health.readings import InstanceReading
from nodeagent.metrics.catalogue import Tier
from nodeagent.metrics.samples import GpuIdentity, SampleSet, Subject
from nodeagent.telemetry.health import FastHealth, SlowHealth


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What a look found. `samples` by tier; of health what was read in this look.

    `at` (monotonic) and `seconds` say when it ended and how long it took. `problems` are calls
    that failed, which the card should have.
    """

    gpu: GpuIdentity
    whole: Subject
    at: float
    seconds: float
    mig: bool | None
    slices: tuple[Subject, ...]
    samples: Mapping[Tier, SampleSet]
    fast_health: FastHealth | None = None
    slow_health: SlowHealth | None = None
    instances: tuple[InstanceReading, ...] | None = None
    problems: tuple[str, ...] = ()
