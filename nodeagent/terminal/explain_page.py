"""What `check` found, and entries of the runbook: one in full, or all of them in a line each."""

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap

from nodeagent.runbook import Entry
from nodeagent.terminal.page import Line, Span, Tone, cut, dim, joined, line, table, toned


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


def entries_page(entries: Sequence[Entry], width: int, *, in_cluster: bool) -> tuple[Line, ...]:
    """Print each entry in full; its commands, those for here first, are whole, to be pasted."""
    room = max(width - len(_MARGIN), _MIN_WIDTH)
    parts = (
        (
            line(Span(entry.title, Tone.TITLE), dim(f"  {entry.kind.value}")),
            *(line(f"{_MARGIN}{row}") for row in wrap(entry.means, room, break_on_hyphens=False)),
            *_part("look", _here_first(entry.look, in_cluster)),
            *_part("mend", _here_first(entry.mend, in_cluster)),
            *_part("see", [", ".join(entry.see)] if entry.see else []),
        )
        for entry in entries
    )
    return joined(*parts)


_ELSEWHERE = re.compile(r"(?:^# |; |  # )(without|in) a cluster(?:: (.+))?$")
_COMMAND = re.compile(r"(kubectl|systemctl|journalctl|kill) ")


def _here_first(rows: Sequence[str], in_cluster: bool) -> list[str]:
    """The rows in their order: those for a node like this, then those of the other kind; for a
    cluster with what is for both between two of them.
    """
    here: list[str] = []
    there: list[str] = []
    between: list[str] = []
    for row in rows:
        found = _ELSEWHERE.search(row)
        rest, other = (row[: found.start()], found[2]) if found else (row, None)
        if found and (found[1] == "in") is in_cluster:
            what = other or rest
            here.append(what if _COMMAND.match(what) else f"# {what}")
            there += [rest] if other and rest else []
        elif in_cluster:
            (there if found and not (rest and other) else here).append(row)
        elif row.startswith("kubectl") or (found and not (rest and other)):
            there += [*between, row]
            between = []
        else:
            here.append(row)
            between += [row] if there else []
    return [*here, *(["# in a cluster:"] if here and there and not in_cluster else []), *there]


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
