import math
import re
from collections.abc import Iterator

import pynvml
import pytest

from nodeagent.metrics import sources
from nodeagent.metrics.catalogue import Field, catalogue
from nodeagent.metrics.sources import Conversion, Raw, converted
from tools.make_metrics_page import PAGE, page, summary

ROWS = catalogue().fields


def _row(name: str) -> Field:
    row = catalogue().by_name.get(name)
    assert isinstance(row, Field), name
    return row


def _sources() -> Iterator[tuple[str, sources.Source]]:
    for row in ROWS:
        yield row.name, row.whole
        if row.part is not None:
            yield row.name, row.part
    for text in catalogue().texts:
        yield text.name, text.source


def test_every_numeric_field_of_nvml_is_there() -> None:
    assert (len(ROWS), len(catalogue().texts)) == (455, 18)
    assert len({row.id for row in ROWS}) == len({row.name for row in ROWS}) == len(ROWS)
    assert [row.id for row in ROWS] == sorted(row.id for row in ROWS)
    assert summary() == "455 numeric fields from NVML, 61 of them for GPU instances"


def test_a_field_is_found_by_each_of_its_names() -> None:
    names = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "dcgm_gpu_temp")
    assert len({_row(name).id for name in names}) == 1
    assert "DCGM_FI_DEV_GPU_TEMPERATUR" not in catalogue().by_name
    assert not catalogue().unavailable & catalogue().by_name.keys()


def test_what_sources_name_exists() -> None:
    for name, source in _sources():
        for constant, number in _constants(source):
            found = getattr(pynvml, constant, None)
            assert found is not None, (name, constant)
            assert number in (None, found), (name, constant)


def _constants(  # noqa: C901 # one case for each kind of source
    source: sources.Source,
) -> Iterator[tuple[str, int | None]]:
    match source:
        case sources.SystemCall(function):
            yield function, None
        case sources.VerdictCall(function, refusal):
            yield from ((function, None), (refusal, None))
        case sources.DeviceCall(function, arguments, _, structure):
            yield from ((word, None) for word in (function, *arguments))
            if structure:
                yield structure, None
        case sources.PeerCall(function, argument):
            yield from ((function, None), (argument, None))
        case sources.LinkCall(function, counter):
            yield from ((function, None), (counter, None))
        case sources.PortCounter(counter):
            yield counter, None
        case sources.FieldValue(number, constant):
            yield constant, number
        case sources.FieldRate(numbers, constants) | sources.Gpm(numbers, constants):
            yield from zip(constants, numbers, strict=True)
        case sources.GpmLink(first, step, constant):
            yield from ((constant.format(n=n), first + step * n) for n in range(18))
        case _:
            pass  # events have no call of their own


def test_nothing_that_blocks_is_asked() -> None:
    assert all("PcieThroughput" not in str(source) for _, source in _sources())


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page()
    assert set(_names(text)) >= {name for f in catalogue().fields for name in (f.name, f.renamed)}


def _names(text: str) -> Iterator[str]:
    """Those in the first column, one for each word in braces."""
    waiting = re.findall(r"`(DCGM_\S+?)`(?=[^|]* \| )", text)
    while waiting:
        before, opened, rest = waiting.pop().partition("{")
        if not opened:
            yield before
            continue
        inside, _, after = rest.partition("}")
        first, dots, last = inside.partition("..")
        words = range(int(first), int(last) + 1) if dots else inside.split(",")
        waiting += [f"{before}{word}{after}" for word in words]


CASES: list[tuple[Conversion, Raw, float | None]] = [
    (Conversion.AS_IS, 1980, 1980),
    (Conversion.THOUSANDTH, 68_123, 68.123),
    (Conversion.WHOLE_MEBIBYTES, 85_520_809_984, 81_559),
    (Conversion.WHOLE_MEBIBYTES, 1_048_575, 0),
    (Conversion.PERCENT_AS_RATIO, 37.5, 0.375),
    (Conversion.MEBIBYTES_AS_BYTES, 1.5, 1_572_864),
    (Conversion.MEMORY_TEMPERATURE, 95, 95),
    (Conversion.MEMORY_TEMPERATURE, 200, 200),
    (Conversion.MEMORY_TEMPERATURE, 255, None),
    (Conversion.BIT_ERROR_RATIO, (5 << 8) | 12, 5e-12),
    (Conversion.BIT_ERROR_RATIO, 0, 0.0),
    (Conversion.VERSION_PAIR, (9, 0), 589_824),
    (Conversion.USED_SHARE, (20, 100, 20), 0.25),
    (Conversion.USED_SHARE, (0, 20, 20), None),
    (Conversion.HOW_MANY, (0xDEAD, 0xBEEF), 2),
    (Conversion.HOW_MANY, (), 0),
    (Conversion.ANY_POSITIVE, (0, 0, 1), 1),
    (Conversion.ANY_POSITIVE, (0, 0), 0),
    (Conversion.AS_IS, math.nan, None),
]


@pytest.mark.parametrize(("conversion", "raw", "value"), CASES)
def test_a_value(conversion: Conversion, raw: Raw, value: float | None) -> None:
    """The exported value is the one worked out, or there is none."""
    result = converted(conversion, raw)
    assert result is None if value is None else result == pytest.approx(value, rel=1e-12)


def test_several_numbers_are_not_taken_for_one() -> None:
    with pytest.raises(TypeError, match="takes one number, not 2"):
        converted(Conversion.THOUSANDTH, (1, 2))
