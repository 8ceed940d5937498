"""Where a field's value comes from: a closed union of the ways in which NVML reports values.

A row of the catalogue names its source; the sampler groups the rows by it, so that one call
serves all rows that need it. Functions and constants have pynvml's names. What comes back is put
into the exported unit by the source's conversion.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

ALL_LINKS = 0xFFFFFFFF  # NVML's scopeId for the sum over all NVLinks of a GPU


class EachLink(StrEnum):
    """Stands where a link's number would: one value for each link that the GPU has."""

    EACH = "each"


EACH_LINK = EachLink.EACH
Link = int | EachLink


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


class _Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    conversion: Conversion = Conversion.AS_IS


class SystemCall(_Source, frozen=True, tag_field="from", tag="system"):
    """A call about the node; `items` are the attributes wanted of the structure it returns."""

    function: str
    items: tuple[str, ...] = ()


class DeviceCall(_Source, frozen=True, tag_field="from", tag="device"):
    """A call about a device handle.

    `arguments` are names of constants that follow the handle. `items` are what is wanted of a
    structure (attributes) or of a tuple (positions in digits); empty: the answer itself. The
    conversion gets one number for one item, a tuple of them for several. `structure` names what
    pynvml wants to be given to fill, where it does not make it itself.
    """

    function: str
    arguments: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    structure: str = ""


class VerdictCall(_Source, frozen=True, tag_field="from", tag="verdict"):
    """A call that returns nothing: 1 when it succeeds, 0 when it fails with `refusal`."""

    function: str
    refusal: str


class PeerCall(_Source, frozen=True, tag_field="from", tag="peers"):
    """A call about a GPU and each of the others: bit i of the value is set where GPU i says OK."""

    function: str
    argument: str


class LinkCall(_Source, frozen=True, tag_field="from", tag="link"):
    """A call about one NVLink: handle, link number, `counter` (name of a constant)."""

    function: str
    counter: str
    link: Link


class PortCounter(_Source, frozen=True, tag_field="from", tag="port"):
    """A counter of each NVLink's port, read by nvmlDeviceReadPRMCounters_v1 (needs root)."""

    counter: str


class FieldValue(_Source, frozen=True, tag_field="from", tag="field"):
    """An entry of the one nvmlDeviceGetFieldValues call for a GPU.

    `scope` is the entry's scopeId: 0 unless the field is one of links.
    """

    field: int
    constant: str
    scope: Link = 0


class FieldRate(_Source, frozen=True, tag_field="from", tag="fieldRate"):
    """What the sum of some field values grew by, for each second between two readings."""

    fields: tuple[int, ...]
    constants: tuple[str, ...]
    scope: Link = 0


class Gpm(_Source, frozen=True, tag_field="from", tag="gpm"):
    """The mean of some GPM metrics between two samples: of the GPU, or of a GPU instance.

    Metrics that the GPU or the instance does not have are left out of the mean.
    """

    metrics: tuple[int, ...]
    constants: tuple[str, ...]


class GpmLink(_Source, frozen=True, tag_field="from", tag="gpmLink"):
    """A GPM metric of each NVLink: link n has the number `first + step * n`."""

    first: int
    step: int
    constant: str


class Happening(StrEnum):
    """What events a row follows."""

    XID = "xid"  # the last XID; the event carries GPU instance and compute instance
    NVLINK_XID = "nvlinkXid"  # the last XID 74
    BINDING = "binding"  # the last driver bind (2) or unbind (1) of a GPU
    # What dcgm-exporter itself makes of several readings
    XIDS = "xids"  # how many there were in the last five minutes
    CLOCKS = "clocks"  # how many readings of them said what holds the clocks down
    HEALTH = "health"  # of each check: 0 well, 10 degraded, 20 unhealthy


class EventCount(_Source, frozen=True, tag_field="from", tag="event"):
    """What came of events and not of one reading; nothing before the first."""

    happening: Happening


Source = (
    SystemCall
    | DeviceCall
    | VerdictCall
    | PeerCall
    | LinkCall
    | PortCounter
    | FieldValue
    | FieldRate
    | Gpm
    | GpmLink
    | EventCount
)


# --- how what NVML answers becomes the value that is exported ---

Number = int | float
Raw = Number | tuple[Number, ...]

_MEBIBYTE = 1 << 20
_HOTTEST_MEMORY = 200  # degrees; what some boards say above it means "no sensor"


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
    Conversion.MEMORY_TEMPERATURE: lambda value: value if value <= _HOTTEST_MEMORY else None,
    Conversion.BIT_ERROR_RATIO: _bit_error_ratio,
}
_OF_SEVERAL: Mapping[Conversion, Callable[[Sequence[Number]], Number | None]] = {
    Conversion.VERSION_PAIR: lambda pair: int(pair[0]) << 16 | int(pair[1]),
    Conversion.USED_SHARE: _used_share,
    Conversion.HOW_MANY: len,
    Conversion.ANY_POSITIVE: lambda numbers: int(any(number > 0 for number in numbers)),
}
