"""The spellings of devices and of mig-parted's filters."""

from __future__ import annotations

import pytest

from nodeagent.documents.terms import canonical_device, read_pci_filter
from nodeagent.plan.desired import PciFilter

UUID = "GPU-8f6e2f4c-7d1b-4d0f-9f3a-2b6c5d4e3f2a"


def test_one_spelling() -> None:
    """All spellings of one device come to the same."""
    canonical: dict[object, object] = {
        0: 0,
        7: 7,
        UUID: UUID,
        UUID.upper(): UUID,
        UUID.lower(): UUID,
        "00000000:1A:00.0": "00000000:1A:00.0",
        "0000:1a:00.0": "00000000:1A:00.0",
        "1a:00.0": "00000000:1A:00.0",
        "1a:00": "00000000:1A:00.0",
        "0000:10:00.0": "00000000:10:00.0",
        "0001:1a:1f.7": "00000001:1A:1F.7",
    }
    assert {written: canonical_device(written) for written in canonical} == canonical


def test_no_device() -> None:
    """What names no GPU is refused with what would."""
    cases: list[tuple[object, str]] = [
        (-1, "from 0 to"),
        (10**9, "from 0 to"),
        (True, "an index such as 0"),
        (1.5, "an index such as 0"),
        (None, "an index such as 0"),
        ([0], "an index such as 0"),
        ("all", "stands alone"),
        ("0", "without quotes: 0"),
        ("MIG-" + UUID[4:], "names a MIG device"),
        (UUID[:-1], "8-4-4-4-12"),
        ("GPU-0", "8-4-4-4-12"),
        ("1a:20.0", "an index such as 0"),
        ("1a:00.8", "an index such as 0"),
        ("00000:1a:00.0", "an index such as 0"),
        ("nvidia0", "an index such as 0"),
        ("", "an index such as 0"),
        (UUID + "\n", "8-4-4-4-12"),
    ]
    for written, words in cases:
        with pytest.raises(ValueError, match=words):
            canonical_device(written)


def test_filters() -> None:
    """A filter is 32 bits, device high, and may name the sub-system."""
    assert read_pci_filter("0x233010DE") == PciFilter(0x233010DE)
    assert read_pci_filter("0X20b010de:0x134F10DE") == PciFilter(0x20B010DE, 0x134F10DE)


def test_no_filter() -> None:
    """A filter that could never match is refused, not taken for one that matches nothing."""
    cases: list[tuple[str, str]] = [
        ("0x10DE2330", "did you mean 0x233010DE"),
        ("0x12341234", "NVIDIA's are 10DE"),
        ("0x2330", "8 hexadecimal digits"),
        ("2330", "8 hexadecimal digits"),
        ("MODEL", "8 hexadecimal digits"),
        ("0x233010DE:", "8 hexadecimal digits"),
        (" 0x233010DE", "8 hexadecimal digits"),
    ]
    for written, words in cases:
        with pytest.raises(ValueError, match=words):
            read_pci_filter(written)
