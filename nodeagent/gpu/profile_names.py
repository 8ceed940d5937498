"""The canonical name of a GPU instance profile, whatever the driver calls it."""

from __future__ import annotations

import math

import pynvml

from nodeagent.plan.names import ProfileName

_ATTRIBUTES = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}
_GIB = 1 << 30


def profile_name(told: str, *, kind: int, slices: int, memory: int, card_memory: int) -> str:
    """The name the driver told (`MIG 1g.10gb+me`), or, from drivers that tell none, a made one.

    `kind` is NVML's enumeration value; `memory` of the instance and `card_memory` are bytes.
    """
    try:
        return str(ProfileName.parse(told.removeprefix("MIG ").strip()))
    except ValueError:
        gigabytes = _gigabytes(memory, card_memory)
        return f"{slices}g.{gigabytes}gb{_ATTRIBUTES.get(kind, '')}"


def _gigabytes(memory: int, card_memory: int) -> int:
    """Eighths of the card, rounded up, of its memory in GiB, rounded up, rounded to a whole.

    The rule of NVIDIA's go-nvlib, which device plugin and mig-parted print too.
    """
    if not card_memory:
        return math.ceil(memory / _GIB)
    eighths = math.ceil(8 * memory / card_memory) / 8
    # Go's math.Round goes away from zero at a half; Python's round goes to the even number.
    return math.floor(eighths * math.ceil(card_memory / _GIB) + 0.5)
