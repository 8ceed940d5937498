"""Write docs/runbook.md from nodeagent/catalogue.yaml.

python -m tools.make_runbook
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from nodeagent.catalogue import section
from nodeagent.health.findings import Action, End
from nodeagent.health.table import REBOOT_NODE, RESET_GPU, RESTART, ROWS, Row, advice
from nodeagent.health.xid_findings import cause_of_xid
from nodeagent.health.xids import XidClass, XidRow, default_table
from nodeagent.runbook import Entry, EntryKind, actions, runbook

PAGE = Path(__file__).parents[1] / "docs/runbook.md"
_WIDTH = 120

HEAD = """\
# Runbook

<!-- written by tools/make_runbook.py; the texts are in nodeagent/catalogue.yaml -->

The meaning of each code that the agent shows, what to look at, and the commands that mend it. On a
node, `nodeagent explain InUse` prints the same entry, and `nodeagent explain` lists all codes. A
problem's own remedy, in `nodeagent status`, has the values of the node already.

| word | stands for |
|---|---|
| `NODE` | the Node's name in its cluster |
| `NUMBER` | the index of the GPU, as in `GPU 3` |
| `DEVICE` | a GPU by index or UUID, or a MIG device by UUID or as `GPU:SLICE` |
| `NAMESPACE`, `POD`, `CLAIM` | of a pod, or of its claim |
| `PID` | the process that is named |
| `FILE`, `NAME` | a plan or settings file; a configuration, or a file that is named |
| `WATTS` | the power limit |

Commands with `kubectl` are for a node in a cluster, the others are run on the node. The advice
about hardware was not tried on hardware; its sources are in `nodeagent/catalogue.yaml` and
[health.md](health.md).
"""

TITLES = {
    EntryKind.PHASE: ("Phases", "Of the plan, in `status`, the annotation and the condition."),
    EntryKind.PROBLEM: ("Problems", "The `code` of a problem, in `status`, `apply` and `claims`."),
    EntryKind.CONDITION: ("Conditions", "Of the Node."),
    EntryKind.REASON: (
        "Reasons",
        "Of conditions and headlines, besides phases, problems and findings.",
    ),
    EntryKind.EVENT: (
        "Events",
        "On the Node, on claims and in `/v1/events`, besides phases, problems and reasons.",
    ),
    EntryKind.CHECK: (
        "Health checks",
        "Notes about them are in [health.md](health.md#checks).",
    ),
    EntryKind.FINDING: (
        "Findings",
        "Of the health checks. A reboot ends each ([health.md](health.md#how-a-finding-ends)).",
    ),
    EntryKind.XID: (
        "XIDs",
        "A file of your own can change the class ([health.md](health.md#xids)).",
    ),
    EntryKind.ALERT: ("Alerts", "Of Prometheus ([monitoring.md](monitoring.md#alerts))."),
    EntryKind.PREFLIGHT: ("Preflight checks", "What `nodeagent check` looks at."),
    EntryKind.CLAIM: ("Claims", "The phases of a claim, in `nodeagent claims` ([dra.md](dra.md))."),
    EntryKind.DAEMON: (
        "MPS daemons",
        "Their states, in `nodeagent mps status` ([mps.md](mps.md)).",
    ),
}
ACTIONS = {
    "{restart}": "Restart an application",
    "{reset}": "Reset a GPU",
    "{reboot}": "Reboot the node",
    "{inspect}": "Inspect the hardware",
}
_MANY = 2  # entries with the same commands
_IN_FULL = (EntryKind.PROBLEM, EntryKind.ALERT)  # where people are sent to; the rest is in tables


def page() -> str:
    """The whole page."""
    sections = (_section(kind, list(found)) for kind, found in groupby(runbook().entries, _kind))
    return f"{HEAD}{_actions()}{''.join(sections)}"


def _kind(entry: Entry) -> EntryKind:
    return entry.kind


def _actions() -> str:
    """What the tables refer to."""
    known = actions()
    parts = (f"\n### {title}\n\n{_block(known[name])}" for name, title in ACTIONS.items())
    return f"\n## Common actions\n{''.join(parts)}"


def _section(kind: EntryKind, entries: list[Entry]) -> str:
    title, sentence = TITLES[kind]
    match kind:
        case EntryKind.PROBLEM | EntryKind.ALERT:
            body = "".join(map(_entry, entries))
        case EntryKind.FINDING:
            body = f"\n{_findings()}"
        case EntryKind.XID:
            body = f"\n{_classes()}\nThe usual ones:\n\n{_xids(entries)}"
        case _:
            usual, count = Counter((e.look, e.mend) for e in entries).most_common(1)[0]
            if count > _MANY:
                look, mend = map(_cell, usual)
                sentence += f" Where nothing is named: {look}; {mend[0].lower()}{mend[1:]}"
            body = f"\n{_table(kind, entries, usual if count > _MANY else None)}"
    return f"\n## {title}\n\n{_filled(sentence)}\n{body}"


def _entry(entry: Entry) -> str:
    see = f" See also {_links(entry.see)}." if entry.see else ""
    text = "\n".join((*entry.look, "# mend:", *entry.mend))
    for name, action in actions().items():
        text = text.replace("\n".join(action), f"# {ACTIONS[name]}: common actions")
    return f"\n### `{entry.code}`\n\n{_filled(entry.means + see)}\n\n{_block(text.splitlines())}"


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_on_hyphens=False, break_long_words=False)


def _block(lines: Iterable[str]) -> str:
    return "\n".join(("```sh card", *lines, "```", ""))


def _links(codes: Iterable[str]) -> str:
    """Each code with a link to where it stands: its heading, or that of its table."""
    return ", ".join(f"[`{code}`](#{_anchor(code)})" for code in codes)


def _anchor(code: str) -> str:
    entry = runbook().of(code)[0]
    heading = entry.code if entry.kind in _IN_FULL else TITLES[entry.kind][0]
    return heading.lower().replace(" ", "-")


# --- tables ---------------------------------------------------------------------------------------


def _rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(line)} |\n" for line in (heads, *rows))
    return f"{head}|{'---|' * len(heads)}\n{''.join(body)}"


def _table(kind: EntryKind, entries: Iterable[Entry], usual: object) -> str:
    """A row for each; commands that are the section's usual ones are left out."""
    return _rows(
        (kind.value, "means", "to look at", "what mends it"),
        [
            (
                f"`{e.code}`",
                _means(e),
                *(("", "") if (e.look, e.mend) == usual else (_cell(e.look), _cell(e.mend))),
            )
            for e in entries
        ],
    )


