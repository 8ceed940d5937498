"""nos' shares of a GPU as the plan's `mps`: how much memory one of its gigabytes is, and for whom.

nos divides a card into ceil(MiB / 1000) equal gigabytes (an H100 with 81,559 MiB has 82), so one
of these is neither a GB nor a GiB. It is taken for what it is in that sum: as many parts of the
card's memory, cut down to whole MiB. Then every layout that nos thinks possible does fit, and a
share's memory does not depend on the others'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodeagent.plan.observed import Gpu
from nodeagent.plan.shares import MIB

MEMORY_LABEL = "nvidia.com/gpu.memory"  # MiB of each GPU, as feature discovery writes it
USER = 1000  # whom nos' own daemon runs as, and whom it therefore tells its clients to run as

_MIB_OF_A_GIGABYTE = 1000
_LARGEST_LABEL = 12  # digits


def card_memory(gpu: Gpu | None, labels: Mapping[str, str]) -> int:
    """MiB: what the driver says, else what the node's label does; 0 when nobody says."""
    told = gpu.memory // MIB if gpu else 0
    label = labels.get(MEMORY_LABEL, "")
    is_number = label.isascii() and label.isdecimal() and len(label) <= _LARGEST_LABEL
    return told or (int(label) if is_number else 0)


def share_memory(size: int, card: int) -> str:
    """The memory of a share of `size` of nos' gigabytes on a card of `card` MiB, as a quantity."""
    if not card:
        return f"{size}G"  # at least what the name says
    gigabytes = -(-card // _MIB_OF_A_GIGABYTE)
    return f"{max(1, size * card // gigabytes)}Mi"


def mps_entry(counts: Mapping[int, int], card: int) -> dict[str, Any]:
    """The plan's `mps` with so many shares of each size, on a card of `card` MiB (0: unknown).

    nos limits no threads, so nothing does here.
    """
    return {
        "shares": {
            share_name(size): {"count": counts[size], "memory": share_memory(size, card)}
            for size in sorted(counts)
        },
        "user": USER,
    }


def share_name(size: int) -> str:
    """What nos calls such a share, and what it is called in the plan."""
    return f"{size}gb"
