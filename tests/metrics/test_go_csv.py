"""Records as Go's encoding/csv reads them with # for comments."""

from __future__ import annotations

import pytest

from nodeagent.metrics.selection import CsvRecord, records


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b,c\n", [CsvRecord(1, ("a", "b", "c"))]),
        ("a, b ,c", [CsvRecord(1, ("a", " b ", "c"))]),
        ("\n\n# no, record\r\na,b\r\n", [CsvRecord(4, ("a", "b"))]),
        (" # a blank before it: no comment", [CsvRecord(1, (" # a blank before it: no comment",))]),
        ('a,"b, with ""comma""",c', [CsvRecord(1, ("a", 'b, with "comma"', "c"))]),
        ('a,"two\nlines"\nb', [CsvRecord(1, ("a", "two\nlines")), CsvRecord(3, ("b",))]),
        ('a,"",', [CsvRecord(1, ("a", "", ""))]),
        ("a,,", [CsvRecord(1, ("a", "", ""))]),
        ("\ufeffa", [CsvRecord(1, ("a",))]),
        ("", []),
    ],
)
def test_records(text: str, expected: list[CsvRecord]) -> None:
    """Blanks are kept, quotation marks are taken off, comments and empty lines are nothing."""
    assert list(records(text)) == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('a, "b"\nc', "inside a field"),
        ('a,b"c\nc', "inside a field"),
        ('"a"b\nc', "behind a closing"),
        ('"a\nc', "never closed"),
    ],
)
def test_a_fault_ends_with_its_line(text: str, fault: str) -> None:
    """Where Go gives up, the record says why, and the next line counts."""
    broken, *rest = records(text)
    assert fault in broken.fault
    assert broken.line == 1
    assert rest == [CsvRecord(2, ("c",))]
