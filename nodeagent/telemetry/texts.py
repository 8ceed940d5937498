"""What a driver tells as bytes or numbers, in the words that a label has."""

from __future__ import annotations

from typing import Any

# The product brands of NVML's header (nvmlBrandType_t) from 0 on, as nvidia-smi calls them.
_BRANDS = (
    "Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan",
    "NVIDIA Virtual Applications", "NVIDIA Virtual PC", "NVIDIA Virtual Compute Server",
    "NVIDIA RTX Virtual Workstation", "NVIDIA Cloud Gaming", "Quadro RTX", "NVIDIA RTX", "NVIDIA",
    "GeForce RTX", "Titan RTX",
)  # fmt: skip


def as_text(name: str, told: Any) -> str:
    """The answer to the text field `name`; a brand that nobody knows stays a number."""
    if isinstance(told, bytes):
        return told.decode(errors="replace")
    if name.endswith("_BRAND"):
        return _BRANDS[told] if 0 <= told < len(_BRANDS) else str(told)
    if name.endswith(("COMBINED_ID", "SUBSYS_ID")):
        return f"0x{told:08X}"
    if hasattr(told, "__len__") and not isinstance(told, str):
        raw = bytes(told).hex()
        return "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
    return str(told)
