"""Which fields are wanted: dcgm-exporter's file of counters, read as it is.

A line says field, type and help; a field of type `label` becomes a label of every metric. Where
dcgm-exporter refuses to start over one line, that line is named here and the others count.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from functools import lru_cache

from nodeagent.errors import NodeagentError
from nodeagent.metrics.catalogue import Field, TextField, catalogue
from nodeagent.metrics.sources import Composed, Composition
from nodeagent.structs import Struct
from nodeagent.text import did_you_mean

MAX_LINES = 5000  # dcgm-exporter has fewer than 1,000 fields
_MAX_SUGGESTIONS = 10  # each compares a name with all fields, 2 to 8 ms
_MAX_QUOTED = 60  # characters of a value in a finding
_MAX_FIELDS = 100  # of a line; three are right

_WRITTEN_AS_TYPES = ("gauge", "counter")
_TYPES = (*_WRITTEN_AS_TYPES, "histogram", "summary", "label")
# What is exported in the place of what dcgm-exporter makes out of several readings.
_INSTEAD = {
    Composition.XID_COUNT: "nodeagent_gpu_xid_total counts them",
    Composition.CLOCK_EVENT_COUNT: "DCGM_FI_DEV_CLOCKS_EVENT_REASONS has them",
    Composition.HEALTH: "nodeagent_gpu_health has it",
    Composition.PEERS: "",
}


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
        raise NodeagentError(
            f"the file of counters has {lines:,} lines; at most {MAX_LINES:,} are read",
            remedy="keep the lines of the fields to export; dcgm-exporter's own file is a start",
        )
    metrics: dict[str, SelectedField] = {}
    labels: dict[str, SelectedLabel] = {}
    findings: list[LineFault] = []
    for record in records(text):
        match _read(record, suggest=len(findings) < _MAX_SUGGESTIONS):
            case LineFault() as finding:
                findings.append(finding)
            case SelectedField() as wanted if wanted.name in metrics:
                findings.append(LineFault(record.line, f"{wanted.name} is selected twice"))
            case SelectedField() as wanted:
                metrics[wanted.name] = wanted
            case SelectedLabel() as label:
                labels[label.name] = label
    if not metrics and not labels:
        faults = "; ".join(map(str, findings[:3])) or "it has only comments"
        more = f" (and {len(findings) - 3} more)" if len(findings) > 3 else ""
        raise NoCounters(
            f"the file of counters selects nothing: {faults}{more}",
            remedy="each line needs a field, a type and a help, with commas between them",
        )
    return Selection(
        metrics=tuple(sorted(metrics.values(), key=lambda m: m.field.id)),
        labels=tuple(sorted(labels.values(), key=lambda label: label.name)),
        findings=tuple(findings),
    )


def _read(record: CsvRecord, *, suggest: bool) -> SelectedField | SelectedLabel | LineFault:
    if record.fault:
        return LineFault(record.line, record.fault)
    if len(record.fields) != 3:
        found = len(record.fields)
        return LineFault(
            record.line,
            f"{found} value{'s' if found != 1 else ''} where field, type and help are needed",
            remedy="put a help with commas into quotation marks" if found > 3 else "",
        )
    name, kind, meaning = (value.strip() for value in record.fields)
    row = catalogue().by_name.get(name)
    if row is None:
        return _unknown(record.line, name, suggest=suggest)
    if kind not in _TYPES:
        return LineFault(
            record.line,
            f"{name} has the type {_quoted(kind)}",
            remedy=f"one of {', '.join(_TYPES)}",
        )
    if kind == "label":
        return SelectedLabel(row, name)
    if isinstance(row, TextField):
        return LineFault(
            record.line, f"{name} is a text, not a number", remedy="its type can only be label"
        )
    if isinstance(row.whole, Composed):
        return LineFault(
            record.line,
            f"{name} is computed by dcgm-exporter itself and not exported here",
            remedy=_INSTEAD[row.whole.composition],
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


# --- records as Go's encoding/csv reads them, which dcgm-exporter uses ---
#
# A line that begins with # is a comment, an empty one nothing. A field that begins with a quotation
# mark goes to the next single one, over commas and line ends; two of them stand for one. Anywhere
# else a quotation mark is a fault. Blanks belong to the field.


class CsvRecord(Struct, frozen=True):
    """The fields of a record that begins on `line` (from 1); `fault` says why it is none."""

    line: int
    fields: tuple[str, ...] = ()
    fault: str = ""


_QUOTED = r'"((?:[^"]|"")*+)"'
_FIELD = re.compile(rf'(?:{_QUOTED}|([^",\n]*))(?=[,\n]|\Z)')


def records(text: str) -> Iterator[CsvRecord]:
    """The records of a text. One with a fault ends with its line; the next begins after it."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    begin, line = 0, 1
    while begin < len(text):
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end  # of its first line
        if end > begin and text[begin] != "#":
            record, end = _record(text, begin, end, line)
            yield record
        line += text.count("\n", begin, end) + 1
        begin = end + 1


def _record(text: str, begin: int, end: int, line: int) -> tuple[CsvRecord, int]:
    fields: list[str] = []
    at = begin
    while True:
        field = _FIELD.match(text, at)
        if field is None:
            return CsvRecord(line, fault=_fault(text, at)), end
        quoted, plain = field.groups()
        fields.append(plain if quoted is None else quoted.replace('""', '"'))
        if len(fields) > _MAX_FIELDS:
            return CsvRecord(line, fault=f"more than {_MAX_FIELDS} values"), end
        if not text.startswith(",", field.end()):
            return CsvRecord(line, tuple(fields)), field.end()
        at = field.end() + 1


def _fault(text: str, at: int) -> str:
    if text[at] != '"':
        return "a quotation mark inside a field that does not begin with one"
    if re.compile(_QUOTED).match(text, at):
        return "text behind a closing quotation mark"
    return "a quotation mark that is never closed"
