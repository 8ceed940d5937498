"""The agent's metrics beside what `nvidia-smi -q -x` says of the same GPU, field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from xml.etree import ElementTree as ET

_SAMPLE = re.compile(r"^(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)
_UUID = re.compile(r'\bUUID="([^"]*)"')

# Metric, place in the XML, and how far they may be apart: two looks are never at one moment.
_PAIRS = (
    ("DCGM_FI_DEV_GPU_TEMP", "temperature/gpu_temp", 3),
    ("DCGM_FI_DEV_MEMORY_TEMP", "temperature/memory_temp", 3),
    ("DCGM_FI_DEV_POWER_USAGE", "gpu_power_readings/instant_power_draw", 25),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "gpu_power_readings/current_power_limit", 0),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gpu_power_readings/current_power_limit", 0),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", "gpu_power_readings/min_power_limit", 0),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", "gpu_power_readings/max_power_limit", 0),
    ("DCGM_FI_DEV_FB_TOTAL", "fb_memory_usage/total", 0),
    ("DCGM_FI_DEV_FB_RESERVED", "fb_memory_usage/reserved", 1),
    ("DCGM_FI_DEV_FB_USED", "fb_memory_usage/used", 64),
    ("DCGM_FI_DEV_FB_FREE", "fb_memory_usage/free", 64),
    ("DCGM_FI_DEV_BAR1_TOTAL", "bar1_memory_usage/total", 0),
    ("DCGM_FI_DEV_BAR1_USED", "bar1_memory_usage/used", 16),
    ("DCGM_FI_DEV_GPU_UTIL", "utilization/gpu_util", 10),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "utilization/memory_util", 10),
    ("DCGM_FI_DEV_ENC_UTIL", "utilization/encoder_util", 5),
    ("DCGM_FI_DEV_DEC_UTIL", "utilization/decoder_util", 5),
    ("DCGM_FI_DEV_SM_CLOCK", "clocks/sm_clock", 200),
    ("DCGM_FI_DEV_MEM_CLOCK", "clocks/mem_clock", 200),
    ("DCGM_FI_DEV_VIDEO_CLOCK", "clocks/video_clock", 200),
    ("DCGM_FI_DEV_MAX_SM_CLOCK", "max_clocks/sm_clock", 0),
    ("DCGM_FI_DEV_MAX_MEM_CLOCK", "max_clocks/mem_clock", 0),
    ("DCGM_FI_DEV_PCIE_LINK_GEN", "pci/pci_gpu_link_info/pcie_gen/current_link_gen", 4),
    ("DCGM_FI_DEV_PCIE_LINK_WIDTH", "pci/pci_gpu_link_info/link_widths/current_link_width", 0),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "pci/replay_counter", 0),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "ecc_errors/volatile/dram_uncorrectable", 0),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc_errors/volatile/dram_correctable", 0),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "remapped_rows/remapped_row_corr", 0),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "remapped_rows/remapped_row_unc", 0),
    ("DCGM_FI_DEV_PSTATE", "performance_state", 1),
    ("DCGM_FI_DEV_FAN_SPEED", "fan_speed", 5),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One field: `ours` and `theirs`, None where there is none; `agree` None where one lacks."""

    gpu: str
    metric: str
    ours: float | None
    theirs: float | None
    agree: bool | None


def compared(metrics: str, xml: str) -> list[dict[str, Any]]:
    """Every pair of every GPU of `xml`, as JSON has it."""
    return [asdict(pair) for pair in _pairs(metrics, xml)]


def _pairs(metrics: str, xml: str) -> Iterator[Pair]:
    ours = _samples(metrics)
    for gpu in ET.fromstring(xml).iter("gpu"):  # noqa: S314 - written by the driver's own program
        uuid = gpu.findtext("uuid", "")
        for metric, path, apart in _PAIRS:
            mine, theirs = ours.get((uuid, metric)), _number(gpu.findtext(path, ""))
            agree = None if mine is None or theirs is None else abs(mine - theirs) <= apart
            if mine is not None or theirs is not None:
                yield Pair(uuid, metric, mine, theirs, agree)


def _samples(metrics: str) -> dict[tuple[str, str], float]:
    """Of GPUs as a whole, by UUID and name."""
    found: dict[tuple[str, str], float] = {}
    for sample in _SAMPLE.finditer(metrics):
        uuid = _UUID.search(sample["labels"])
        if uuid and "GPU_I_ID" not in sample["labels"]:
            found.setdefault((uuid[1], sample["name"]), float(sample["value"]))
    return found


def _number(text: str) -> float | None:
    """`35 C`, `8x`, `P0`, `1980 MHz`; None for `N/A`."""
    digits = re.search(r"-?[0-9]+(\.[0-9]+)?", text)
    return float(digits[0]) if digits else None
