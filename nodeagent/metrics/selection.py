"""Which fields are wanted: dcgm-exporter's file of counters, read as it is.

A line says field, type and help; a field of type `label` becomes a label of every metric. Where
dcgm-exporter refuses to start over one line, that line is named here and the others count.
"""

import csv
import pkgutil
from functools import lru_cache

from nodeagent.errors import NodeagentError
from nodeagent.metrics.catalogue import Field, TextField, catalogue
from nodeagent.metrics.sources import EventCount, Happening
from nodeagent.structs import Struct
from nodeagent.text import did_you_mean

CLOCK_EVENT_REASONS = 112
MAX_LINES = 5000  # dcgm-exporter has fewer than 1,000 fields
_MAX_SUGGESTIONS = 10  # each compares a name with all fields, 2 to 8 ms
_MAX_QUOTED = 60  # characters of a value in a finding

_WRITTEN_AS_TYPES = ("gauge", "counter")
_TYPES = (*_WRITTEN_AS_TYPES, "histogram", "summary", "label")


class NoCounters(NodeagentError):
    """A file of counters selects nothing at all; the message says what is wrong with its lines."""


class SelectedField(Struct, frozen=True):
    """A field to be written under `name`, with the type and the help that the file gives it."""

    field: Field
    name: str
    type: str
    help: str


class SelectedLabel(Struct, frozen=True):
    """A field to become the label `name` of every metric."""

    field: Field | TextField
    name: str


class LineFault(Struct, frozen=True):
    """What is wrong with one line (counted from 1), and what would be right."""

    line: int
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        found = f"line {self.line}: {self.message}"
        return f"{found} ({self.remedy})" if self.remedy else found


class Selection(Struct, frozen=True):
    """What a file selects. Metrics are in the order of their field ids, labels by name."""

    metrics: tuple[SelectedField, ...]
    labels: tuple[SelectedLabel, ...]
    findings: tuple[LineFault, ...] = ()

    @property
    def fields(self) -> tuple[Field, ...]:
        wanted = [m.field for m in self.metrics]
        wanted += [label.field for label in self.labels if isinstance(label.field, Field)]
        if any(f.whole == EventCount(happening=Happening.CLOCKS) for f in wanted):
            wanted += [f for f in catalogue().fields if f.id == CLOCK_EVENT_REASONS]
        return tuple({f.id: f for f in wanted}.values())

    @property
    def texts(self) -> tuple[TextField, ...]:
        return tuple(label.field for label in self.labels if isinstance(label.field, TextField))


@lru_cache(maxsize=1)
def default_selection() -> Selection:
    """What is exported without a file of counters."""
    return read_selection(default_text())


def default_text() -> str:
    """The shipped file."""
    return (pkgutil.get_data("nodeagent.metrics", "default-counters.csv") or b"").decode()


def read_selection(text: str) -> Selection:
    """What a file selects, with a finding for each line that could not be used.

    Raises NoCounters when not one line could, and NodeagentError beyond MAX_LINES lines. The time
    it takes grows with the text's length and no faster.
    """
    lines = text.count("\n") + 1
    if lines > MAX_LINES:
        raise NodeagentError.of("countersTooLong", lines=f"{lines:,}", most=f"{MAX_LINES:,}")
    metrics: dict[str, SelectedField] = {}
    labels: dict[str, SelectedLabel] = {}
    findings: list[LineFault] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match _read(number, line.rstrip("\r"), suggest=len(findings) < _MAX_SUGGESTIONS):
            case LineFault() as finding:
                findings.append(finding)
            case SelectedField() as wanted if wanted.name in metrics:
                findings.append(LineFault(number, f"{wanted.name} is selected twice"))
            case SelectedField() as wanted:
                metrics[wanted.name] = wanted
            case SelectedLabel() as label:
                labels[label.name] = label
    if not metrics and not labels:
        faults = "; ".join(map(str, findings[:3])) or "it has only comments"
        more = f" (and {len(findings) - 3} more)" if len(findings) > 3 else ""
        raise NoCounters.of("countersSelectNothing", faults=f"{faults}{more}")
    return Selection(
        metrics=tuple(sorted(metrics.values(), key=lambda m: m.field.id)),
        labels=tuple(sorted(labels.values(), key=lambda label: label.name)),
        findings=tuple(findings),
    )


def _read(number: int, line: str, *, suggest: bool) -> SelectedField | SelectedLabel | LineFault:
    try:
        [values] = csv.reader([line], strict=True, skipinitialspace=True)
    except csv.Error as error:
        return LineFault(number, f"it is no line of CSV: {error}")
    if len(values) != 3:
        found = len(values)
        return LineFault(
            number,
            f"{found} value{'s' if found != 1 else ''} where field, type and help are needed",
            remedy="put a help with commas into quotation marks" if found > 3 else "",
        )
    name, kind, meaning = (value.strip() for value in values)
    row = catalogue().by_name.get(name)
    if row is None:
        return _unknown(number, name, suggest=suggest)
    if kind not in _TYPES:
        return LineFault(
            number, f"{name} has the type {_quoted(kind)}", remedy=f"one of {', '.join(_TYPES)}"
        )
    if kind == "label":
        return SelectedLabel(row, name)
    if isinstance(row, TextField):
        return LineFault(
            number, f"{name} is a text, not a number", remedy="its type can only be label"
        )
    # One value for each thing is neither a histogram nor a summary, whatever the file calls it.
    written = kind if kind in _WRITTEN_AS_TYPES else row.type.value
    return SelectedField(row, name, written, meaning)


def _unknown(line: int, name: str, *, suggest: bool) -> LineFault:
    known = catalogue()
    if name in known.unavailable:
        return LineFault(line, f"{name} is not available from NVML")
    short = suggest and len(name) <= _MAX_QUOTED
    return LineFault(
        line,
        f"there is no field {_quoted(name)}",
        remedy=did_you_mean(name, known.by_name, cutoff=0.8) if short else "",
    )


def _quoted(value: str) -> str:
    return repr(value if len(value) <= _MAX_QUOTED else value[:_MAX_QUOTED] + "...")
