"""Heat, power and the clocks that suffer from them."""

from collections.abc import Iterator

from nodeagent.health import limits
from nodeagent.health.checks.observation import GpuCheck, GpuView, Observation

# NVML's bits of why clocks are lower, and what is raised when they are set often.
REASONS = {"hwSlowdown": 0x8, "hwThermalSlowdown": 0x40, "hwPowerBrake": 0x80}

_NANOSECONDS = 1e9


def throttling(view: GpuView) -> Iterator[Observation]:
    """The share of the window in which policies held the clocks down, by the driver's counters."""
    shares = [_share(view, name) for name in ("thermal", "softwareThermal")]
    known = [share for share in shares if share is not None]
    heat = max(known, default=None)
    band = (limits.THROTTLING_RAISE, limits.THROTTLING_CLEAR)
    yield _often("throttledByHeat", view, heat, band)
    power = _share(view, "power")
    yield _often("throttledByPower", view, power, (limits.POWER_RAISE, limits.POWER_CLEAR))


def clocks(view: GpuView) -> Iterator[Observation]:
    """Slowdowns by the hardware, by the driver's counters where there are any, else as sampled."""
    band = (limits.THROTTLING_RAISE, limits.THROTTLING_CLEAR)
    counters = {"hwThermalSlowdown": "hardwareThermal", "hwPowerBrake": "powerBrake"}
    for cause in REASONS:
        share = _share(view, counters[cause]) if cause in counters else None
        if share is None:
            share = view.trail(cause).rate(limits.THROTTLING_WINDOW)
        yield _often(cause, view, share, band)


def _share(view: GpuView, name: str) -> float | None:
    rate = view.trail(name).rate(limits.THROTTLING_WINDOW)
    return None if rate is None else rate / _NANOSECONDS


def _often(
    cause: str, view: GpuView, share: float | None, band: tuple[float, float]
) -> Observation:
    if share is None:
        return Observation(cause, None)
    window = limits.THROTTLING_WINDOW
    evidence = f"{min(share, 1.0):.0%} of the last {window:.0f} s{_figures(view)}"
    return Observation(cause, view.above(cause, share, band), evidence)


def _figures(view: GpuView) -> str:
    """Temperature and power beside it, where they are known."""
    degrees, power, limit = view.gpu.temperature, view.gpu.power, view.gpu.power_limit
    figures = [f"{degrees} °C"] if degrees is not None else []
    if power is not None and limit is not None:
        figures.append(f"{power / 1000:.0f} of {limit / 1000:.0f} W")
    return f" ({', '.join(figures)})" if figures else ""


def temperature(view: GpuView) -> Iterator[Observation]:
    """Report the margin at which the GPU, and its memory, protect themselves."""
    read = view.gpu
    margin = read.temperature_margin
    if margin is None:
        margin = _left(read.temperature, read.slowdown_temperature)
    yield _margin("tooHot", view, margin, read.temperature)
    left = _left(read.memory_temperature, read.memory_temperature_max)
    yield _margin("memoryTooHot", view, left, read.memory_temperature)


def _left(degrees: int | None, limit: int | None) -> int | None:
    return None if degrees is None or limit is None else limit - degrees


def _margin(cause: str, view: GpuView, margin: int | None, degrees: int | None) -> Observation:
    if margin is None:
        return Observation(cause, None)
    raised = cause in view.raised
    limit = limits.MARGIN_CLEAR if raised else limits.MARGIN_RAISE
    at = f"{degrees} °C, " if degrees is not None else ""
    left = f"{margin} °C to" if margin > 0 else f"{-margin} °C above" if margin else "at"
    return Observation(cause, margin <= limit, f"{at}{left} the limit")


CHECKS: tuple[GpuCheck, ...] = (throttling, clocks, temperature)
