"""What ends a finding that no reading ends: time, or the end of what it hit."""

from __future__ import annotations

from nodeagent.health.findings import End, Finding, Moment, Severity
from nodeagent.health.limits import Limits
from nodeagent.health.readings import GpuReading
from nodeagent.health.table import BY_CAUSE


def ending_of(finding: Finding, gpu: GpuReading | None, now: Moment, limits: Limits) -> End | None:
    """Why the finding is over now, if it is. `gpu` is the new reading of its GPU, if any."""
    ends = BY_CAUSE[finding.cause].ends
    if End.GONE in ends:  # a reading ends it
        return None
    minor = finding.severity is Severity.HEALTHY
    if (minor or End.INSTANCE_GONE in ends) and _instance_gone(finding, gpu):
        return End.INSTANCE_GONE
    if minor or (End.LAPSED in ends and finding.severity is not Severity.UNHEALTHY):
        patience = limits.application_lapse if minor else limits.told_lapse
        if now.uptime - finding.last.uptime >= patience:
            return End.LAPSED
    return None


def _instance_gone(finding: Finding, gpu: GpuReading | None) -> bool:
    """Its GPU instance is not there any more, or another one has its id."""
    place = finding.place
    if place.instance is None or gpu is None or gpu.instances is None:
        return False
    there = next((i for i in gpu.instances if i.instance == place.instance), None)
    if there is None:
        return True
    return None not in (place.placement, there.placement) and place.placement != there.placement
