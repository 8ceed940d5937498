"""Event sets of the simulated library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pynvml
import pytest

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
