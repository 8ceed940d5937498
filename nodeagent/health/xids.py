"""What an XID asks for: NVIDIA's catalog as data, one class for each number.

An XID is the number of a driver error. Sources disagree about many of them, so the classes are a
table that a user's file can correct, and the driver's own recovery action outranks it. The data is
`xid_table.json`; where each of its columns comes from stands at its top.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Protocol

from nodeagent.plan.problems import Code
from nodeagent.text import did_you_mean

OFF_THE_BUS = 79
RECOVERY_CHANGED = 154
BLOCKS_CALLS = frozenset({79, 119, 120})  # after these, driver calls may never return (DCGM)


class XidClass(StrEnum):
    """What is done about an XID."""

    APPLICATION = "application"  # restart the application; the device stays healthy
    INFORMATION = "information"  # counted and reported, no finding
    GPU_RESET = "gpuReset"
    NODE_REBOOT = "nodeReboot"
    HARDWARE = "hardware"  # cabling and power, then inspection
    SOFTWARE = "software"  # another driver or firmware
    SUPPORT = "support"  # no action is defined: reported, and inspected when it comes back
    NVLINK5 = "nvlink5"  # the kernel log's severity decides
    RECOVERY_ACTION = "recoveryAction"  # says that the driver's recovery action changed
    UNCLASSIFIED = "unclassified"  # the catalog has no action yet


@dataclass(frozen=True, slots=True)
class XidRow:
    """One number: NVIDIA's name for it, its advice (`RESET_GPU`; "" for none) and the class."""

    xid: int
    name: str
    kind: XidClass
    advice: str = ""

    def __str__(self) -> str:
        return f"XID {self.xid}" if self.name in ("", "Unused") else f"XID {self.xid} ({self.name})"


@dataclass(frozen=True, slots=True)
class XidTable:
    """All rows by number. A number that has none is unclassified."""

    rows: Mapping[int, XidRow]

    def row(self, xid: int) -> XidRow:
        return self.rows.get(xid) or XidRow(xid, "", XidClass.UNCLASSIFIED)


@cache
def default_table() -> XidTable:
    """The table that comes with the program."""
    data = json.loads(pkgutil.get_data("nodeagent.health", "xid_table.json") or b"")
    return XidTable({entry["xid"]: _row(entry) for entry in data["xids"]})


def _row(entry: Mapping[str, object]) -> XidRow:
    number = entry["xid"]
    if not isinstance(number, int):
        raise TypeError(f"xid_table.json: {number!r} is no XID")
    return XidRow(
        xid=number,
        name=str(entry["name"]),
        kind=XidClass(str(entry["class"])),
        advice=str(entry.get("nvidia_immediate", "")),
    )


# --- a user's own classes, laid over the table ---

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

        version: v1
        xids:
          - {xid: 63, class: gpuReset}
          - {xid: [13, 31], class: information}
          - {xid: 999, name: our own, class: nodeReboot}

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