def _findings() -> str:
    """What each check finds, as the table has it in force."""
    names = {
        End.GONE: "gone",
        End.RESET: "reset",
        End.LAPSED: "lapse",
        End.INSTANCE_GONE: "instance gone",
    }
    return _rows(
        ("check", "finding", "raised when", "severity: action", "advice", "ends by"),
        [
            (
                "" if row.check is before else f"`{row.check.value}`",
                f"`{row.cause}`",
                row.when,
                row.severity.value + ("" if row.action is Action.NONE else f": {row.action.value}"),
                _own_advice(row).replace("|", "\\|"),
                ", ".join(name for end, name in names.items() if end in row.ends),
            )
            for before, row in zip((None, *(r.check for r in ROWS)), ROWS, strict=False)
        ],
    )


def _own_advice(row: Row) -> str:
    """What is said beside the action's own sentence."""
    text = advice(row.cause, row.action)
    for sentence in (RESET_GPU, RESTART, advice("eccStorm", Action.INSPECT_HARDWARE)):
        text = text.replace(sentence, "")
    return " ".join((text if row.action is Action.NONE else text.replace(REBOOT_NODE, "")).split())


def _classes() -> str:
    texts, rows = section("xid")["classes"], default_table().rows.values()
    return _rows(
        ("class", "XIDs", "means", "finding", "what mends it"),
        [
            (
                f"`{kind.value}`",
                _ranges([row.xid for row in rows if row.kind is kind]),
                texts[kind.value]["means"],
                f"`{cause}`" if (cause := cause_of_xid(XidRow(0, "", kind))) else "",
                _cell(texts[kind.value]["mend"].splitlines()),
            )
            for kind in XidClass
        ],
    )


def _xids(entries: Iterable[Entry]) -> str:
    notes, table = section("xid")["notes"], default_table()
    found = [(table.row(int(entry.code)), notes.get(int(entry.code), "")) for entry in entries]
    return _rows(
        ("XID", "class", "name", "note"),
        [(f"`{row.xid}`", f"`{row.kind.value}`", row.name, note) for row, note in found],
    )


def _ranges(numbers: list[int]) -> str:
    """`8, 39-41`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)


def _means(entry: Entry) -> str:
    return f"{entry.means} See also {_links(entry.see)}." if entry.see else entry.means


def _cell(lines: Sequence[str]) -> str:
    """Lines for a shell side by side; those that are an action as a link to it."""
    text = "\n".join(lines)
    for name, action in actions().items():
        text = text.replace("\n".join(action), name)
    return "<br>".join(map(_inline, text.splitlines())).replace("|", "\\|")


def _inline(line: str) -> str:
    if title := ACTIONS.get(line):
        return f"[{title}](#{title.lower().replace(' ', '-')})"
    command, *comment = re.split(r"(?:^|\s+)# ", line, maxsplit=1)
    return ": ".join(filter(None, (f"`{command}`" if command else "", *comment)))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
