"""Write docs/runbook.md from nodeagent/catalogue.yaml.

python -m tools.make_runbook
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

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
        "How the findings of each end: [health.md](health.md#checks).",
    ),
    EntryKind.FINDING: ("Findings", "Of the health checks."),
    EntryKind.XID: (
        "XIDs",
        "The usual ones. The classes are in [health.md](health.md#xids); the command knows all.",
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
    body = "".join(map(_entry, entries)) if kind in _IN_FULL else f"\n{_table(kind, entries)}"
    return f"\n## {title}\n\n{_filled(sentence)}\n{body}"


def _entry(entry: Entry) -> str:
    see = f" See also {_links(entry.see)}." if entry.see else ""
    block = _block((*entry.look, "# what mends it:", *entry.mend))
    return f"\n### `{entry.code}`\n\n{_filled(entry.means + see)}\n\n{block}"


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


def _table(kind: EntryKind, entries: Iterable[Entry]) -> str:
    """A row for each; findings and XIDs have no commands of their own to look at."""
    match kind:
        case EntryKind.FINDING:
            heads = ("finding", "check", "means", "advice")
            rows = ((e.code, _links(e.see), e.means, e.mend[0].removeprefix("# ")) for e in entries)
        case EntryKind.XID:
            heads = ("XID", "means", "finding", "what mends it")
            rows = ((e.code, e.means, _links(e.see), _cell(e.mend)) for e in entries)
        case _:
            heads = (kind.value, "means", "to look at", "what mends it")
            rows = ((e.code, _means(e), _cell(e.look), _cell(e.mend)) for e in entries)
    lines = (heads, *((f"`{code}`", *cells) for code, *cells in rows))
    head, *body = (f"| {' | '.join(line)} |\n" for line in lines)
    return f"{head}|{'---|' * len(heads)}\n{''.join(body)}"


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
