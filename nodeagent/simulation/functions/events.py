"""Event sets: waiting for what the driver reports of GPUs, and of the node as a whole."""

import time
from ctypes import c_void_p, cast
from typing import Annotated, Any

import pynvml

from nodeagent.simulation.arguments import Out, pointer_to, versioned
from nodeagent.simulation.card import MIG_CONFIG_CHANGE
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.devices import Device
from nodeagent.simulation.functions.registry import (
    EventSetIn,
    EventSetOut,
    UInt,
    ULongOut,
    WholeGpuIn,
    c_function,
)
from nodeagent.simulation.handles import Kind
from nodeagent.simulation.node import SYSTEM
from nodeagent.simulation.nvml_session import EventSet, Session
from nodeagent.simulation.state import Event

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


@c_function()
def nvmlEventSetCreate(session: Session, handle: EventSetOut) -> None:
    handle.write(session.allocate(Kind.EVENT_SET, EventSet()))


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetSupportedEventTypes(session: Session, gpu: WholeGpuIn, types: ULongOut) -> None:
    types.value = _types(gpu)


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceRegisterEvents(
    session: Session, gpu: WholeGpuIn, types: UInt, events: EventSetIn
) -> None:
    """On a whole GPU; its instances report through it."""
    known = _types(gpu) | (MIG_CONFIG_CHANGE if gpu.card.board.has_mig else 0)
    if types & ~known:
        raise Refused(Code.NOT_SUPPORTED)
    events.register(gpu.card.index, types, session.node.state.events)


@c_function(Code.TIMEOUT)
def nvmlEventSetWait_v2(
    session: Session,
    events: EventSetIn,
    data: Annotated[Any, Out(pynvml.c_nvmlEventData_t)],
    milliseconds: UInt,
) -> None:
    event = _next(session, events, milliseconds)
    card = session.node.cards[event.gpu]
    data.device = pointer_to(session.give(Device(card)), Kind.GPU)
    data.eventType, data.eventData = event.type, event.data
    data.gpuInstanceId, data.computeInstanceId = event.instance, event.compute
    if session.node.switches.zero_outside_mig and not card.state.mig:
        data.gpuInstanceId = data.computeInstanceId = 0


@c_function()
def nvmlEventSetFree(session: Session, events: EventSetIn) -> None:
    session.free(events)


def _types(gpu: Device) -> int:
    newer = gpu.card.board.compute_capability >= _AMPERE
    return int(_EVERY_CARD | (_SINCE_AMPERE if newer else 0))


# --- the node -----------------------------------------------------------------------------------


@c_function()
def nvmlSystemEventSetCreate(
    session: Session, request: Annotated[Any, versioned("nvmlSystemEventSetCreateRequest_v1")]
) -> None:
    request.set = pointer_to(
        session.allocate(Kind.SYSTEM_EVENT_SET, EventSet()), Kind.SYSTEM_EVENT_SET
    )


@c_function()
def nvmlSystemRegisterEvents(
    session: Session, request: Annotated[Any, versioned("nvmlSystemRegisterEventRequest_v1")]
) -> None:
    events = _set_of(session, request)
    events.register(SYSTEM, request.eventTypes, session.node.state.events)


@c_function(Code.TIMEOUT)
def nvmlSystemEventSetWait(
    session: Session, request: Annotated[Any, versioned("nvmlSystemEventSetWaitRequest_v1")]
) -> None:
    event = _next(session, _set_of(session, request), request.timeoutms)
    if request.dataSize < 1 or not request.data:
        raise Refused(Code.INSUFFICIENT_SIZE)
    request.data[0].eventType, request.data[0].gpuId = event.type, event.data
    request.numEvent = 1


@c_function()
def nvmlSystemEventSetFree(
    session: Session, request: Annotated[Any, versioned("nvmlSystemEventSetFreeRequest_v1")]
) -> None:
    session.free(_set_of(session, request))


def _next(session: Session, events: EventSet, milliseconds: int) -> Event:
    """Wait for it with the lock given up; raises Refused."""
    node, deadline = session.node, time.monotonic() + milliseconds / 1000
    while (event := events.next(node.state.events)) is None:
        cards = [node.cards[gpu] for gpu in events.wanted if gpu != SYSTEM]
        if any(card.state.failure == Code.GPU_IS_LOST for card in cards):
            raise Refused(Code.GPU_IS_LOST)
        left = deadline - time.monotonic()
        if left <= 0:
            raise Refused(Code.TIMEOUT)
        node.store.wait(left)
        session.require_open()
    return event


def _set_of(session: Session, request: Any) -> EventSet:
    token = cast(request.set, c_void_p).value
    if not token:
        raise Refused(Code.INVALID_ARGUMENT)
    found: EventSet = session.look_up(session.handles.take(token, "nvmlSystemEventSet"))
    return found
