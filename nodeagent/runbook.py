"""What each code, check, phase, alert and XID means, and the commands that mend it.

The texts are those of the catalogue; findings and XIDs are made from the tables that the health
checks judge by. `nodeagent explain` and docs/runbook.md show the same entries.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial

from nodeagent.catalogue import section
from nodeagent.errors import UsageError
from nodeagent.health.findings import Action, Severity
from nodeagent.health.table import ROWS, Row, advice
from nodeagent.health.xid_findings import cause_of_xid
from nodeagent.health.xids import default_table
from nodeagent.structs import Struct, replace
from nodeagent.text import did_you_mean, quote

_MAX_XID_DIGITS = 5  # no XID is near that


class EntryKind(StrEnum):
    """What a code names; the sections of the catalogue, and findings."""

    PHASE = "phase"  # of the plan
    PROBLEM = "problem"
    CONDITION = "condition"  # of the Node
    REASON = "reason"  # of a condition, or the code of a headline, that is none of the others
    CHECK = "check"  # of health
    FINDING = "finding"  # of such a check
    XID = "xid"
    EVENT = "event"  # the reason of an Event that is none of the others
    ALERT = "alert"
    PREFLIGHT = "preflight"  # what `nodeagent check` looks at
    CLAIM = "claim"  # the phase of a claim
    DAEMON = "daemon"  # the state of an MPS daemon


class Entry(Struct, frozen=True):
    """What a code means, in sentences, the first of them short; then lines for a shell.

    `look` shows what is wrong, `mend` ends it. Words in capitals stand for values of the node; a
    line that begins with # is for people. `see` names entries that belong to it.
    """

    code: str
    kind: EntryKind
    means: str
    look: tuple[str, ...] = ()
    mend: tuple[str, ...] = ()
    see: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The code as it is spelled; a number needs its name."""
        return f"XID {self.code}" if self.kind is EntryKind.XID else self.code

    @property
    def first_sentence(self) -> str:
        end = self.means.find(". ")
        return self.means if end < 0 else self.means[: end + 1]


def actions() -> Mapping[str, tuple[str, ...]]:
    """The lines for a shell that `{reset}` and the like stand for."""
    return {f"{{{name}}}": tuple(text.splitlines()) for name, text in section("action").items()}


def _shell_lines(text: str) -> tuple[str, ...]:
    """The text's lines, with those of an action in the place of its name."""
    known = actions()
    return tuple(command for line in text.splitlines() for command in known.get(line, (line,)))


def _entries(kind: EntryKind) -> Iterator[Entry]:
    """The entries of a section, in its order."""
    for code, parts in section(kind).items():
        look, mend = _shell_lines(parts["look"]), _shell_lines(parts["mend"])
        yield Entry(code, kind, parts["means"], look, mend, tuple(parts.get("see", ())))


# --- findings and XIDs ----------------------------------------------------------------------------

_MENDS = {
    Action.RESTART_APPLICATION: "{restart}",
    Action.RESET_GPU: "{reset}",
    Action.REBOOT: "{reboot}",
}


def _finding(row: Row, check: Entry) -> Entry:
    words = f"{row.subject} {row.words}"
    means = (
        f"{words[0].upper()}{words[1:]}. Raised by: {row.when}. Severity {row.severity.value}, "
        f"suggested action: {row.action.value}."
    )
    mend = (f"# {advice(row.cause, row.action)}", *_commands(row, check))
    return Entry(row.cause, EntryKind.FINDING, means, check.look, mend, (check.code,))


def _commands(row: Row, check: Entry) -> tuple[str, ...]:
    """Commands of the suggested action; the check's own where none is suggested."""
    if row.action is Action.NONE:
        return tuple(line for line in check.mend if not line.startswith("#"))
    if row.action is Action.INSPECT_HARDWARE:
        # A hot card is looked at while it works; one that is unhealthy gets nothing new.
        return actions()["{inspect}"][:1] if row.severity is Severity.UNHEALTHY else ()
    return actions()[_MENDS[row.action]]


