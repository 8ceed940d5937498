"""Event sets: waiting for what the driver reports."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: D103

from __future__ import annotations

import time
from ctypes import c_ulonglong
from typing import Any

import pynvml

from nodeagent.simulation.arguments import HandleOut, Number, Out, pointer_to
from nodeagent.simulation.card import MIG_CONFIG_CHANGE
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import EVENT_SET, GPU_ONLY, c_function
from nodeagent.simulation.handles import Kind
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.owned_objects import EventSet
from nodeagent.simulation.views import Device

_EVERY_CARD = (
    pynvml.nvmlEventTypeSingleBitEccError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypePState
    | pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeClock
)
_SINCE_AMPERE = (
    pynvml.nvmlEventTypeSingleBitEccErrorStorm
    | pynvml.nvmlEventTypeDramRetirementEvent
    | pynvml.nvmlEventTypeDramRetirementFailure
    | pynvml.nvmlEventTypeNonFatalPoisonError
    | pynvml.nvmlEventTypeFatalPoisonError
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)
_AMPERE = (8, 0)


@c_function("nvmlEventSetCreate", HandleOut(Kind.EVENT_SET))
def create(library: Session, handle: Any) -> None:
    number = library.event_sets.make()
    handle.write(library.handles.give(Kind.EVENT_SET, library.session, serial=number))


@c_function(
    "nvmlDeviceGetSupportedEventTypes", GPU_ONLY, Out(c_ulonglong), errors=(Code.NOT_SUPPORTED,)
)
def get_supported_types(library: Session, gpu: Device, types: c_ulonglong) -> None:
    types.value = _types(gpu)
    if gpu.card.board.has_mig and library.node.switches.supported_events_tell_mig:
        types.value |= MIG_CONFIG_CHANGE


@c_function("nvmlDeviceRegisterEvents", GPU_ONLY, Number(), EVENT_SET, errors=(Code.NOT_SUPPORTED,))
def register(library: Session, gpu: Device, types: int, events: EventSet) -> None:
    """On a whole GPU; its instances report through it."""
    known = _types(gpu) | (MIG_CONFIG_CHANGE if gpu.card.board.has_mig else 0)
    if types & ~known:
        raise Refused(Code.NOT_SUPPORTED)
    happened = library.node.events
    events.register(gpu.card.index, types, happened[-1].number if happened else 0)


@c_function(
    "nvmlEventSetWait_v2",
    EVENT_SET,
    Out(pynvml.c_nvmlEventData_t),
    Number(),
    errors=(Code.TIMEOUT,),
)
def wait(library: Session, events: EventSet, data: Any, milliseconds: int) -> None:
    """The lock is given up while it waits."""
    node, deadline = library.node, time.monotonic() + milliseconds / 1000
    while (event := events.next(node.events)) is None:
        if any(node.cards[gpu].state.failure == Code.GPU_IS_LOST for gpu in events.wanted):
            raise Refused(Code.GPU_IS_LOST)
        left = deadline - time.monotonic()
        if left <= 0:
            raise Refused(Code.TIMEOUT)
        node.wait(left)
        library.require_open()
    card = node.cards[event.gpu]
    data.device = pointer_to(library.give(Device(card)), Kind.GPU)
    data.eventType, data.eventData = event.type, event.data
    data.gpuInstanceId, data.computeInstanceId = event.instance, event.compute


@c_function("nvmlEventSetFree", EVENT_SET)
def free(library: Session, events: EventSet) -> None:
    library.event_sets.free(events)


def _types(gpu: Device) -> int:
    newer = gpu.card.board.compute_capability >= _AMPERE
    return int(_EVERY_CARD | (_SINCE_AMPERE if newer else 0))
