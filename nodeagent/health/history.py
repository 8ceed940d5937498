"""What one reading of a GPU adds to its past."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nodeagent.health.heat_checks import REASONS
from nodeagent.health.limits import Limits
from nodeagent.health.readings import GpuReading
from nodeagent.health.state import GpuPast
from nodeagent.health.trails import Trail


def remembered(past: GpuPast, gpu: GpuReading, uptime: float, limits: Limits) -> GpuPast:
    """The past with this reading in it."""
    trails = dict(past.trails)
    for name, value, window in _counters(gpu, limits):
        if value is not None:
            trails[name] = trails.get(name, Trail()).grown(uptime, value, window)
    if gpu.throttling.reasons is not None:
        for name, bit in REASONS.items():
            active = bool(gpu.throttling.reasons & bit)
            trail = trails.get(name, Trail())
            trails[name] = trail.with_time(uptime, active, limits.throttling_window)
    up = frozenset() if gpu.mig else past.links_up
    recovery = gpu.recovery_action
    return replace(
        past,
        index=gpu.index,
        pci_bus_id=gpu.pci_bus_id or past.pci_bus_id,
        trails=trails,
        energy=past.energy if gpu.power.energy is None else gpu.power.energy,
        recovery=past.recovery if recovery is None else (recovery, uptime),
        links_up=up | {link.link for link in gpu.nvlinks if link.up},
        placements=past.placements
        if gpu.instances is None
        else {i.instance: i.placement for i in gpu.instances if i.placement is not None},
    )


def _counters(gpu: GpuReading, limits: Limits) -> Iterator[tuple[str, int | None, float]]:
    """Every counter whose growth matters: name, value, window in seconds."""
    read, window = gpu.throttling, limits.throttling_window
    yield "power", read.power, window
    yield "thermal", read.thermal, window
    yield "softwareThermal", read.software_thermal, window
    yield "hardwareThermal", read.hardware_thermal, window
    yield "powerBrake", read.power_brake, window
    yield "replays", gpu.pcie.replays, limits.replay_window
    for link in gpu.nvlinks:
        errors = [count for count in (link.replays, link.recoveries) if count is not None]
        total = sum(errors) if errors else None
        yield f"link{link.link}", total, limits.nvlink_window
        yield f"crc{link.link}", link.crc_errors, limits.crc_window
