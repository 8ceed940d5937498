"""Events about the node: the driver bound to a GPU, or taken off it."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: D103

from __future__ import annotations

import time
from ctypes import c_void_p, cast
from typing import Any

import pynvml

from nodeagent.simulation.arguments import Out, pointer_to
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import c_function
from nodeagent.simulation.handles import Kind
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.owned_objects import EventSet

_SYSTEM = -1  # in the place of a GPU


@c_function(
    "nvmlSystemEventSetCreate",
    Out(pynvml.c_nvmlSystemEventSetCreateRequest_v1_t, pynvml.nvmlSystemEventSetCreateRequest_v1),
    errors=(Code.ARGUMENT_VERSION_MISMATCH,),
)
def create(library: Session, request: Any) -> None:
    number = library.system_event_sets.make()
    token = library.handles.give(Kind.SYSTEM_EVENT_SET, library.session, serial=number)
    request.set = pointer_to(token, Kind.SYSTEM_EVENT_SET)


@c_function(
    "nvmlSystemRegisterEvents",
    Out(pynvml.c_nvmlSystemRegisterEventRequest_v1_t, pynvml.nvmlSystemRegisterEventRequest_v1),
    errors=(Code.ARGUMENT_VERSION_MISMATCH,),
)
def register(library: Session, request: Any) -> None:
    happened = library.node.events
    last = happened[-1].number if happened else 0
    _set_of(library, request).register(_SYSTEM, request.eventTypes, last)


@c_function(
    "nvmlSystemEventSetWait",
    Out(pynvml.c_nvmlSystemEventSetWaitRequest_v1_t, pynvml.nvmlSystemEventSetWaitRequest_v1),
    errors=(Code.TIMEOUT, Code.ARGUMENT_VERSION_MISMATCH),
)
def wait(library: Session, request: Any) -> None:
    """The lock is given up while it waits."""
    events = _set_of(library, request)
    node, deadline = library.node, time.monotonic() + request.timeoutms / 1000
    while (event := events.next(node.events)) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Refused(Code.TIMEOUT)
        node.wait(left)
        library.require_open()
    if request.dataSize < 1 or not request.data:
        raise Refused(Code.INSUFFICIENT_SIZE)
    request.data[0].eventType, request.data[0].gpuId = event.type, event.data
    request.numEvent = 1


@c_function(
    "nvmlSystemEventSetFree",
    Out(pynvml.c_nvmlSystemEventSetFreeRequest_v1_t, pynvml.nvmlSystemEventSetFreeRequest_v1),
    errors=(Code.ARGUMENT_VERSION_MISMATCH,),
)
def free(library: Session, request: Any) -> None:
    library.system_event_sets.free(_set_of(library, request))


def _set_of(library: Session, request: Any) -> EventSet:
    token = cast(request.set, c_void_p).value
    if not token:
        raise Refused(Code.INVALID_ARGUMENT)
    found: EventSet = library.look_up(library.handles.take(token, "nvmlSystemEventSet"))
    return found
