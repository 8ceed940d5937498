import threading
import time
from typing import Any

import pynvml
import pytest

from nodeagent.errors import UsageError
from nodeagent.simulation import simulated
from tests.simulation import calls

COUNT = "nvmlDeviceGetCount_v2"


def _outcomes(number: int, call: Any = pynvml.nvmlDeviceGetCount) -> list[int]:
    codes = []
    for _ in range(number):
        try:
            call()
            codes.append(0)
        except pynvml.NVMLError as error:
            codes.append(error.value)
    return codes


def test_latency_of_every_call_or_of_some() -> None:
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


def test_closing_the_node_frees_what_hangs() -> None:
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
    with calls.node_with() as node:
        for error in ("IN_USE", "inUse", "NVML_ERROR_IN_USE", "19", 19):
            node.inject(COUNT, error=error)
            assert _outcomes(1) == [19]


def test_faults_that_mean_nothing_are_refused() -> None:
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


def test_the_journal_records_calls_and_counts() -> None:
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
