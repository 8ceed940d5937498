"""What is advised for the holders of slices, as a table drawn from the JSON of `/v1/advice`."""

from collections.abc import Sequence

from nodeagent.terminal.page import BLANK, Json, Line, Span, Tone, line, table
from nodeagent.text import gibibytes

_HEADER = ("WORKLOAD", "HAS", "PEAK", "OF", "ACTIVE", "HELD", "FREES", "ADVICE")
_TONES = {"smaller": Tone.NEW, "larger": Tone.WARNING, "keep": Tone.GOOD}


def advice_page(advice: Sequence[Json], namespace: str = "") -> tuple[Line, ...]:
    """One row for each holder, of this namespace if named, and kind of device; below why."""
    if not advice:
        of = f" in namespace {namespace}" if namespace else ""
        return (line(f"No holder{of} was seen yet; nodeagent status shows who uses what now"),)
    rows = table(_HEADER, map(_row, advice), right=frozenset(range(2, 7)))
    why = (f"{_name(one)}, {one['device']}: {'; '.join(one['why'])}." for one in advice)
    return (*rows, BLANK, *map(line, why))


def advised_words(one: Json) -> str:
    """`smaller: 1g.10gb`, `smaller: share of 4 GiB, 30 %`, `keep`, `not enough seen yet`."""
    if one["verdict"] == "notEnough":
        return "not enough seen yet"
    memory = f" of {gibibytes(one['memory'])}" if "memory" in one else ""
    threads = f", {one['threads']:g} %" if "threads" in one else ""
    return ": ".join(filter(None, (one["verdict"], f"{one.get('advised', '')}{memory}{threads}")))


def _row(one: Json) -> tuple[str | Span, ...]:
    return (
        _name(one),
        one["device"],
        gibibytes(one["peak"]) if "peak" in one else "-",
        gibibytes(one["granted"]),
        f"{one['activity']:.0f} %" if "activity" in one else "-",
        f"{one['held'] / 3600:.1f} h",
        f"{100 * one['freesPart']:.0f} %" if one.get("freesPart") else "-",
        Span(advised_words(one), _TONES.get(one["verdict"], Tone.PLAIN)),
    )


def _name(one: Json) -> str:
    name = "/".join(filter(None, (one.get("namespace"), one["workload"])))
    aside = one.get("container") or ("" if "namespace" in one else one.get("kind"))
    return f"{name} ({aside})" if aside else name
