"""What is advised for the holders of slices, as a table drawn from the JSON of `/v1/advice`."""

from collections.abc import Sequence

from nodeagent.terminal.page import Json, Line, Span, joined, line, table, toned
from nodeagent.text import gibibytes

_HEADER = ("HAS", ">PEAK", ">OF", ">ACTIVE", ">HELD", ">FREES", "ADVICE")


def advice_page(
    advice: Sequence[Json], namespace: str = "", workload: str = ""
) -> tuple[Line, ...]:
    """One row for each holder, of this namespace and name if given, and kind of device; below, why
    something else is advised, and of a named one why not, too. Cards are named where they differ.
    """
    if not advice:
        which = f" {workload}" if workload else ""
        of = f" in namespace {namespace}" if namespace else ""
        return (
            line(f"No holder{which}{of} was seen yet; nodeagent status shows who uses what now"),
        )
    cards = len({one["model"] for one in advice}) > 1
    header = ("WORKLOAD", *(["CARD"] if cards else []), *_HEADER)
    rows = ((_name(one), *([one["model"]] if cards else []), *_row(one)) for one in advice)
    told = (one for one in advice if workload or one["verdict"] in {"smaller", "larger"})
    why = [line(f"{_name(one)}, {one['device']}: {'; '.join(one['why'])}.") for one in told]
    return joined(table(header, rows), why)


def advised_words(one: Json) -> str:
    """`smaller: 1g.10gb`, `smaller: share of 4 GiB, 30 %`, `keep`, `not enough seen yet`."""
    if one["verdict"] == "notEnough":
        return "not enough seen yet"
    memory = f" of {gibibytes(one['memory'])}" if "memory" in one else ""
    threads = f", {one['threads']:g} %" if "threads" in one else ""
    return ": ".join(filter(None, (one["verdict"], f"{one.get('advised', '')}{memory}{threads}")))


def _row(one: Json) -> tuple[str | Span, ...]:
    return (
        one["device"],
        gibibytes(one["peak"]) if "peak" in one else "-",
        gibibytes(one["granted"]),
        f"{one['activity']:.0f} %" if "activity" in one else "-",
        f"{one['held'] / 3600:.1f} h",
        f"{100 * one['freesPart']:.0f} %" if one.get("freesPart") else "-",
        Span(advised_words(one), toned(one["verdict"]).tone),
    )


def _name(one: Json) -> str:
    name = "/".join(filter(None, (one.get("namespace"), one["workload"])))
    aside = one.get("container") or ("" if "namespace" in one else one.get("kind"))
    return f"{name} ({aside})" if aside else name
