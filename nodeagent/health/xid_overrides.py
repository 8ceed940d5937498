"""A user's own classes of XIDs, laid over the table that comes with the program.

```yaml
version: v1
xids:
  - {xid: 63, class: gpuReset}
  - {xid: [13, 31], class: information}
  - {xid: 999, name: our own, class: nodeReboot}
```
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from nodeagent.health.xids import XidClass, XidTable
from nodeagent.plan.problems import Code
from nodeagent.text import did_you_mean

_PATH = tuple[str | int, ...]
_KEYS = ("version", "xids")
_ENTRY_KEYS = ("xid", "class", "name")
_LARGEST = 0xFFFF_FFFF  # eventData has 64 bits; no XID is near this
_LONGEST_NAME = 100


class Faults(Protocol):
    """Where faults are noted, with the line of each: `documents.findings.Findings`."""

    def add(
        self, code: Code, path: _PATH, message: str, *, remedy: str = "", of_key: bool = False
    ) -> None: ...


def overridden(table: XidTable, document: object, faults: Faults) -> XidTable:
    """`table` with the document's entries laid over it, in order; the later one wins.

    `document` is what a YAML or JSON reader made of the text. Every fault is added to `faults`; the
    entries without one are in the result all the same, and the caller decides what counts.
    """
    if not isinstance(document, dict):
        faults.add(Code.SYNTAX, (), "a table of XIDs is a map with version and xids")
        return table
    _refuse_unknown(document, (), _KEYS, faults)
    if document.get("version") != "v1":
        faults.add(Code.INVALID_VALUE, ("version",), "version must be v1")
    entries = document.get("xids")
    if not isinstance(entries, list):
        faults.add(Code.INVALID_VALUE, ("xids",), "xids must be a list of entries")
        return table
    rows = dict(table.rows)
    for index, entry in enumerate(entries):
        path: _PATH = ("xids", index)
        if not isinstance(entry, dict):
            faults.add(Code.INVALID_VALUE, path, "an entry is a map with xid and class")
            continue
        _refuse_unknown(entry, path, _ENTRY_KEYS, faults)
        numbers = _numbers(entry.get("xid"), (*path, "xid"), faults)
        kind = _kind(entry, path, faults)
        name = _name(entry.get("name"), (*path, "name"), faults)
        if kind is not None:
            for number in numbers:
                row = table.row(number) if number not in rows else rows[number]
                rows[number] = replace(row, kind=kind, name=row.name if name is None else name)
    return XidTable(rows)


def _refuse_unknown(
    given: Iterable[object], path: _PATH, known: tuple[str, ...], faults: Faults
) -> None:
    for key in given:
        if key not in known:
            word = str(key)
            faults.add(
                Code.UNKNOWN_KEY,
                (*path, word),
                f"unknown key {word[:60]!r}",
                remedy=did_you_mean(word, known) or f"known are {', '.join(known)}",
                of_key=True,
            )


def _numbers(value: object, path: _PATH, faults: Faults) -> tuple[int, ...]:
    """One XID or several."""
    listed = value if isinstance(value, list) else [value]
    good = tuple(
        n for n in listed if isinstance(n, int) and not isinstance(n, bool) and 0 < n <= _LARGEST
    )
    if len(good) != len(listed) or not good:
        faults.add(Code.INVALID_VALUE, path, "xid must be a number above 0, or a list of them")
    return good


def _kind(entry: dict[str, object], path: _PATH, faults: Faults) -> XidClass | None:
    value = entry.get("class")
    known = tuple(kind.value for kind in XidClass)
    if isinstance(value, str) and value in known:
        return XidClass(value)
    faults.add(
        Code.INVALID_VALUE,
        (*path, "class"),
        "class is missing" if value is None else f"there is no class {str(value)[:60]!r}",
        remedy=did_you_mean(str(value), known) or f"take one of {', '.join(known)}",
    )
    return None


def _name(value: object, path: _PATH, faults: Faults) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_NAME:
        return value
    faults.add(Code.INVALID_VALUE, path, f"name must be a text of at most {_LONGEST_NAME} letters")
    return None
