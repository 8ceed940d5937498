"""Write docs/runbook.md from nodeagent/runbook.

python -m tools.make_runbook
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from nodeagent.runbook.entries import Entry, Kind
from nodeagent.runbook.lookup import runbook

PAGE = Path(__file__).parents[1] / "docs/runbook.md"
_WIDTH = 120

HEAD = """\
# Runbook

<!-- written by tools/make_runbook.py; change the texts in nodeagent/runbook, not this page -->

What each code means that the agent shows, what to look at, and the commands that mend it. On a
node, `nodeagent explain InUse` shows the same entry. Capitals do not count, `nodeagent explain XID
79` and `nodeagent explain 79` are one, and without a code it lists them all. A problem's own
remedy, in `nodeagent status`, has the values of the node already.

| word | stands for |
|---|---|
| `NODE` | the Node's name in its cluster |
| `NUMBER` | the index of the GPU, as in `GPU 3` |
| `DEVICE` | a GPU by index or UUID, or a MIG device by UUID or as `GPU:SLICE` |
| `NAMESPACE`, `POD`, `CLAIM` | of a pod, or of its claim |
| `PID` | the process that is named |
| `FILE`, `NAME` | a plan or settings file; a configuration, or a file that is named |
| `WATTS` | the power limit |

Commands with `kubectl` are for a node in a cluster, the others are run on the node. What is advised
about hardware was not tried on hardware; `nodeagent/runbook` and [health.md](health.md) say where
it comes from.
"""

TITLES = {
    Kind.PHASE: ("Phases", "Of the plan, in `status`, the annotation and the condition."),
    Kind.PROBLEM: ("Problems", "The `code` of a problem, in `status`, `apply` and `claims`."),
    Kind.CONDITION: ("Conditions", "Of the Node."),
    Kind.REASON: (
        "Reasons",
        "Of conditions, and what else a headline says. Phases, problems and findings are others.",
    ),
    Kind.CHECK: (
        "Health checks",
        "With their findings. When each is raised and how it ends: [health.md](health.md#checks).",
    ),
    Kind.XID: (
        "XIDs",
        "The usual ones. The classes are in [health.md](health.md#xids); the command knows all.",
    ),
    Kind.ALERT: ("Alerts", "Of Prometheus ([monitoring.md](monitoring.md#alerts))."),
    Kind.PREFLIGHT: ("Preflight checks", "What `nodeagent check` looks at."),
    Kind.CLAIM: ("Claims", "The phases of a claim, in `nodeagent claims` ([dra.md](dra.md))."),
    Kind.DAEMON: ("MPS daemons", "Their states, in `nodeagent mps status` ([mps.md](mps.md))."),
}


def page() -> str:
    """The whole page."""
    entries = [entry for entry in runbook().entries if entry.kind is not Kind.FINDING]
    sections = (_section(kind, list(found)) for kind, found in groupby(entries, lambda e: e.kind))
    return HEAD + "".join(sections)


def _section(kind: Kind, entries: list[Entry]) -> str:
    title, sentence = TITLES[kind]
    body = _xids(entries) if kind is Kind.XID else "".join(map(_entry, entries))
    return f"\n## {title}\n\n{_filled(sentence)}\n{body}"


def _entry(entry: Entry) -> str:
    see = f"\nSee also {_links(entry.see)}.\n" if entry.see else ""
    findings = _findings(entry.code) if entry.kind is Kind.CHECK else ""
    return f"\n### `{entry.code}`\n\n{_filled(entry.means)}\n\n{_commands(entry)}{see}{findings}"


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_on_hyphens=False)


def _commands(entry: Entry) -> str:
    parts = (("# to look at", entry.look), ("# what mends it", entry.mend))
    lines = (f"{line}\n" for label, rows in parts for line in (label, *rows))
    return f"```sh card\n{''.join(lines)}```\n"


def _links(codes: Iterable[str]) -> str:
    """Each code with a link to where it stands: its heading, or the table that it is in."""
    return ", ".join(f"[`{code}`](#{_anchor(code)})" for code in codes)


def _anchor(code: str) -> str:
    entry = runbook().of(code)[0]
    match entry.kind:
        case Kind.XID:
            return "xids"
        case Kind.FINDING:
            return entry.see[0].lower()  # its check
        case _:
            return entry.code.lower().replace(" ", "-")


def _findings(check: str) -> str:
    rows = (
        f"| `{found.code}` | {found.means} | {found.mend[0].removeprefix('# ')} |\n"
        for found in runbook().entries
        if found.kind is Kind.FINDING and found.see == (check,)
    )
    return "\n| finding | means | advice |\n|---|---|---|\n" + "".join(rows)


def _xids(entries: list[Entry]) -> str:
    """A table for all that the same commands mend."""
    by_mend: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        by_mend.setdefault(entry.mend, []).append(entry)
    return "".join(_xid_table(alike) for alike in by_mend.values())


def _xid_table(entries: list[Entry]) -> str:
    rows = (f"| {e.code} | {e.means} | {_links(e.see)} |\n" for e in entries)
    table = "| XID | means | finding |\n|---|---|---|\n" + "".join(rows)
    return f"\n{table}\n{_commands(entries[0])}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
