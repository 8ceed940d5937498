"""Heat, power and the clocks that suffer from them."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.health.checks.observation import GpuCheck, Look, Sign

# NVML's bits of why clocks are lower, and what is raised when they are set often.
REASONS = {"hwSlowdown": 0x8, "hwThermalSlowdown": 0x40, "hwPowerBrake": 0x80}

_NANOSECONDS = 1e9


def throttling(look: Look) -> Iterator[Sign]:
    """The share of the window in which policies held the clocks down, by the driver's counters."""
    limits = look.limits
    shares = [_share(look, name) for name in ("thermal", "softwareThermal")]
    told = [share for share in shares if share is not None]
    heat = max(told, default=None)
    band = (limits.throttling_raise, limits.throttling_clear)
    yield _often("throttledByHeat", look, heat, band)
    power = _share(look, "power")
    yield _often("throttledByPower", look, power, (limits.power_raise, limits.power_clear))


def clocks(look: Look) -> Iterator[Sign]:
    """Slowdowns by the hardware, by the driver's counters where there are any, else as sampled."""
    band = (look.limits.throttling_raise, look.limits.throttling_clear)
    counters = {"hwThermalSlowdown": "hardwareThermal", "hwPowerBrake": "powerBrake"}
    for cause in REASONS:
        share = _share(look, counters[cause]) if cause in counters else None
        if share is None:
            share = look.trail(cause).rate(look.limits.throttling_window)
        yield _often(cause, look, share, band)


def _share(look: Look, name: str) -> float | None:
    rate = look.trail(name).rate(look.limits.throttling_window)
    return None if rate is None else rate / _NANOSECONDS


def _often(cause: str, look: Look, share: float | None, band: tuple[float, float]) -> Sign:
    if share is None:
        return Sign(cause, None)
    window = look.limits.throttling_window
    evidence = f"{min(share, 1.0):.0%} of the last {window:.0f} s{_figures(look)}"
    return Sign(cause, look.above(cause, share, band), evidence)


def _figures(look: Look) -> str:
    """Temperature and power beside it, where they are known."""
    degrees, power = look.gpu.temperature.gpu, look.gpu.power
    figures = [f"{degrees} °C"] if degrees is not None else []
    if power.usage is not None and power.limit is not None:
        figures.append(f"{power.usage / 1000:.0f} of {power.limit / 1000:.0f} W")
    return f" ({', '.join(figures)})" if figures else ""


def temperature(look: Look) -> Iterator[Sign]:
    """What is left until the GPU, and its memory, protect themselves."""
    read = look.gpu.temperature
    margin = read.margin
    if margin is None and read.gpu is not None and read.slowdown is not None:
        margin = read.slowdown - read.gpu
    yield _margin("tooHot", look, margin, read.gpu)
    left = None
    if read.memory is not None and read.memory_max is not None:
        left = read.memory_max - read.memory
    yield _margin("memoryTooHot", look, left, read.memory)


def _margin(cause: str, look: Look, margin: int | None, degrees: int | None) -> Sign:
    if margin is None:
        return Sign(cause, None)
    raised = (cause, -1) in look.raised
    limit = look.limits.margin_clear if raised else look.limits.margin_raise
    at = f"{degrees} °C, " if degrees is not None else ""
    return Sign(cause, margin <= limit, f"{at}{margin} °C to the limit")


CHECKS: tuple[GpuCheck, ...] = (throttling, clocks, temperature)
