"""Where a GPU is in the machine: its NUMA node, and what its NVLinks lead to.

The first half of the node's GPUs are on NUMA node 0, the others on node 1. Links to switches are
spread over as many switches as an HGX board of four has; links of a pair all lead to the card
beside it.
"""

# A body is what its C name says:
# ruff: noqa: D103

from __future__ import annotations

from ctypes import c_uint, c_ulonglong
from typing import Any

import pynvml

from nodeagent.simulation.arguments import Array, Number, Out
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import GPU_ONLY, c_function
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.views import Device

_NOT_SUPPORTED = (Code.NOT_SUPPORTED,)
_SWITCHES = 4
_FIRST_SWITCH_BUS = 0xC0


@c_function(
    "nvmlDeviceGetMemoryAffinity",
    GPU_ONLY,
    Number(),
    Array(c_ulonglong),
    Number(),
    errors=_NOT_SUPPORTED,
)
def get_memory_affinity(library: Session, gpu: Device, size: int, nodes: Any, scope: int) -> None:
    if nodes is None or size == 0 or scope > pynvml.NVML_AFFINITY_SCOPE_SOCKET:
        raise Refused(Code.INVALID_ARGUMENT)
    nodes.demand(size)
    nodes.write(0, 1 << _numa_node(library, gpu.card))
    for index in range(1, size):
        nodes.write(index, 0)


@c_function("nvmlDeviceGetNvLinkState", GPU_ONLY, Number(), Out(c_uint), errors=_NOT_SUPPORTED)
def get_nvlink_state(library: Session, gpu: Device, link: int, active: c_uint) -> None:
    _require_link(gpu.card, link)
    active.value = _other_end(library, gpu.card) is not None


@c_function(
    "nvmlDeviceGetNvLinkRemoteDeviceType", GPU_ONLY, Number(), Out(c_uint), errors=_NOT_SUPPORTED
)
def get_nvlink_remote_device_type(library: Session, gpu: Device, link: int, kind: c_uint) -> None:
    other = _require_other_end(library, gpu.card, link)
    switch = not isinstance(other, Card)
    kind.value = (
        pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if switch else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    )


@c_function(
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    GPU_ONLY,
    Number(),
    Out(pynvml.nvmlPciInfo_t),
    errors=_NOT_SUPPORTED,
)
def get_nvlink_remote_pci_info(library: Session, gpu: Device, link: int, info: Any) -> None:
    other = _require_other_end(library, gpu.card, link)
    if isinstance(other, Card):
        domain, bus = other.identity.pci_domain, other.identity.pci_bus
    else:
        domain, bus = 0, _FIRST_SWITCH_BUS + link % _SWITCHES
    info.domain, info.bus, info.device = domain, bus, 0
    info.busId = f"{domain:08X}:{bus:02X}:00.0".encode()
    info.busIdLegacy = f"{domain:04X}:{bus:02X}:00.0".encode()


class _Switch:
    """An NVSwitch; which one, depends on the link."""


def _numa_node(library: Session, card: Card) -> int:
    return 2 * card.index // len(library.node.cards)


def _require_link(card: Card, link: int) -> None:
    if not card.board.nvlinks:
        raise Refused(Code.NOT_SUPPORTED)
    if link >= card.board.nvlinks:
        raise Refused(Code.INVALID_ARGUMENT)


def _require_other_end(library: Session, card: Card, link: int) -> Card | _Switch:
    """What a link leads to; raises Refused for one that leads nowhere."""
    _require_link(card, link)
    other = _other_end(library, card)
    if other is None:
        raise Refused(Code.NOT_SUPPORTED)
    return other


def _other_end(library: Session, card: Card) -> Card | _Switch | None:
    match card.board.nvlink_peer:
        case "switch":
            return _Switch()
        case "pair":
            beside = card.index ^ 1
            cards = library.node.cards
            linked = beside < len(cards) and cards[beside].board.board == card.board.board
            return cards[beside] if linked else None
        case _:
            return None
