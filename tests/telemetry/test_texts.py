"""What becomes a label of what a driver answers."""

from __future__ import annotations

import pynvml

from nodeagent.telemetry.fields import as_text


def test_the_texts_of_labels() -> None:
    """Numbers that stand for something are words, and bytes are text."""
    for name, answer, text in (
        ("DCGM_FI_DEV_BRAND", pynvml.NVML_BRAND_TESLA, "Tesla"),
        ("DCGM_FI_DEV_BRAND", pynvml.NVML_BRAND_NVIDIA, "NVIDIA"),
        ("DCGM_FI_DEV_BRAND", pynvml.NVML_BRAND_TITAN_RTX, "Titan RTX"),
        ("DCGM_FI_DEV_BRAND", 99, "99"),
        ("DCGM_FI_DEV_SERIAL", b"0123", "0123"),
        ("DCGM_FI_DEV_PCI_SUBSYS_ID", 0x16C110DE, "0x16C110DE"),
        ("DCGM_FI_DEV_VBIOS_VERSION", "96.00", "96.00"),
    ):
        assert as_text(name, answer) == text
