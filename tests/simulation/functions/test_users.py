"""NVML's process lists on the simulated node."""

from __future__ import annotations

from ctypes import byref, c_uint

import pynvml
import pytest

from tests.simulation import calls

NONE = 0xFFFFFFFF
LISTS = {
    "compute": pynvml.nvmlDeviceGetComputeRunningProcesses,
    "graphics": pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    "mps": pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
}


def test_no_processes() -> None:
    """pynvml's first call, without an array, already says that there are none."""
    with calls.node_with():
        assert [ask(calls.gpu()) for ask in LISTS.values()] == [[], [], []]


@pytest.mark.parametrize("kind", LISTS)
def test_each_kind_has_its_list(kind: str) -> None:
    """A process shows up in the list of its kind and in no other."""
    with calls.node_with() as node:
        process = node.occupy(0, kind=kind, memory=1 << 30)
        for name, ask in LISTS.items():
            found = ask(calls.gpu())
            assert [p.pid for p in found] == ([process.pid] if name == kind else [])
        reported = LISTS[kind](calls.gpu())[0]
        assert (reported.usedGpuMemory, reported.gpuInstanceId, reported.computeInstanceId) == (
            1 << 30,
            NONE,
            NONE,
        )


def test_memory_that_the_driver_cannot_tell() -> None:
    """pynvml makes None of it."""
    with calls.node_with() as node:
        node.occupy(0, memory=None)
        assert LISTS["compute"](calls.gpu())[0].usedGpuMemory is None


def test_processes_of_mig_devices() -> None:
    """The parent lists all with their instances, a MIG device only its own."""
    with calls.node_with() as node:
        devices = [calls.create_device(calls.gpu(), "2g", start) for start in (0, 2)]
        pids = [node.occupy(pynvml.nvmlDeviceGetUUID(device)).pid for device in devices]
        reported = [
            (p.pid, p.gpuInstanceId, p.computeInstanceId) for p in LISTS["compute"](calls.gpu())
        ]
        assert reported == [(pids[0], 3, 0), (pids[1], 4, 0)]
        assert [p.pid for p in LISTS["compute"](devices[1])] == [pids[1]]


def test_the_parent_needs_privilege_while_mig_is_on() -> None:
    """An ordinary user may ask MIG devices, but not the whole GPU."""
    with calls.node_with(privileged=False) as node:
        card = node.cards[0]
        card.create_compute(card.create_instance(9), 2)
        with pytest.raises(pynvml.NVMLError_NoPermission):
            LISTS["compute"](calls.gpu())
        assert LISTS["compute"](calls.mig_devices(calls.gpu())[0]) == []


def test_the_protocol_of_two_calls() -> None:
    """Without room the count is reported with INSUFFICIENT_SIZE; with room, the list."""
    with calls.node_with() as node:
        pids = [node.occupy(0).pid for _ in range(3)]
        ask, count = pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3, c_uint(0)
        assert ask(calls.gpu(), byref(count), None) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        assert count.value == 3
        count, infos = c_uint(2), (pynvml.c_nvmlProcessInfo_v3_t * 2)()
        assert ask(calls.gpu(), byref(count), infos) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        count, infos = c_uint(5), (pynvml.c_nvmlProcessInfo_v3_t * 5)()
        assert ask(calls.gpu(), byref(count), infos) == pynvml.NVML_SUCCESS
        assert [infos[i].pid for i in range(count.value)] == pids


def test_the_older_form_of_the_lists() -> None:
    """Drivers without the third version have the second, with the same structure."""
    with calls.node_with() as node:
        pid = node.occupy(0).pid
        found = pynvml.nvmlDeviceGetComputeRunningProcesses_v2(calls.gpu())
        assert [p.pid for p in found] == [pid]
