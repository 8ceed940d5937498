"""Event sets of the simulated library."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pynvml
import pytest

from nodeagent.simulation import Switches
from tests.simulation import calls

XID, MIG_CHANGE = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventMigConfigChange
NONE = 0xFFFFFFFF


@contextmanager
def _events(types: int, *indices: int) -> Iterator[Any]:
    events = pynvml.nvmlEventSetCreate()
    for index in indices or (0,):
        pynvml.nvmlDeviceRegisterEvents(calls.gpu(index), types, events)
    yield events
    pynvml.nvmlEventSetFree(events)


def test_waiting_for_nothing_ends_with_timeout() -> None:
    """It really waits, and then says TIMEOUT."""
    with calls.node_with(), _events(XID) as events:
        before = time.monotonic()
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(events, 30)
        assert time.monotonic() - before >= 0.03


def test_an_xid_wakes_the_waiting_thread() -> None:
    """The event names GPU, type, number and instance, and others can call meanwhile."""
    with calls.node_with("h100-80gb:2") as node, _events(XID, 0, 1) as events:
        calls.create_device(calls.gpu(1), "3g", 0)
        found: list[Any] = []
        waiting = threading.Thread(
            target=lambda: found.append(pynvml.nvmlEventSetWait_v2(events, 5000))
        )
        waiting.start()
        assert pynvml.nvmlDeviceGetCount() == 2  # the waiting call holds no lock
        node.xid("1/1/0", 94)
        waiting.join(30)
        event = found[0]
        assert pynvml.nvmlDeviceGetIndex(event.device) == 1
        assert (event.eventType, event.eventData) == (XID, 94)
        assert (event.gpuInstanceId, event.computeInstanceId) == (1, 0)


def test_every_event_comes_once_to_every_set() -> None:
    """In order, to each set that asked before it happened."""
    with calls.node_with() as node, _events(XID) as first, _events(XID) as second:
        for number in (13, 31):
            node.xid(0, number)
        for events in (first, second):
            got = [pynvml.nvmlEventSetWait_v2(events, 0) for _ in range(2)]
            assert [event.eventData for event in got] == [13, 31]
            assert got[0].gpuInstanceId == NONE
            with pytest.raises(pynvml.NVMLError_Timeout):
                pynvml.nvmlEventSetWait_v2(events, 0)
        with _events(XID) as late, pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(late, 0)


def test_only_what_was_asked_for_comes() -> None:
    """Neither other types nor other GPUs."""
    with calls.node_with("h100-80gb:2") as node, _events(MIG_CHANGE, 1) as events:
        node.xid(1, 13)
        calls.create(calls.gpu(0), "1g")
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(events, 0)


def test_every_mig_change_is_an_event() -> None:
    """Creating, destroying and switching the mode, by whomever."""
    with calls.node_with() as node, _events(MIG_CHANGE) as events:
        device = calls.create_device(calls.gpu(), "1g")
        del device
        node.cards[0].destroy_compute(*next(node.cards[0].mig_devices()))
        node.cards[0].destroy_instance(node.cards[0].state.instances[0])
        pynvml.nvmlDeviceSetMigMode(calls.gpu(), 0)
        types = [pynvml.nvmlEventSetWait_v2(events, 0).eventType for _ in range(5)]
        assert types == [MIG_CHANGE] * 5


def test_what_can_be_registered() -> None:
    """MIG changes only where there is MIG; unknown types nowhere; never on a MIG device."""
    with calls.node_with("h100-80gb,t4"), _events(XID) as events:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceRegisterEvents(calls.gpu(1), MIG_CHANGE, events)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceRegisterEvents(calls.gpu(0), 1 << 31, events)
        device = calls.create_device(calls.gpu(), "1g")
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceRegisterEvents(device, XID, events)


@pytest.mark.parametrize("reported", [True, False])
def test_supported_types(reported: bool) -> None:
    """XIDs always; whether MIG changes are among them differs, which the switch decides."""
    with calls.node_with(switches=Switches(supported_events_tell_mig=reported)):
        types = pynvml.nvmlDeviceGetSupportedEventTypes(calls.gpu())
        assert types & XID
        assert bool(types & MIG_CHANGE) is reported


def test_a_freed_set_is_stale() -> None:
    """Waiting on it is an invalid argument."""
    with calls.node_with():
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlEventSetFree(events)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlEventSetWait_v2(events, 0)


def test_a_lost_gpu_ends_the_waiting() -> None:
    """A caller that waits for it gets the error that it is lost."""
    with calls.node_with() as node, _events(XID) as events:
        threading.Timer(0.02, node.lose, (0,)).start()
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlEventSetWait_v2(events, 5000)
