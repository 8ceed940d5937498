"""NVML's process lists on the simulated node."""

from __future__ import annotations

from ctypes import byref, c_uint

import pynvml
import pytest

from tests.simulation import calls

LISTS = {
    "compute": pynvml.nvmlDeviceGetComputeRunningProcesses,
    "graphics": pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    "mps": pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
}


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
