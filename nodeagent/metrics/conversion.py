"""How what NVML answers becomes the value that is exported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

Number = int | float
Raw = Number | tuple[Number, ...]

_MEBIBYTE = 1 << 20
_HOTTEST_MEMORY = 200  # degrees; what some boards say above it means "no sensor"


class Conversion(StrEnum):
    """The closed list of what is done to a raw value. Those that take several are marked."""

    AS_IS = "asIs"
    THOUSANDTH = "thousandth"  # mW -> W; KiB/s -> what DCGM calls MB/s; bytes/s -> KB/s
    WHOLE_MEBIBYTES = "wholeMebibytes"  # bytes -> MiB, cut down
    PERCENT_AS_RATIO = "percentAsRatio"  # 0-100 -> 0-1
    MEBIBYTES_AS_BYTES = "mebibytesAsBytes"  # MiB/s -> B/s
    MEMORY_TEMPERATURE = "memoryTemperature"  # implausible values are left out
    BIT_ERROR_RATIO = "bitErrorRatio"  # NVLink's packed mantissa and exponent
    VERSION_PAIR = "versionPair"  # (major, minor) -> major << 16 | minor
    USED_SHARE = "usedShare"  # (used, total, reserved) -> used / (total - reserved)
    HOW_MANY = "howMany"  # a list -> its length
    ANY_POSITIVE = "anyPositive"  # several -> 1 when one of them is above 0


def converted(conversion: Conversion, raw: Raw) -> Number | None:
    """The exported value of a raw one; None where the raw one says that there is no value.

    Raises TypeError when a conversion of one number gets several.
    """
    numbers = raw if isinstance(raw, tuple) else (raw,)
    if (several := _OF_SEVERAL.get(conversion)) is not None:
        value = several(numbers)
    elif isinstance(raw, tuple):
        raise TypeError(f"{conversion} takes one number, not {len(raw)}")
    else:
        value = _OF_ONE[conversion](raw)
    return value if value is None or math.isfinite(value) else None


def _plausible(temperature: Number) -> Number | None:
    return temperature if temperature <= _HOTTEST_MEMORY else None


def _bit_error_ratio(packed: Number) -> float:
    """Mantissa in bits 8 to 11, the exponent of ten (negative) in bits 0 to 7."""
    bits = int(packed)
    return float((bits >> 8) & 0xF) * 10.0 ** -(bits & 0xFF)


def _used_share(numbers: Sequence[Number]) -> float | None:
    used, total, reserved = numbers
    return used / (total - reserved) if total > reserved else None


_OF_ONE: Mapping[Conversion, Callable[[Number], Number | None]] = {
    Conversion.AS_IS: lambda value: value,
    Conversion.THOUSANDTH: lambda value: value / 1000,
    Conversion.WHOLE_MEBIBYTES: lambda value: int(value) // _MEBIBYTE,
    Conversion.PERCENT_AS_RATIO: lambda value: value / 100,
    Conversion.MEBIBYTES_AS_BYTES: lambda value: value * _MEBIBYTE,
    Conversion.MEMORY_TEMPERATURE: _plausible,
    Conversion.BIT_ERROR_RATIO: _bit_error_ratio,
}
_OF_SEVERAL: Mapping[Conversion, Callable[[Sequence[Number]], Number | None]] = {
    Conversion.VERSION_PAIR: lambda pair: int(pair[0]) << 16 | int(pair[1]),
    Conversion.USED_SHARE: _used_share,
    Conversion.HOW_MANY: len,
    Conversion.ANY_POSITIVE: lambda numbers: int(any(number > 0 for number in numbers)),
}
