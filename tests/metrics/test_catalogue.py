"""The catalogue: complete, consistent, and each of its sources exists in NVML's Python binding."""

from __future__ import annotations

from collections.abc import Iterator

import pynvml

from nodeagent.metrics.catalogue import Field, Kind, Level, Tier, WithMig, catalogue
from nodeagent.metrics.sources import (
    Conversion,
    DeviceCall,
    FieldRate,
    FieldValue,
    Gpm,
    GpmLink,
    LinkCall,
    PeerCall,
    PortCounter,
    Source,
    SystemCall,
    VerdictCall,
)
from tools.make_metrics_page import PAGE, page, summary

ROWS = catalogue().fields


def _row(name: str) -> Field:
    row = catalogue().by_name.get(name)
    assert isinstance(row, Field), name
    return row


def _sources() -> Iterator[tuple[str, Source]]:
    for row in ROWS:
        yield row.name, row.whole
        if row.part is not None:
            yield row.name, row.part
    for text in catalogue().texts:
        yield text.name, text.source


def test_every_numeric_field_of_nvml_is_there() -> None:
    """455 numeric fields come from NVML, each with a number and a name of its own."""
    from_nvml = catalogue().from_nvml
    assert (len(from_nvml), len(ROWS), len(catalogue().texts)) == (455, 459, 18)
    assert len({row.id for row in ROWS}) == len({row.name for row in ROWS}) == len(ROWS)
    assert [row.id for row in ROWS] == sorted(row.id for row in ROWS)
    assert summary() == "455 numeric fields from NVML, 61 of them for GPU instances"


def test_a_field_is_found_by_each_of_its_names() -> None:
    """Old name, name since DCGM 4.6 and that of dcgm-exporter 1 lead to one row."""
    names = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "dcgm_gpu_temp")
    assert len({_row(name).id for name in names}) == 1
    assert "DCGM_FI_DEV_GPU_TEMPERATUR" not in catalogue().by_name
    assert not catalogue().unavailable & catalogue().by_name.keys()


def test_what_sources_name_exists() -> None:
    """Each function, constant and structure is in nvidia-ml-py, field values with that number."""
    for name, source in _sources():
        for constant, number in _constants(source):
            found = getattr(pynvml, constant, None)
            assert found is not None, (name, constant)
            assert number in (None, found), (name, constant)


def _constants(  # noqa: C901 # one case for each kind of source
    source: Source,
) -> Iterator[tuple[str, int | None]]:
    match source:
        case SystemCall(function):
            yield function, None
        case VerdictCall(function, refusal):
            yield from ((function, None), (refusal, None))
        case DeviceCall(function, arguments, _, structure):
            yield from ((word, None) for word in (function, *arguments))
            if structure:
                yield structure, None
        case PeerCall(function, argument):
            yield from ((function, None), (argument, None))
        case LinkCall(function, counter):
            yield from ((function, None), (counter, None))
        case PortCounter(counter):
            yield counter, None
        case FieldValue(number, constant):
            yield constant, number
        case FieldRate(numbers, constants) | Gpm(numbers, constants):
            yield from zip(constants, numbers, strict=True)
        case GpmLink(first, step, constant):
            yield from ((constant.format(n=n), first + step * n) for n in range(18))
        case _:
            pass  # events and what the exporter composes have no call of their own


def test_what_there_is_with_mig() -> None:
    """Power stays with the GPU, memory is each instance's, utilization is made of GPM there."""
    power, memory = _row("DCGM_FI_DEV_POWER_USAGE"), _row("DCGM_FI_DEV_FB_USED")
    assert (power.level, power.with_mig, power.part) == (Level.GPU, WithMig.STAYS, None)
    assert (memory.level, memory.part) == (Level.GPU_INSTANCE, memory.whole)
    activity = _row("DCGM_FI_PROF_SM_ACTIVE")
    assert (
        activity.part
        == activity.whole
        == Gpm((2,), ("NVML_GPM_METRIC_SM_UTIL",), conversion=Conversion.PERCENT_AS_RATIO)
    )
    utilization = _row("DCGM_FI_DEV_GPU_UTIL")
    assert utilization.with_mig is WithMig.GONE
    assert utilization.part == Gpm((1,), ("NVML_GPM_METRIC_GRAPHICS_UTIL",))


def test_nothing_that_blocks_is_asked() -> None:
    """PCIe throughput, whose call takes 20 ms, is made of byte counters."""
    assert all("PcieThroughput" not in str(source) for _, source in _sources())


def test_counters_are_read_and_events_reported() -> None:
    """A rate is no counter, and only events and what is composed of them are reported."""
    for row in ROWS:
        if isinstance(row.whole, FieldRate):
            assert row.kind is Kind.GAUGE, row.name
    reported = {row.name for row in ROWS if row.tier is Tier.EVENT}
    assert "DCGM_FI_DEV_XID_ERRORS" in reported
    assert len(reported) == 7


def test_the_page_is_up_to_date() -> None:
    """docs/metrics.md is what tools/make_metrics_page.py writes."""
    assert PAGE.read_text(encoding="utf-8") == page()
