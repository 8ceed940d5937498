"""What `check` found, and entries of the runbook: one in full, or all of them in a line each."""

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap

from nodeagent.runbook import Entry
from nodeagent.terminal.page import Line, Span, Tone, cut, dim, joined, line, table, toned
from nodeagent.views.shapes import RunsAs


def check_page(findings: Sequence[tuple[str, str, str, str]]) -> tuple[Line, ...]:
    """A page of findings: the check, `ok`, `warning` or `error`, what was found, a remedy."""
    width = max((len(check) for check, *_ in findings), default=0)
    lines: list[Line] = []
    for check, level, message, remedy in findings:
        lines.append(line(Span(f"{level:<9}", toned(level).tone), f"{check:<{width}}  {message}"))
        if remedy:
            lines.append(line(" " * (width + 11), remedy))
    return tuple(lines)


_MARGIN = "  "
_LABEL = 6  # columns of `look`, `mend` and `see`
_MIN_WIDTH = 20  # columns for sentences, however narrow the terminal is


def entries_page(entries: Sequence[Entry], width: int, where: RunsAs) -> tuple[Line, ...]:
    """Print each entry in full; its commands, for an agent that runs so, can be pasted whole."""
    room = max(width - len(_MARGIN), _MIN_WIDTH)
    parts = (
        (
            line(Span(entry.title, Tone.TITLE), dim(f"  {entry.kind.value}")),
            *(line(f"{_MARGIN}{row}") for row in wrap(entry.means, room, break_on_hyphens=False)),
            *_part("look", _for_here(entry.look, where)),
            *_part("mend", _for_here(entry.mend, where)),
            *_part("see", [", ".join(entry.see)] if entry.see else []),
        )
        for entry in entries
    )
    return joined(*parts)


_ELSEWHERE = re.compile(r"(?:^# |; |  # )(without a cluster|in a cluster|in a pod)(?:: (.+))?$")
_COMMAND = re.compile(r"(kubectl|systemctl|journalctl|kill) ")


def _for_here(rows: Sequence[str], where: RunsAs) -> list[str]:
    """The rows for an agent that runs so. Without a cluster, or where that is not known, those for
    one follow, with what is for both between two of them.
    """
    places = {"without a cluster": not where, "in a cluster": where, "in a pod": where == "pod"}
    found = [(row, _ELSEWHERE.search(row)) for row in rows]
    commands = [row for row, _ in found if not row.startswith("#")]
    if not any(mark for _, mark in found) and all(row.startswith("kubectl") for row in commands):
        return list(rows)  # all of it is for a cluster
    here: list[str] = []
    there: list[str] = []
    between: list[str] = []
    for row, mark in found:
        rest, other = (row[: mark.start()], mark[2]) if mark else (row, None)
        if mark and places[mark[1]]:
            what = other or rest
            here.append(what if _COMMAND.match(what) else f"# {what}")
            there += [rest] if other and rest else []
        elif where:
            here += [rest] if not mark or (rest and other) else []
        elif row.startswith("kubectl") or (mark and not (rest and other)):
            there += [*between, row]
            between = []
        else:
            here.append(row)
            between += [row] if there else []
    return here if where or not there else [*here, *(["# in a cluster:"] if here else []), *there]


def _part(label: str, rows: Sequence[str]) -> Iterator[Line]:
    for row in rows:
        command, mark, comment = row.partition("#")
        yield line(dim(f"{_MARGIN}{label:<{_LABEL}}"), command, dim(mark + comment))
        label = ""


def list_page(entries: Sequence[Entry], width: int) -> tuple[Line, ...]:
    """A line for each entry, its first sentence cut where the terminal ends."""
    names = [(entry.title, entry.kind.value) for entry in entries]
    room = width - sum(max(map(len, column), default=0) + 2 for column in zip(*names, strict=True))
    rows = [
        (*name, cut(entry.first_sentence, max(room, _MIN_WIDTH)))
        for name, entry in zip(names, entries, strict=True)
    ]
    return table(("CODE", "KIND", "MEANS"), rows)
