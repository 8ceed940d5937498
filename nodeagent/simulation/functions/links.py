"""What a card says of its links: PCIe, NVLink's errors and ports, the fabric it is part of."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint, c_ulonglong
from typing import Any

import pynvml

from nodeagent.simulation.arguments import Number, Out, OutOf
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import GPU_ONLY, c_function
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.views import Device

_NOT_SUPPORTED = (Code.NOT_SUPPORTED,)
_LANES = 16
_HOPPER, _BLACKWELL = (9, 0), (10, 0)
_LINK_COUNTERS = {
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY: "replay",
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY: "recovery",
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT: "crcFlit",
    pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA: "crcData",
}
_TRAINED = 3  # the fabric's state "completed"
_HEALTHY = 1  # its summary


def _pcie(name: str, answer: Callable[[Card], int]) -> None:
    @c_function(name, GPU_ONLY, Out(c_uint), errors=_NOT_SUPPORTED)
    def read(library: Session, gpu: Device, value: c_uint) -> None:
        value.value = answer(gpu.card)


def _generation(card: Card) -> int:
    return int(card.sensors.value("pcie.generation", card.sensors.limits.pcie))


_pcie("nvmlDeviceGetCurrPcieLinkGeneration", _generation)
_pcie("nvmlDeviceGetMaxPcieLinkGeneration", lambda card: card.sensors.limits.pcie)
_pcie("nvmlDeviceGetCurrPcieLinkWidth", lambda card: int(card.sensors.value("pcie.width", _LANES)))
_pcie("nvmlDeviceGetMaxPcieLinkWidth", lambda _: _LANES)
_pcie("nvmlDeviceGetPcieReplayCounter", lambda card: int(card.sensors.named("pcie.replays")))


@c_function(
    "nvmlDeviceGetNvLinkErrorCounter",
    GPU_ONLY,
    Number(),
    Number(),
    Out(c_ulonglong),
    errors=_NOT_SUPPORTED,
)
def get_link_errors(
    library: Session, gpu: Device, link: int, counter: int, count: c_ulonglong
) -> None:
    """Up to NVLink 4; newer links have ports with counters instead."""
    card = gpu.card
    if not card.board.nvlinks or card.state.mig or card.board.compute_capability >= _BLACKWELL:
        raise Refused(Code.NOT_SUPPORTED)
    if link >= card.board.nvlinks or counter not in _LINK_COUNTERS:
        raise Refused(Code.INVALID_ARGUMENT)
    count.value = int(card.sensors.link_errors(_LINK_COUNTERS[counter], link))


@c_function(
    "nvmlDeviceReadPRMCounters_v1",
    GPU_ONLY,
    Out(pynvml.c_nvmlPRMCounterList_v1_t),
    errors=(*_NOT_SUPPORTED, Code.NO_PERMISSION),
)
def read_port_counters(library: Session, gpu: Device, wanted: Any) -> None:
    """Of the ports of NVLink 5; each counter has its own return code."""
    library.require_privilege()
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
        value = card.sensors.value(f"prm.{counter.counterId}.{port}", 0)
        counter.outputValue.outputValue.ullVal = int(value)


@c_function(
    "nvmlDeviceGetGpuFabricInfoV",
    GPU_ONLY,
    OutOf(
        {
            pynvml.c_nvmlGpuFabricInfo_v2_t: pynvml.nvmlGpuFabricInfo_v2,
            pynvml.c_nvmlGpuFabricInfo_v3_t: pynvml.nvmlGpuFabricInfo_v3,
        }
    ),
    errors=(*_NOT_SUPPORTED, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_fabric_info(library: Session, gpu: Device, info: Any) -> None:
    """Of boards whose links lead to switches, from Hopper on."""
    card = gpu.card
    if card.board.nvlink_peer != "switch" or card.board.compute_capability < _HOPPER:
        raise Refused(Code.NOT_SUPPORTED)
    value_of = card.sensors.value
    info.clusterUuid = (type(info.clusterUuid))(*range(1, 17))
    info.state = int(value_of("fabric.state", _TRAINED))
    info.status = int(value_of("fabric.status", 0))
    info.cliqueId = int(value_of("fabric.clique", 1))
    info.healthMask = int(value_of("fabric.health", 0))
    if isinstance(info, pynvml.c_nvmlGpuFabricInfo_v3_t):
        info.healthSummary = int(value_of("fabric.summary", _HEALTHY))
