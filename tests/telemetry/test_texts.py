"""What becomes a label of what a driver tells."""

from __future__ import annotations

import pynvml
import pytest

from nodeagent.telemetry.fields import as_text


@pytest.mark.parametrize(
    ("name", "told", "text"),
    [
        ("DCGM_FI_DEV_BRAND", pynvml.NVML_BRAND_TESLA, "Tesla"),
        ("DCGM_FI_DEV_BRAND", pynvml.NVML_BRAND_NVIDIA, "NVIDIA"),
        ("DCGM_FI_DEV_BRAND", pynvml.NVML_BRAND_TITAN_RTX, "Titan RTX"),
        ("DCGM_FI_DEV_BRAND", 99, "99"),
        ("DCGM_FI_DEV_SERIAL", b"0123", "0123"),
        ("DCGM_FI_DEV_PCI_SUBSYS_ID", 0x16C110DE, "0x16C110DE"),
        ("DCGM_FI_DEV_VBIOS_VERSION", "96.00", "96.00"),
    ],
)
def test_a_text(name: str, told: object, text: str) -> None:
    """Numbers that stand for something are words, and bytes are text."""
    assert as_text(name, told) == text
