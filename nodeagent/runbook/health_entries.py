"""Entries of findings and XIDs, made from the tables that the health checks judge by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodeagent.health.findings import Action, Severity
from nodeagent.health.table import ROWS, Row, advice
from nodeagent.health.xid_findings import cause_of_xid
from nodeagent.health.xids import XidClass, default_table
from nodeagent.runbook.entries import Actions, Entry, Kind, document, shell_lines

_MENDS = {
    Action.RESTART_APPLICATION: "{restart}",
    Action.RESET_GPU: "{reset}",
    Action.REBOOT: "{reboot}",
}


def findings(checks: Mapping[str, Entry], actions: Actions) -> Iterator[Entry]:
    """One for each row of the check table; `checks` by name."""
    return (_finding(row, checks[row.check.value], actions) for row in ROWS)


def _finding(row: Row, check: Entry, actions: Actions) -> Entry:
    words = f"{row.subject} {row.words}"
    means = (
        f"{words[0].upper()}{words[1:]}. Raised by: {row.when}. Severity {row.severity.value}, "
        f"suggested action: {row.action.value}."
    )
    mend = (f"# {advice(row.cause, row.action)}", *_commands(row, check, actions))
    return Entry(Kind.FINDING, row.cause, means, check.look, mend, (check.code,))


def _commands(row: Row, check: Entry, actions: Actions) -> tuple[str, ...]:
    """Those of the suggested action; the check's own where none is suggested."""
    if row.action is Action.NONE:
        return tuple(line for line in check.mend if not line.startswith("#"))
    if row.action is Action.INSPECT_HARDWARE:
        # A hot card is looked at while it works; one that is unhealthy gets nothing new.
        return actions["{inspect}"][:1] if row.severity is Severity.UNHEALTHY else ()
    return actions[_MENDS[row.action]]


class XidEntries:
    """An entry for every number, in the table or not."""

    def __init__(self, look: tuple[str, ...], actions: Actions) -> None:
        texts = document("xids")
        self._classes = {XidClass(name): text for name, text in texts["classes"].items()}
        self._notes: Mapping[int, str] = texts["notes"]
        self._look = look
        self._actions = actions
        self.usual: tuple[int, ...] = tuple(texts["usual"])

    def entry(self, xid: int) -> Entry:
        table = default_table()
        row = table.row(xid)
        if xid not in table.rows:
            name = "It is not in this program's table of XIDs"
        else:
            name = "NVIDIA's catalog gives it no name" if row.name == "Unused" else row.name
        kind = self._classes[row.kind]
        sentences = (f"{name}.", f"Class {row.kind.value}.", kind["means"], self._notes.get(xid))
        means = " ".join(filter(None, sentences))
        mend = shell_lines(kind["mend"], self._actions)
        cause = cause_of_xid(xid, table)
        return Entry(Kind.XID, str(xid), means, self._look, mend, (cause,) if cause else ())
