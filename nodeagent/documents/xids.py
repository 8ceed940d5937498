"""A user's own classes of XIDs, from the file that the settings name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nodeagent.documents.bounded_yaml import LARGEST_TEXT, read_tree
from nodeagent.documents.findings import DocumentPath, Findings
from nodeagent.errors import DocumentError, UsageError
from nodeagent.files.state import read_regular_file
from nodeagent.health.xids import XidClass, XidTable, default_table
from nodeagent.plan.problems import Code
from nodeagent.structs import replace
from nodeagent.text import did_you_mean


def read_xid_table(text: str | bytes) -> XidTable:
    """The program's table with the text's entries laid over it; raises DocumentError with every
    fault found.
    """
    tree = read_tree(text)
    findings = tree.findings()
    table = _overridden(tree.value, findings)
    findings.raise_any()
    return table


def xid_table(path: Path | None) -> XidTable:
    """The table in force; without a file the program's own. Blocks; raises UsageError for a file
    that cannot be read or is not accepted.
    """
    if path is None:
        return default_table()
    try:
        return read_xid_table(read_regular_file(path, LARGEST_TEXT))
    except OSError as error:
        raise UsageError(
            f"health.xids: {path} cannot be read: {error.strerror or error}"
        ) from error
    except DocumentError as error:
        raise UsageError(f"health.xids: {path}: {error.message}", remedy=error.remedy) from error


# --- the document ---

_KEYS = ("version", "xids")
_ENTRY_KEYS = ("xid", "class", "name")
_LARGEST = 0xFFFF_FFFF  # eventData has 64 bits; no XID is near this
_LONGEST_NAME = 100


def _overridden(document: object, faults: Findings) -> XidTable:
    """The program's table with the document's entries laid over it, in order; the later one wins.

        version: v1
        xids:
          - {xid: 63, class: gpuReset}
          - {xid: [13, 31], class: information}
          - {xid: 999, name: our own, class: nodeReboot}

    Every fault is added to `faults`.
    """
    table = default_table()
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
        path: DocumentPath = ("xids", index)
        if not isinstance(entry, dict):
            faults.add(Code.INVALID_VALUE, path, "an entry is a map with xid and class")
            continue
        _refuse_unknown(entry, path, _ENTRY_KEYS, faults)
        numbers = _numbers(entry.get("xid"), (*path, "xid"), faults)
        kind = _kind(entry, path, faults)
        name = _name(entry.get("name"), (*path, "name"), faults)
        if kind is not None:
            for number in numbers:
                row = rows.get(number) or table.row(number)
                rows[number] = replace(row, kind=kind, name=row.name if name is None else name)
    return XidTable(rows)


def _refuse_unknown(
    given: Iterable[object], path: DocumentPath, known: tuple[str, ...], faults: Findings
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


def _numbers(value: object, path: DocumentPath, faults: Findings) -> tuple[int, ...]:
    """One XID or several."""
    listed = value if isinstance(value, list) else [value]
    good = tuple(
        n for n in listed if isinstance(n, int) and not isinstance(n, bool) and 0 < n <= _LARGEST
    )
    if len(good) != len(listed) or not good:
        faults.add(Code.INVALID_VALUE, path, "xid must be a number above 0, or a list of them")
    return good


def _kind(entry: dict[str, object], path: DocumentPath, faults: Findings) -> XidClass | None:
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


def _name(value: object, path: DocumentPath, faults: Findings) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_NAME:
        return value
    faults.add(Code.INVALID_VALUE, path, f"name must be a text of at most {_LONGEST_NAME} letters")
    return None
