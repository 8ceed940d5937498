import threading
import time
from typing import Any

import pynvml
import pytest

from nodeagent.errors import UsageError
from nodeagent.simulation import simulated
from tests.machine_load import wait_until
from tests.processes.real import process_of
from tests.simulation import calls

GIB = 1 << 30


def test_a_device_is_named_in_many_ways() -> None:
    with calls.node_with("h100-80gb:2") as node:
        device = calls.create_device(calls.gpu(1), "1g", 0)
        card = node.cards[1]
        for text in ("1", 1, card.identity.uuid, "00000000:27:00.0", "0000:27:00.0"):
            assert node.find(text) == (card, None, None)
        for text in (pynvml.nvmlDeviceGetUUID(device), "1/7/0"):
            assert node.find(text) == (card, 7, 0)


@pytest.mark.parametrize("text", ["2", "-1", "GPU-x", "MIG-x", "1/7/0", "", "0/0/0", "²"])
def test_a_device_that_is_not_there(text: str) -> None:
    with calls.node_with("h100-80gb:2") as node, pytest.raises(UsageError, match="has no"):
        node.occupy(text)


def test_a_process_has_no_more_than_its_device_or_its_share_has() -> None:
    with calls.node_with("t4") as node:
        one, other = (
            node.occupy(0, memory=GIB, kind="mps", limit=limit * GIB) for limit in (2, 99)
        )
        for process, most in ((one, 2 * GIB), (other, node.cards[0].board.memory - 2 * GIB)):
            node.allocate(0, process.pid, most)
            with pytest.raises(UsageError, match="MiB free"):
                node.allocate(0, process.pid, most + 1)
            assert process.memory == most
        node.allocate(0, one.pid, GIB)
        node.allocate(0, other.pid, most + GIB)
        with pytest.raises(UsageError, match="no process 5 on 0"):
            node.allocate(0, 5, GIB)


def test_occupying_is_checked() -> None:
    with calls.node_with("t4") as node:
        node.occupy(0, 4711)
        for wrong, complaint in (
            ({"pid": 4711}, "is on 0 already"),
            ({"pid": 0}, "no process id"),
            ({"kind": "crypto"}, "compute, graphics or mps"),
            ({"memory": 1 << 60}, "MiB free"),
            ({"memory": -1}, "MiB free"),
            ({"pid": 4_199_999, "follow": True}, "no process 4199999"),
        ):
            with pytest.raises(UsageError, match=complaint):
                node.occupy(0, **wrong)
        assert len(node.cards[0].state.processes) == 1


def test_a_real_process_frees_the_device_by_ending() -> None:
    with calls.node_with("t4") as node, process_of("sleep", "60") as process:
        node.occupy(0, process.pid, follow=True)
        assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(calls.gpu())) == 1
        process.kill()
        wait_until(lambda: not pynvml.nvmlDeviceGetComputeRunningProcesses(calls.gpu()))


def test_a_reboot_of_hopper_takes_everything() -> None:
    with calls.node_with() as node:
        uuid = pynvml.nvmlDeviceGetUUID(calls.gpu())
        device = calls.create_device(calls.gpu(), "1g")
        node.occupy(pynvml.nvmlDeviceGetUUID(device))
        node.reboot()
        assert pynvml.nvmlDeviceGetMigMode(calls.gpu()) == [0, 0]
        assert node.cards[0].state.processes == []
        assert pynvml.nvmlDeviceGetUUID(calls.gpu()) == uuid
        calls.refused("InvalidArgument", lambda: pynvml.nvmlDeviceGetUUID(device))


def test_a_reboot_of_ampere_keeps_the_mode() -> None:
    with calls.node_with("a100-80gb:2") as node:
        calls.create(calls.gpu(0), "1g")
        pynvml.nvmlDeviceSetMigMode(calls.gpu(1), 0)
        node.reboot()
        modes = [pynvml.nvmlDeviceGetMigMode(calls.gpu(i)) for i in range(2)]
        assert modes == [[1, 1], [0, 0]]
        assert node.cards[0].state.instances == []


def test_many_threads_at_once() -> None:
    with calls.node_with("h100-80gb:8") as node:

        def work(index: int) -> None:
            device = calls.gpu(index)
            for _ in range(5):
                instance = pynvml.nvmlDeviceCreateGpuInstance(device, 19)
                pynvml.nvmlGpuInstanceDestroy(instance)
            for _ in range(7):
                calls.create_device(device, "1g")

        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [len(card.state.instances) for card in node.cards] == [7] * 8
        serials = [i.serial for card in node.cards for i in card.state.instances]
        assert len(set(serials)) == 56


# --- faults ---------------------------------------------------------------------------------------


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
        calls.refused("Uninitialized", pynvml.nvmlDeviceGetCount)
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
        calls.refused("InvalidArgument", lambda: pynvml.nvmlDeviceCreateGpuInstance(device, 3))
        pynvml.nvmlGpuInstanceGetInfo(instance)
        assert [str(call) for call in node.journal.calls] == [
            "nvmlDeviceCreateGpuInstance(<GPU 0>, 9) -> SUCCESS",
            "nvmlDeviceCreateGpuInstance(<GPU 0>, 3) -> INVALID_ARGUMENT",
            "nvmlGpuInstanceGetInfo(<GPU instance on GPU 0>) -> SUCCESS",
        ]
        assert node.journal.total("nvml*Create*") == 2
        assert len(node.journal.named("nvmlGpuInstance*")) == 1
        assert {call.gpu for call in node.journal.calls} == {0}
