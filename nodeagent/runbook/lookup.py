"""All entries, and the one that a word means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from nodeagent.errors import UsageError
from nodeagent.runbook.entries import Entry, Kind, read_actions, read_entries
from nodeagent.runbook.health_entries import XidEntries, findings
from nodeagent.text import did_you_mean, shown

_LONGEST_XID = 5  # digits; no XID is near that


class Runbook:
    """The entries, subject by subject, and by code. A code of several subjects has several."""

    def __init__(self) -> None:
        actions = read_actions()
        states = tuple(read_entries("states", actions))
        checks = {entry.code: entry for entry in read_entries("health", actions)}
        self._xids = XidEntries(checks["xid"].look, actions)
        self.entries: tuple[Entry, ...] = (
            *(entry for entry in states if entry.kind is Kind.PHASE),
            *read_entries("problems", actions),
            *(entry for entry in states if entry.kind in (Kind.CONDITION, Kind.REASON)),
            *checks.values(),
            *findings(checks, actions),
            *map(self._xids.entry, self._xids.usual),
            *read_entries("events", actions),
            *read_entries("alerts", actions),
            *read_entries("preflight", actions),
            *(entry for entry in states if entry.kind in (Kind.CLAIM, Kind.DAEMON)),
        )
        self._by_key = _by_key(self.entries)

    def of(self, code: str) -> tuple[Entry, ...]:
        """The entries of a code, however it is spelled; none where there is no such code."""
        key = _key(code)
        digits = key.removeprefix("xid")
        if digits.isdecimal() and len(digits) <= _LONGEST_XID and int(digits):
            return (self._xids.entry(int(digits)),)
        return self._by_key.get(key, ())

    def find(self, words: Sequence[str]) -> tuple[Entry, ...]:
        """The entries of one code, which may have several words (`XID 79`, `mps shm`), or of
        several codes. Raises UsageError, with the nearest spelling, for one that there is not.
        """
        if whole := self.of(" ".join(words)):
            return whole
        found: list[Entry] = []
        for code in _codes(words):
            entries = self.of(code)
            if not entries:
                raise self._unknown(code, words)
            found += (entry for entry in entries if entry not in found)
        return tuple(found)

    def _unknown(self, code: str, words: Sequence[str]) -> UsageError:
        known = list(dict.fromkeys(entry.title for entry in self.entries))
        near = did_you_mean(" ".join(words), known) or did_you_mean(code, known)
        return UsageError(
            f"there is no code {shown(code)}", remedy=near or "`nodeagent explain` lists all codes"
        )


@cache
def runbook() -> Runbook:
    """The runbook, read once."""
    return Runbook()


def _key(text: str) -> str:
    """What counts of a spelling: letters and digits."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def _by_key(entries: Sequence[Entry]) -> Mapping[str, tuple[Entry, ...]]:
    found: dict[str, tuple[Entry, ...]] = {}
    for entry in entries:
        if entry.kind is not Kind.XID:  # `Runbook.of` makes those
            found[_key(entry.code)] = (*found.get(_key(entry.code), ()), entry)
    return found


def _codes(words: Sequence[str]) -> Iterator[str]:
    """Each word, but `XID 79` as one."""
    left = list(words)
    while left:
        word = left.pop(0)
        is_number = bool(left) and _key(word) == "xid" and left[0].isdecimal()
        yield f"{word} {left.pop(0)}" if is_number else word
