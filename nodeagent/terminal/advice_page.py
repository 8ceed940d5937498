"""What is advised for the holders of slices, as a table drawn from the JSON of `/v1/advice`."""

from collections.abc import Sequence

from nodeagent.terminal.page import BLANK, Json, Line, Span, Tone, line, table
from nodeagent.text import gibibytes

_HEADER = ("WORKLOAD", "HAS", "PEAK", "OF", "ACTIVE", "HELD", "FREES", "ADVICE")
_NUMBERS = frozenset({2, 3, 4, 5, 6})
_TONES = {"smaller": Tone.NEW, "larger": Tone.WARNING, "keep": Tone.GOOD}
_UNKNOWN = "-"


def advice_page(advice: Sequence[Json], namespace: str = "") -> tuple[Line, ...]:
    """One row for each holder, of this namespace if named, and kind of device; below why."""
    if not advice:
        of = f" in namespace {namespace}" if namespace else ""
        return (line(f"No holder{of} was seen yet; nodeagent status shows who uses what now"),)
    rows = table(_HEADER, map(_row, advice), right=_NUMBERS)
    return (*rows, BLANK, *(line(f"{_name(one)}: {'; '.join(one['why'])}.") for one in advice))


def advised_words(one: Json) -> str:
    """`smaller: 1g.10gb`, `smaller: share of 4 GiB, 30 %`, `keep`, `not enough seen yet`."""
    if one["verdict"] == "notEnough":
        return "not enough seen yet"
    memory = f" of {gibibytes(one['memory'])}" if "memory" in one else ""
    threads = f", {one['threads']:g} %" if "threads" in one else ""
    advised = f"{one.get('advised', '')}{memory}{threads}"
    return ": ".join(filter(None, (str(one["verdict"]), advised)))


def _row(one: Json) -> tuple[str | Span, ...]:
    return (
        _name(one),
        one["device"],
        gibibytes(one["peak"]) if "peak" in one else _UNKNOWN,
        gibibytes(one["granted"]),
        f"{one['activity']:.0f} %" if "activity" in one else _UNKNOWN,
        f"{one['held'] / 3600:.0f} h",
        f"{100 * one['freesPart']:.0f} %" if one.get("freesPart") else _UNKNOWN,
        Span(advised_words(one), _TONES.get(one["verdict"], Tone.PLAIN)),
    )


def _name(one: Json) -> str:
    name = "/".join(filter(None, (one.get("namespace"), one["workload"])))
    return f"{name} ({one['container']})" if "container" in one else name
