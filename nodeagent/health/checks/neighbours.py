"""What a GPU has unlike the node's other GPUs of its model, though it never changed."""

from collections import Counter
from collections.abc import Iterator

from nodeagent.health.checks.observation import GpuCheck, GpuView, Observation
from nodeagent.health.readings import GpuReading

_PCIE, _IDLE, _POWER, _ECC = "pcieUnlike", "pcieIdleUnlike", "powerLimitUnlike", "eccUnlike"


def traits_of(gpu: GpuReading) -> dict[str, tuple[int, ...]]:
    """What like GPUs have alike, by the cause that is raised where they do not; as it was read."""
    found = {
        _PCIE: (gpu.pcie_width_max, gpu.pcie_generation_max),
        # Under load the link is judged by itself; asleep, only by others that sleep.
        _IDLE: (gpu.pcie_width if gpu.under_load is False else None,),
        _POWER: (gpu.power_limit,),
        _ECC: (gpu.ecc_mode,),
    }
    return {
        cause: tuple(int(value) for value in values if value is not None)
        for cause, values in found.items()
        if None not in values
    }


def unlike(view: GpuView) -> Iterator[Observation]:
    """Compare with what most have, and of as many the higher. A wider link is no fault."""
    for cause, mine in view.past.traits.items() if view.gpu.complete else ():
        others = [other.traits[cause] for other in view.like if cause in other.traits]
        if not others:
            continue
        counts = Counter([mine, *others])
        usual = max(counts, key=lambda trait: (counts[trait], trait))
        is_less = any(a < b for a, b in zip(mine, usual, strict=True))
        is_other = is_less if cause in (_PCIE, _IDLE) else mine != usual
        evidence = f"{_said(cause, mine)}; GPUs like it: {_said(cause, usual)}"
        yield Observation(cause, is_other, evidence, unsure=is_other)


def _said(cause: str, trait: tuple[int, ...]) -> str:
    if cause == _IDLE:
        return f"{trait[0]} lanes while idle"
    if cause == _PCIE:
        return f"{trait[0]} lanes of generation {trait[1]} at most"
    return f"{trait[0] / 1000:.0f} W" if cause == _POWER else f"ECC {'on' if trait[0] else 'off'}"


CHECKS: tuple[GpuCheck, ...] = (unlike,)
