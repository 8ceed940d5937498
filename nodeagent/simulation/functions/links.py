"""Links of a card: PCIe, NVLink with its errors and ports, what it leads to, the fabric.

The first half of the node's GPUs are on NUMA node 0, the others on node 1. Links to switches are
spread over as many switches as an HGX board of four has; links of a pair all lead to the card
beside it.
"""

from ctypes import c_ulonglong
from typing import Annotated, Any

import pynvml

from nodeagent.simulation.arguments import Array, Out
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import (
    GpuIn,
    UInt,
    UIntOut,
    ULongOut,
    WholeGpuIn,
    c_function,
)
from nodeagent.simulation.nvml_session import Session

_HOPPER, _BLACKWELL = (9, 0), (10, 0)
_SWITCHES = 4
_FIRST_SWITCH_BUS = 0xC0
_LINK_COUNTERS = {
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY: "replay",
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY: "recovery",
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT: "crcFlit",
    pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA: "crcData",
}
FabricInfo = Annotated[
    Any,
    Out({
        pynvml.c_nvmlGpuFabricInfo_v2_t: pynvml.nvmlGpuFabricInfo_v2,
        pynvml.c_nvmlGpuFabricInfo_v3_t: pynvml.nvmlGpuFabricInfo_v3,
    }),
]  # fmt: skip


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetMaxPcieLinkGeneration(
    session: Session, gpu: WholeGpuIn, generation: UIntOut
) -> None:
    generation.value = gpu.card.sensors.limits.pcie


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetMemoryAffinity(
    session: Session,
    gpu: WholeGpuIn,
    size: UInt,
    nodes: Annotated[Any, Array(c_ulonglong)],
    scope: UInt,
) -> None:
    """NUMA nodes as bits."""
    if nodes is None or size == 0 or scope > pynvml.NVML_AFFINITY_SCOPE_SOCKET:
        raise Refused(Code.INVALID_ARGUMENT)
    nodes.demand(size)
    node = 2 * gpu.card.index // len(session.node.cards)
    for index in range(size):
        nodes.write(index, 0 if index else 1 << node)


# --- NVLink ---------------------------------------------------------------------------------------


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetNvLinkErrorCounter(
    session: Session, gpu: WholeGpuIn, link: UInt, counter: UInt, count: ULongOut
) -> None:
    """Up to NVLink 4; newer links have ports with counters instead."""
    card = gpu.card
    if card.state.mig or card.board.compute_capability >= _BLACKWELL:
        raise Refused(Code.NOT_SUPPORTED)
    _require_link(card, link)
    if counter not in _LINK_COUNTERS:
        raise Refused(Code.INVALID_ARGUMENT)
    count.value = int(card.sensors.link_errors(_LINK_COUNTERS[counter], link))


@c_function(Code.NOT_SUPPORTED, Code.NO_PERMISSION)
def nvmlDeviceReadPRMCounters_v1(
    session: Session, gpu: WholeGpuIn, wanted: Annotated[Any, Out(pynvml.c_nvmlPRMCounterList_v1_t)]
) -> None:
    """Of the ports of NVLink 5; each counter has its own return code."""
    session.require_privilege()
    card = gpu.card
    if not card.board.nvlinks or card.state.mig or card.board.compute_capability < _BLACKWELL:
        raise Refused(Code.NOT_SUPPORTED)
    for index in range(wanted.numCounters):
        counter = wanted.counters[index]
        port = counter.inputValue.localPort
        if not 1 <= port <= card.board.nvlinks:  # ports are counted from 1
            counter.outputValue.status = Code.INVALID_ARGUMENT
            continue
        counter.outputValue.status = Code.SUCCESS
        counter.outputValue.outputType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        value = card.sensors.integer(f"prm.{counter.counterId}.{port}")
        counter.outputValue.outputValue.ullVal = value


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetGpuFabricInfoV(session: Session, gpu: WholeGpuIn, info: FabricInfo) -> None:
    """Of boards whose links lead to switches, from Hopper on."""
    card = gpu.card
    if card.board.nvlink_peer != "switch" or card.board.compute_capability < _HOPPER:
        raise Refused(Code.NOT_SUPPORTED)
    info.clusterUuid = (type(info.clusterUuid))(*range(1, 17))
    info.state = card.sensors.integer("fabric.state")
    info.status = card.sensors.integer("fabric.status")
    info.cliqueId = card.sensors.integer("fabric.clique")
    info.healthMask = card.sensors.integer("fabric.health")
    if isinstance(info, pynvml.c_nvmlGpuFabricInfo_v3_t):
        info.healthSummary = card.sensors.integer("fabric.summary")


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetNvLinkState(
    session: Session, gpu: WholeGpuIn, link: UInt, active: UIntOut
) -> None:
    _require_link(gpu.card, link)
    leads = _leads_to_switch(gpu.card) or _paired(session, gpu.card) is not None
    active.value = gpu.card.sensors.integer(f"link.{link}.up", int(leads))


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetNvLinkRemoteDeviceType(
    session: Session, gpu: WholeGpuIn, link: UInt, kind: UIntOut
) -> None:
    _require_link(gpu.card, link)
    if _leads_to_switch(gpu.card):
        kind.value = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    elif _paired(session, gpu.card) is not None:
        kind.value = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    else:
        raise Refused(Code.NOT_SUPPORTED)


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetNvLinkRemotePciInfo_v2(
    session: Session, gpu: WholeGpuIn, link: UInt, info: Annotated[Any, Out(pynvml.nvmlPciInfo_t)]
) -> None:
    _require_link(gpu.card, link)
    if _leads_to_switch(gpu.card):
        domain, bus = 0, _FIRST_SWITCH_BUS + link % _SWITCHES
    elif (other := _paired(session, gpu.card)) is not None:
        domain, bus = other.identity.pci_domain, other.identity.pci_bus
    else:
        raise Refused(Code.NOT_SUPPORTED)
    info.domain, info.bus, info.device = domain, bus, 0
    info.busId = f"{domain:08X}:{bus:02X}:00.0".encode()
    info.busIdLegacy = f"{domain:04X}:{bus:02X}:00.0".encode()


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetP2PStatus(
    session: Session, gpu: GpuIn, other: GpuIn, what: UInt, status: UIntOut
) -> None:
    """Over NVLink where both have links; with MIG on there is none."""
    cards = (gpu.card, other.card)
    linked = all(c.board.nvlinks and not c.state.mig for c in cards) and cards[0] is not cards[1]
    over_nvlink = what == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    status.value = (
        pynvml.NVML_P2P_STATUS_OK
        if linked or not over_nvlink
        else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
    )


def _require_link(card: Card, link: int) -> None:
    if not card.board.nvlinks:
        raise Refused(Code.NOT_SUPPORTED)
    if link >= card.board.nvlinks:
        raise Refused(Code.INVALID_ARGUMENT)


def _leads_to_switch(card: Card) -> bool:
    return card.board.nvlink_peer == "switch"


def _paired(session: Session, card: Card) -> Card | None:
    """The card that all links lead to, over a bridge."""
    cards, beside = session.node.cards, card.index ^ 1
    if card.board.nvlink_peer != "pair" or beside >= len(cards):
        return None
    return cards[beside] if cards[beside].board.name == card.board.name else None
