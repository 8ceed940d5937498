"""The table of XIDs, and a user's entries over it."""

from __future__ import annotations

import json
import pkgutil
from pathlib import Path

import pytest

from nodeagent.documents.xids import read_xid_table
from nodeagent.errors import DocumentError
from nodeagent.health.xids import XidClass, default_table

PAGE = (Path(__file__).parents[2] / "docs/health.md").read_text(encoding="utf-8")

_FINDINGS = {
    XidClass.APPLICATION: "`xidApplication`",
    XidClass.INFORMATION: "none: counted and reported",
    XidClass.GPU_RESET: "`xidReset`",
    XidClass.NODE_REBOOT: "`xidReboot`; 79 is `fallenOffBus`",
    XidClass.HARDWARE: "`xidHardware`",
    XidClass.SOFTWARE: "`xidSoftware`",
    XidClass.SUPPORT: "`xidSupport`",
    XidClass.NVLINK5: "`xidNvlink`",
    XidClass.RECOVERY_ACTION: "none of its own: `recoveryAction`",
    XidClass.UNCLASSIFIED: "`xidUnclassified`",
}


def _ranges(numbers: list[int]) -> str:
    """`8, 39-41`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)


def page_row(kind: XidClass) -> str:
    """A row of the page's table of classes."""
    numbers = [row.xid for row in default_table().rows.values() if row.kind is kind]
    shown = "all others of 1-173" if kind is XidClass.SUPPORT else _ranges(numbers)
    if kind is XidClass.UNCLASSIFIED:
        shown += ", and what is not in the table"
    return f"| `{kind.value}` | {shown} | {_FINDINGS[kind]} |"


@pytest.mark.parametrize("kind", XidClass)
def test_the_page_shows_the_classes(kind: XidClass) -> None:
    """docs/health.md has the XIDs of each class as they are in the table."""
    assert page_row(kind) in PAGE.splitlines()


def test_the_table_is_whole() -> None:
    """It has each number from 1 to 173, and the classes that NVIDIA's catalog asks for."""
    table = default_table()
    assert sorted(table.rows) == list(range(1, 174))
    catalog = json.loads(pkgutil.get_data("nodeagent.health", "xid_table.json") or b"")["xids"]
    by_advice = {
        "RESTART_APP": XidClass.APPLICATION,
        "IGNORE": XidClass.INFORMATION,
        "RESET_GPU": XidClass.GPU_RESET,
        "RESTART_BM": XidClass.NODE_REBOOT,
        "RESTART_VM": XidClass.NODE_REBOOT,
        "CONTACT_SUPPORT": XidClass.SUPPORT,
        "WORKFLOW_NVLINK5_ERR": XidClass.NVLINK5,
    }
    for entry in catalog:
        if entry.get("nvidia_immediate") in by_advice:
            kind = by_advice[entry["nvidia_immediate"]]
            assert table.row(entry["xid"]).kind is kind, entry


def test_an_unknown_number_is_unclassified() -> None:
    """A driver newer than the table is no reason to fail."""
    row = default_table().row(4242)
    assert (row.kind, str(row)) == (XidClass.UNCLASSIFIED, "XID 4242")


def test_entries_are_laid_over_the_table() -> None:
    """One number or several, new ones too; the later entry wins, the rest stays."""
    table = read_xid_table(
        """
        version: v1
        xids:
          - {xid: 63, class: gpuReset}
          - {xid: [13, 31], class: information}
          - {xid: 31, class: support}
          - {xid: 999, name: our own, class: nodeReboot}
        """
    )
    assert table.row(63).kind is XidClass.GPU_RESET
    assert table.row(63).name == default_table().row(63).name
    assert [table.row(n).kind for n in (13, 31)] == [XidClass.INFORMATION, XidClass.SUPPORT]
    assert str(table.row(999)) == "XID 999 (our own)"
    assert table.row(79) == default_table().row(79)


def test_the_page_has_an_example() -> None:
    """The document that docs/health.md shows is accepted."""
    block = PAGE.split("```yml\n")[1].split("```")[0]
    assert read_xid_table(block).row(999).kind is XidClass.NODE_REBOOT


def test_json_is_read_as_well() -> None:
    """The same document in JSON."""
    assert read_xid_table('{"version": "v1", "xids": [{"xid": 8, "class": "support"}]}').row(
        8
    ).kind is (XidClass.SUPPORT)


def test_every_fault_is_named_with_its_line() -> None:
    """Unknown keys, classes and numbers are reported with what would be right."""
    with pytest.raises(DocumentError) as caught:
        read_xid_table(
            "version: v1\n"
            "xid: []\n"
            "xids:\n"
            "  - {xid: 13, klass: support, class: gpu-reset}\n"
            "  - {xid: 0, class: information}\n"
            "  - {xid: [1, yes], class: information}\n"
            "  - {xid: 7, class: [a], name: 7}\n"
            "  - 13\n"
        )
    reported = {(p.path, p.remedy) for p in caught.value.problems}
    assert ("xid", "did you mean xids?") in reported
    assert ("xids[0].klass", "did you mean class?") in reported
    assert ("xids[0].class", "did you mean gpuReset?") in reported
    assert {p.path for p in caught.value.problems} >= {
        "xids[1].xid",
        "xids[2].xid[1]",
        "xids[3].class",
        "xids[3].name",
        "xids[4]",
    }
    assert all("(line " in p.message for p in caught.value.problems)


@pytest.mark.parametrize("text", ["[]", "version: v2\nxids: []", "version: v1", "xids: []"])
def test_another_document_is_refused(text: str) -> None:
    """What is no such table is said to be none."""
    with pytest.raises(DocumentError):
        read_xid_table(text)
