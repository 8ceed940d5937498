"""PCIe, NVLink and the fabric."""

from collections.abc import Iterator

from nodeagent.health import limits
from nodeagent.health.checks.observation import GpuCheck, GpuView, Observation
from nodeagent.health.readings import Fabric
from nodeagent.text import index_ranges

_WHOLE_LINK = 16  # lanes, where the width is not known


def pcie(view: GpuView) -> Iterator[Observation]:
    """Replays a minute and lane, and a link below what it can do."""
    read = view.gpu
    generation = read.pcie_generation_max or read.pcie_generation
    rate = view.trail("replays").rate(limits.REPLAY_WINDOW)
    raise_at = limits.REPLAYS_RAISE.get(generation or 0)
    if rate is not None and raise_at is not None:
        a_minute = rate * 60 / (read.pcie_width_max or read.pcie_width or _WHOLE_LINK)
        band = (raise_at, raise_at * limits.REPLAYS_CLEAR)
        yield Observation(
            "pcieReplays",
            view.above("pcieReplays", a_minute, band),
            f"{a_minute:.2f} replays a minute and lane (limit {raise_at} for generation "
            f"{generation})",
        )
    link = (
        f"generation {read.pcie_generation} of {read.pcie_generation_max}, "
        f"{read.pcie_width} of {read.pcie_width_max} lanes"
    )
    yield Observation("pcieLink", _narrow(view), f"{link} under load")


def _narrow(view: GpuView) -> bool | None:
    read = view.gpu
    if not read.under_load:  # idle links sleep: neither good nor bad
        return None
    figures = (
        (read.pcie_generation, read.pcie_generation_max),
        (read.pcie_width, read.pcie_width_max),
    )
    pairs = [(now, most) for now, most in figures if now is not None and most is not None]
    return any(now < most for now, most in pairs) if pairs else None


def nvlink(view: GpuView) -> Iterator[Observation]:
    """Links that are down, and their errors. In MIG mode there is no traffic to suffer."""
    if not view.gpu.nvlinks:
        return
    down = frozenset(link.link for link in view.gpu.nvlinks if link.up is False)
    if view.gpu.mig:
        down = frozenset()
    lost = tuple(sorted(down & view.past.links_up))
    verb = "is down, was up" if len(lost) == 1 else "are down, were up"
    yield Observation("nvlinkDown", bool(lost), f"{_links(lost)} {verb}", parts=lost)
    never = down - view.past.links_up
    missing, why = _missing(view, never)
    parts = tuple(sorted(missing or ()))
    yield Observation(
        "nvlinkMissing",
        None if missing is None else bool(missing),
        f"{_links(parts)}, {why}",
        parts=parts,
        unsure=bool(view.gpu.mig) or missing is None or bool(missing),
    )
    numbers = [link.link for link in view.gpu.nvlinks]
    found = {n: growth for n in numbers if (growth := view.trail(f"link{n}").growth) is not None}
    bad = tuple(n for n, growth in found.items() if growth >= 1)
    yield Observation(
        "nvlinkErrors",
        bool(bad) if found else None,
        f"{_links(bad)}: {sum(found.values()):.0f} replays and recoveries in "
        f"{limits.NVLINK_WINDOW:.0f} s",
        parts=bad,
    )
    window, band = limits.CRC_WINDOW, (limits.CRC_RAISE, limits.CRC_CLEAR)
    rates = {n: rate for n in numbers if (rate := view.trail(f"crc{n}").rate(window)) is not None}
    bad = tuple(n for n, rate in rates.items() if view.above("nvlinkCrc", rate, band))
    yield Observation(
        "nvlinkCrc",
        bool(bad) if rates else None,
        f"{_links(bad)}: {sum(rates[n] for n in bad):.0f} CRC errors a second",
        parts=bad,
    )


def _links(numbers: tuple[int, ...]) -> str:
    return f"link{'s' if len(numbers) > 1 else ''} {index_ranges(numbers)}"


def _missing(view: GpuView, never: frozenset[int]) -> tuple[frozenset[int] | None, str]:
    """Which of the links that were `never` up in this boot should be up, and why; None: not known.
    Boards without a bridge have links that lead nowhere.
    """
    like_up = frozenset[int]().union(*(other.links_up for other in view.like))
    expected = never & like_up
    if expected and (view.past.links_up or view.switched):
        return expected, "up on a GPU like it"
    fabric = view.gpu.fabric
    if never and fabric is not None and (fabric.state, fabric.status) == (_COMPLETED, 0):
        degraded = fabric.health_mask >> _SHIFT["bandwidth"] & 0x3
        if degraded == _TRUE or not view.past.links_up:
            return never, "though the fabric has taken the GPU in"
        if degraded == _FALSE:
            return frozenset(), ""
    if never and not (like_up and view.past.links_up):
        return None, ""
    return frozenset(), ""


_NOT_SUPPORTED, _NOT_STARTED, _COMPLETED = 0, 1, 3

_TRUE, _FALSE = 1, 2  # values of a two-bit field; 0: not known
_SHIFT = {"bandwidth": 0, "route recovery": 2, "unhealthy route": 4, "access timeout": 6}
_CONFIGURATION_SHIFT, _CONFIGURATION_MASK, _CONFIGURATION_GOOD = 8, 0xF, (0, 1)
_SUMMARY = {2: "unhealthy", 3: "limited capacity"}


def fabric(view: GpuView) -> Iterator[Observation]:
    """Whether a GPU behind NVSwitches has joined, and what the fabric says of it."""
    read = view.gpu.fabric
    if read is None or read.state == _NOT_SUPPORTED:
        return
    waits = read.state != _COMPLETED
    word = "not started" if read.state == _NOT_STARTED else "in progress"
    yield Observation("fabricNotReady", waits, f"registration {word} (state {read.state})")
    failed = not waits and read.status != 0
    yield Observation("fabricFailed", failed, f"registration ended with NVML code {read.status}")
    faults = _fabric_faults(read)
    yield Observation("fabricDegraded", bool(faults), ", ".join(faults))


def _fabric_faults(read: Fabric) -> list[str]:
    faults = [name for name, shift in _SHIFT.items() if read.health_mask >> shift & 0x3 == _TRUE]
    configuration = read.health_mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_MASK
    if configuration not in _CONFIGURATION_GOOD:
        faults.append(f"incorrect configuration {configuration}")
    if read.summary in _SUMMARY:
        faults.append(f"summary {_SUMMARY[read.summary]}")
    return faults


CHECKS: tuple[GpuCheck, ...] = (pcie, nvlink, fabric)
