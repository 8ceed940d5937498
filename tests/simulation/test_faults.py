"""Faults of the simulated driver: errors, delays, hangs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pynvml
import pytest

from nodeagent.errors import UsageError
from nodeagent.simulation import simulated
from nodeagent.simulation.functions import FUNCTIONS, documented_errors
from tests.simulation import calls

COUNT = "nvmlDeviceGetCount_v2"


def _outcomes(number: int, call: Any = pynvml.nvmlDeviceGetCount) -> list[int]:
    """The NVML codes of so many calls."""
    codes = []
    for _ in range(number):
        try:
            call()
            codes.append(0)
        except pynvml.NVMLError as error:
            codes.append(error.value)
    return codes


def test_an_error_so_many_times() -> None:
    """Then the function works again; other functions always did."""
    with calls.node_with() as node:
        node.inject(COUNT, error="UNKNOWN", times=2)
        assert calls.gpu() is not None
        assert _outcomes(3) == [999, 999, 0]
        assert node.faults == []


def test_the_first_calls_may_be_spared() -> None:
    """`skip` calls go well before the fault begins."""
    with calls.node_with() as node:
        node.inject(COUNT, error=19, skip=2)
        assert _outcomes(4) == [0, 0, 19, 0]


def test_a_fault_for_ever_is_cleared() -> None:
    """It stays until it is taken back, and others stay when one is."""
    with calls.node_with() as node:
        fault = node.inject(COUNT, error="IN_USE", times=None)
        node.inject("nvmlDeviceGetUUID", error="UNKNOWN", times=None)
        assert _outcomes(3) == [19, 19, 19]
        node.clear_faults(fault)
        assert _outcomes(1) == [0]
        assert len(node.faults) == 1


def test_a_fault_of_one_gpu() -> None:
    """The others work, and calls that are about no GPU."""
    with calls.node_with("h100-80gb:2") as node:
        first, second = calls.gpu(0), calls.gpu(1)
        node.inject(error="UNKNOWN", gpu=1, times=None)
        assert pynvml.nvmlDeviceGetUUID(first)
        assert pynvml.nvmlDeviceGetCount() == 2
        with pytest.raises(pynvml.NVMLError_Unknown):
            pynvml.nvmlDeviceGetUUID(second)


def test_one_call_of_the_whole_run() -> None:
    """`at_call` counts all calls, whatever they are."""
    with simulated("h100-80gb") as node:
        node.inject(error="UNKNOWN", at_call=3)
        pynvml.nvmlInit()
        calls.gpu()
        assert _outcomes(2) == [999, 0]
        pynvml.nvmlShutdown()


def test_a_call_may_do_its_work_and_fail_nevertheless() -> None:
    """`applied`: the instance is there, though the caller got an error."""
    with calls.node_with() as node:
        node.inject("nvmlDeviceCreateGpuInstance", error="UNKNOWN", applied=True)
        with pytest.raises(pynvml.NVMLError_Unknown):
            calls.create(calls.gpu(), "1g")
        assert len(calls.instances(calls.gpu(), "1g")) == 1


def test_a_delay() -> None:
    """One call takes that long, and another thread is not held up by it."""
    with calls.node_with() as node:
        overtaken = False
        for _ in range(20):  # on a busy machine one attempt shows nothing
            node.inject(COUNT, delay=0.5)
            waiting = threading.Thread(target=pynvml.nvmlDeviceGetCount)
            before = time.monotonic()
            waiting.start()
            while node.faults:
                time.sleep(0.001)
            calls.gpu()
            overtaken = time.monotonic() - before < 0.4
            waiting.join()
            assert time.monotonic() - before >= 0.5
            if overtaken:
                break
        assert overtaken


def test_latency_of_every_call_or_of_some() -> None:
    """Given for the whole library, or by function with `*` for the others."""
    with simulated("t4", latency={"nvmlInitWithFlags": 0.1, "nvmlShutdown": 0.0, "*": 60.0}):
        before = time.monotonic()
        pynvml.nvmlInit()
        assert time.monotonic() - before >= 0.1
        pynvml.nvmlShutdown()
        assert time.monotonic() - before < 30
    with simulated("t4", latency={"nvmlInitWithFlags": 60.0, "*": 0.05}):
        before = time.monotonic()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        assert 0.05 <= time.monotonic() - before < 30
    with simulated("t4", latency=0.01):
        before = time.monotonic()
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        assert time.monotonic() - before >= 0.02


def test_a_hang_lasts_until_it_is_cleared() -> None:
    """The call is stuck, others go on, and then it does its work after all."""
    with calls.node_with("h100-80gb:2") as node:
        stuck_gpu = calls.gpu(0)
        fault = node.inject("nvmlDeviceCreateGpuInstance", hang=True, gpu=0)
        stuck = threading.Thread(target=pynvml.nvmlDeviceCreateGpuInstance, args=(stuck_gpu, 19))
        stuck.start()
        calls.create(calls.gpu(1), "1g")
        stuck.join(0.05)
        assert stuck.is_alive()
        assert node.cards[0].state.instances == []
        node.clear_faults(fault)
        stuck.join(30)
        assert len(node.cards[0].state.instances) == 1


def test_closing_the_node_frees_what_hangs() -> None:
    """No thread is left behind when a test ends; its call is UNINITIALIZED."""
    codes: list[int] = []
    with simulated("t4") as node:
        pynvml.nvmlInit()
        node.inject(COUNT, hang=True)
        stuck = threading.Thread(target=lambda: codes.extend(_outcomes(1)))
        stuck.start()
        while not any(fault.times == 0 for fault in node.faults):
            time.sleep(0.001)
    stuck.join(30)
    assert codes == [pynvml.NVML_ERROR_UNINITIALIZED]


def test_errors_are_given_by_name_or_number() -> None:
    """In the spellings that people use."""
    with calls.node_with() as node:
        for error in ("IN_USE", "inUse", "NVML_ERROR_IN_USE", "19", 19):
            node.inject(COUNT, error=error)
            assert _outcomes(1) == [19]


def test_faults_that_mean_nothing_are_refused() -> None:
    """An unknown error, no effect at all, a GPU that is not there."""
    with calls.node_with() as node:
        with pytest.raises(UsageError, match="no error 'BROKEN'"):
            node.inject(COUNT, error="BROKEN")
        with pytest.raises(UsageError, match="needs an error"):
            node.inject(COUNT)
        with pytest.raises(UsageError, match="counts from"):
            node.inject(COUNT, error=19, times=0)
        with pytest.raises(UsageError, match="no error '77'"):
            node.lose(0, error=77)
        with pytest.raises(UsageError, match="no GPU 7"):
            node.inject(COUNT, error=19, gpu=7)


def test_documented_errors_can_be_enumerated() -> None:
    """Every function lists which codes it may answer, for tests that try them all."""
    for name, function in FUNCTIONS.items():
        if not function.raw:
            codes = documented_errors(name)
            assert len(set(codes)) == len(codes) > 0
    assert pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES in documented_errors(
        "nvmlDeviceCreateGpuInstanceWithPlacement"
    )


def test_the_journal_records_calls_and_counts() -> None:
    """Names, plain arguments and results, in order; counts survive the list's limit."""
    with calls.node_with() as node:
        device = calls.gpu()
        node.journal.clear()
        instance = pynvml.nvmlDeviceCreateGpuInstance(device, 9)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceCreateGpuInstance(device, 3)
        pynvml.nvmlGpuInstanceGetInfo(instance)
        assert [str(call) for call in node.journal.calls] == [
            "nvmlDeviceCreateGpuInstance(<GPU 0>, 9) -> SUCCESS",
            "nvmlDeviceCreateGpuInstance(<GPU 0>, 3) -> INVALID_ARGUMENT",
            "nvmlGpuInstanceGetInfo(<GPU instance on GPU 0>) -> SUCCESS",
        ]
        assert node.journal.total("nvml*Create*") == 2
        assert len(node.journal.named("nvmlGpuInstance*")) == 1
        assert {call.gpu for call in node.journal.calls} == {0}