def _xid(xid: int, look: tuple[str, ...]) -> Entry:
    """The entry of any number, in the table or not."""
    texts, table = section("xid"), default_table()
    row = table.row(xid)
    if xid not in table.rows:
        name = "It is not in this program's table of XIDs"
    else:
        name = "NVIDIA's catalog gives it no name" if row.name == "Unused" else row.name
    kind, note = texts["classes"][row.kind.value], texts["notes"].get(xid)
    means = " ".join(filter(None, (f"{name}.", f"Class {row.kind.value}.", kind["means"], note)))
    cause = cause_of_xid(row)
    mend = _shell_lines(kind["mend"])
    return Entry(str(xid), EntryKind.XID, means, look, mend, (cause,) if cause else ())


# --- looking one up -------------------------------------------------------------------------------


class Runbook:
    """The entries, kind by kind, and by code. A code of several kinds has several."""

    def __init__(self) -> None:
        checks = {entry.code: entry for entry in _entries(EntryKind.CHECK)}
        made: dict[EntryKind, Callable[[], Iterable[Entry]]] = {
            EntryKind.FINDING: lambda: (_finding(row, checks[row.check.value]) for row in ROWS),
            EntryKind.XID: lambda: map(self._xid, section("xid")["usual"]),
        }
        self._xid = partial(_xid, look=checks["xid"].look)
        found: dict[tuple[EntryKind, str], Entry] = {}
        for kind in EntryKind:
            for one in made[kind]() if kind in made else _entries(kind):
                entry, key = one, _key(one.code)
                problem = found.get((EntryKind.PROBLEM, key))
                if kind is EntryKind.FINDING and problem:  # one matter, one entry
                    raised = one.means.partition(". ")[2]
                    entry = replace(problem, means=f"{problem.means} {raised}")
                found[entry.kind, key] = entry
        self.entries = tuple(found.values())
        self._by_key: dict[str, tuple[Entry, ...]] = {}
        for (kind, key), entry in found.items():
            if kind is not EntryKind.XID:  # `of` makes those
                self._by_key[key] = (*self._by_key.get(key, ()), entry)

    def of(self, code: str) -> tuple[Entry, ...]:
        """The entries of a code, however it is spelled; none where there is no such code."""
        key = _key(code)
        digits = key.removeprefix("xid")
        if digits.isdecimal() and len(digits) <= _MAX_XID_DIGITS and int(digits):
            return (self._xid(int(digits)),)
        return self._by_key.get(key, ())

    def find(self, words: Sequence[str]) -> tuple[Entry, ...]:
        """The entries of one code, which may have several words (`XID 79`, `mps shm`), or of
        several codes. Raises UsageError, with the nearest spelling, for one that there is not.
        """
        if whole := self.of(" ".join(words)):
            return whole
        found: dict[Entry, None] = {}
        for code in _codes(words):
            entries = self.of(code)
            if not entries:
                raise self._unknown(code, words)
            found |= dict.fromkeys(entries)
        return tuple(found)

    def _unknown(self, code: str, words: Sequence[str]) -> UsageError:
        known = list(dict.fromkeys(entry.title for entry in self.entries))
        near = did_you_mean(" ".join(words), known) or did_you_mean(code, known)
        return UsageError(
            f"there is no code {quote(code)}", remedy=near or "`nodeagent explain` lists all codes"
        )


@cache
def runbook() -> Runbook:
    """The runbook, read once."""
    return Runbook()


def _key(text: str) -> str:
    """What counts of a spelling: letters and digits."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def _codes(words: Sequence[str]) -> Iterator[str]:
    """Split into words, but `XID 79` stays one."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        is_number = bool(rest) and _key(word) == "xid" and rest[0].isdecimal()
        yield f"{word} {rest.pop(0)}" if is_number else word
