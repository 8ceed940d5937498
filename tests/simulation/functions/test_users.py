from ctypes import byref, c_uint

import pynvml
import pytest

from nodeagent.errors import UsageError
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.admission import MPS_SERVER, ComputeMode
from tests.simulation import calls

LISTS = {
    "compute": pynvml.nvmlDeviceGetComputeRunningProcesses,
    "graphics": pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    "mps": pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
}


def test_the_parent_needs_privilege_while_mig_is_on() -> None:
    with calls.node_with(privileged=False) as node:
        card = node.cards[0]
        card.create_compute(card.create_instance(9), 2)
        calls.refused("NoPermission", lambda: LISTS["compute"](calls.gpu()))
        assert LISTS["compute"](calls.mig_devices(calls.gpu())[0]) == []


def test_the_protocol_of_two_calls() -> None:
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


def _with_mode(node: SimulatedNode, mode: ComputeMode) -> None:
    node.cards[0].state.compute_mode = mode


def test_a_prohibited_device_takes_no_compute_process() -> None:
    with calls.node_with("t4") as node:
        _with_mode(node, ComputeMode.PROHIBITED)
        for kind in ("compute", "mps"):
            with pytest.raises(UsageError, match="PROHIBITED"):
                node.occupy(0, kind=kind)
        node.occupy(0, kind="graphics")


def test_an_exclusive_device_takes_one_process() -> None:
    with calls.node_with("t4") as node:
        _with_mode(node, ComputeMode.EXCLUSIVE_PROCESS)
        node.occupy(0, kind="graphics")
        first = node.occupy(0, command="train")
        for kind in ("compute", "mps"):
            with pytest.raises(UsageError, match=rf"{first.pid} \(train\) has it.*busy"):
                node.occupy(0, kind=kind)
        node.occupy(0, kind="graphics")
        node.release(pid=first.pid)
        node.occupy(0)


def test_all_clients_of_mps_are_one_process_to_an_exclusive_device() -> None:
    with calls.node_with("t4") as node:
        _with_mode(node, ComputeMode.EXCLUSIVE_PROCESS)
        node.occupy(0, command=MPS_SERVER)
        for _ in range(3):
            node.occupy(0, kind="mps")
        with pytest.raises(UsageError, match="come as a client of its MPS server"):
            node.occupy(0)


def test_each_mig_device_decides_for_itself() -> None:
    with calls.node_with("h100-80gb") as node:
        devices = [calls.create_device(calls.gpu(), "1g", start) for start in (0, 1)]
        first, second = map(pynvml.nvmlDeviceGetUUID, devices)
        pynvml.nvmlDeviceSetComputeMode(devices[0], pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        node.occupy(first)
        with pytest.raises(UsageError, match="EXCLUSIVE_PROCESS"):
            node.occupy(first)
        node.occupy(second)
        node.occupy(second)


EXCLUSIVE = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


@pytest.mark.parametrize("how", ["reset", "reboot"])
def test_a_reset_and_a_reboot_lose_what_was_set(how: str) -> None:
    with calls.node_with("t4") as node:
        pynvml.nvmlDeviceSetComputeMode(calls.gpu(), EXCLUSIVE)
        node.cards[0].state.time_slice = 3
        node.reset(0) if how == "reset" else node.reboot()
        state = node.cards[0].state
        assert (state.compute_mode, state.time_slice) == (0, 0)


def test_modes_that_are_set() -> None:
    set_mode = pynvml.nvmlDeviceSetComputeMode
    with calls.node_with("t4"):
        thread, none = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD, pynvml.NVML_COMPUTEMODE_COUNT
        calls.refused("NotSupported", lambda: set_mode(calls.gpu(), thread))
        calls.refused("InvalidArgument", lambda: set_mode(calls.gpu(), none))
        assert pynvml.nvmlDeviceGetPersistenceMode(calls.gpu()) == 1
        pynvml.nvmlDeviceSetPersistenceMode(calls.gpu(), 0)
        assert pynvml.nvmlDeviceGetPersistenceMode(calls.gpu()) == 0
    with calls.node_with("t4", privileged=False):
        calls.refused(
            "NoPermission",
            lambda: pynvml.nvmlDeviceSetPersistenceMode(calls.gpu(), 0),
            lambda: set_mode(calls.gpu(), EXCLUSIVE),
        )
